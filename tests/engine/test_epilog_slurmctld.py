"""A job that ends wakes the daemon at once; without a daemon nobody notices the difference."""

import re
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox
from tests.live import until

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).resolve().parents[2] / "slurm_plugins" / "epilog_slurmctld.sh"
SLOW = {"loop": {"reconcile_s": 30.0, "lease_s": 120.0}}
AT_ONCE_S = 15.0
"""Far below the reconcile, with room for a busy machine; 0.1 s is usual."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    settings = {"agents": False, "emulator": False, "daemon": True, "config": SLOW}
    with Sandbox("epilog", nodes=1, **settings) as sandbox:
        yield sandbox


def cycles(sandbox: Sandbox) -> int:
    """How often the daemon has looked."""
    url = f"http://127.0.0.1:{sandbox.spec.ports.intake}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = re.search(rb"^hpctl_cycle_seconds_count (\S+)$", answer.read(), re.MULTILINE)
    return int(float(found[1]))


def asleep(sandbox: Sandbox) -> int:
    """Wait until the daemon has nothing to do; how often it has looked by then."""
    seen = -1
    while (now := cycles(sandbox)) != seen:
        seen = now
        time.sleep(1.5)
    return seen


def submit(sandbox: Sandbox, begun: Path, go: Path) -> int:
    """Submit a job that makes a file, and ends once another is there."""
    script = f"touch {begun}; until [ -e {go} ]; do sleep 0.1; done"
    args = ["sbatch", "--parsable", "--output=/dev/null", f"--wrap={script}"]
    return int(sandbox.run(args).stdout)


@pytest.mark.slurm
def test_a_job_that_ends_wakes_the_loop(cluster: Sandbox, tmp_path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    # Not just before a reconcile, which wakes the daemon too.
    before = asleep(cluster)
    submit(cluster, begun, go)
    until(begun.exists, 20, "the job's first act")
    time.sleep(0.5)
    assert cycles(cluster) == before, "a job that starts wakes nobody"
    before = asleep(cluster)
    ended = time.monotonic()
    go.touch()
    until(lambda: cycles(cluster) > before, 20, "the daemon looks")
    assert time.monotonic() - ended < AT_ONCE_S, "it looks, 30 s too early"


@pytest.mark.parametrize("listening", ["nobody", "a full FIFO", "a file", "no directory"])
def test_script_waits_for_no_reader(tmp_path, listening: str) -> None:
    from hpctl.engine.wake import DaemonLoopWaker

    waker = DaemonLoopWaker(tmp_path)
    if listening == "a full FIFO":
        for _ in range(65536 + 1):
            waker.poke()
    else:
        waker.close()
    if listening == "a file":
        waker.path.unlink()
        waker.path.touch()
    state = tmp_path / "none" if listening == "no directory" else tmp_path
    # The script's own limit is a second, in which a busy machine may start no program.
    limit = tmp_path / "timeout"
    limit.write_text('#!/bin/sh\nshift 2\nexec /usr/bin/timeout 40 "$@"\n')
    limit.chmod(0o755)
    environment = {"HPCTL_STATE_DIR": str(state), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    begun = time.monotonic()
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert time.monotonic() - begun < 40, "it ran into its own limit"
    if listening == "a full FIFO":
        waker.close()


def test_the_group_may_poke_and_not_listen(tmp_path) -> None:
    from hpctl.engine.wake import DaemonLoopWaker

    DaemonLoopWaker(tmp_path).close()
    assert (tmp_path / "wake").stat().st_mode & 0o777 == 0o620
