"""A sandbox whose daemons do not run says within seconds which one, and why."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from hpctl.toolkit.errors import HpctlError

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.timeout(120)]

WITHIN_S = 30.0
"""From the daemon's last line to the error. Where `up` does not see the cause, it gives up after
60 s; a busy machine needs more than 5 s to see it."""

ENDS = """#!/bin/sh
[ "$1" != -V ] || exec {real} -V
case "$*" in
*{where}*) ;;
*) exec {real} "$@" ;;
esac
echo "{name}: error: first" >&2
echo "{name}: error: the stub has ended" >&2
exit 3
"""
"""A daemon that ends at once where its command line has `where`, and is the real one elsewhere."""

LISTENS_AND_ENDS = """#!{python}
import os, re, socket, sys, time
if "-V" in sys.argv:
    os.execv("{real}", ["{real}", "-V"])
conf = open(sys.argv[sys.argv.index("-f") + 1]).read()
port = int(re.search(r"{port}", conf)[1])
with socket.create_server(("", port)):
    time.sleep(0.3)
print("{name}: error: the stub has ended", file=sys.stderr)
sys.exit(3)
"""
"""A daemon that opens its port first, as one does that fails late."""

SLURMD_PORT = r"NodeName=ip-127-0-1-1 .*?Port=(\d+)"
SLURMCTLD_PORT = r"SlurmctldPort=(\d+)"


def real(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found
    return found


def stub(path: Path, text: str, **values: str) -> None:
    path.write_text(text.format(name=path.name, real=real(path.name), **values))
    path.chmod(0o755)


@pytest.fixture
def prefix(shared) -> Path:
    """A Slurm of links to the installed one, for a stub to take a daemon's place."""
    for folder, names in (("bin", ("scontrol", "sinfo", "sbatch")), ("sbin", ("slurmctld",))):
        (shared / folder).mkdir()
        for name in names:
            (shared / folder / name).symlink_to(real(name))
    (shared / "sbin/slurmd").symlink_to(real("slurmd"))
    return shared


def failure(sandbox_factory, **settings) -> tuple[str, Path]:
    """What `up` says, within seconds, and the log that it names."""
    sandbox = sandbox_factory(up=False, **{"nodes": 2, "agents": False, **settings})
    with pytest.raises(HpctlError) as raised:
        sandbox.up()
    now = time.time()
    hint, _, path = raised.value.hint.partition(": ")
    assert hint == "Read its log"
    log = Path(path)
    took_s = now - log.stat().st_mtime
    print(f"{raised.value}: {took_s:.2f} s after that")
    assert took_s < WITHIN_S
    return str(raised.value), log


@pytest.mark.parametrize("emulator", [True, False])
def test_a_slurmd_that_refuses_its_configuration(sandbox_factory, emulator):
    said, log = failure(sandbox_factory, emulator=emulator, slurm_conf="TaskPlugin=task/missing")
    assert "ip-127-0-1-1: slurmd ended with code 1: " in said
    reason = "cannot create task context for task/missing / error: slurmd initialization failed"
    assert said.endswith(f"error: {reason} (1 more of 2 nodes is down)")
    assert log.read_text().splitlines()[-1].endswith("error: slurmd initialization failed")


@pytest.mark.parametrize("daemon", [True, False])
def test_a_slurmd_that_ends_at_once_on_one_node(sandbox_factory, prefix, daemon):
    (prefix / "sbin/slurmd").unlink()
    stub(prefix / "sbin/slurmd", ENDS, where="ip-127-0-1-2")
    said, log = failure(sandbox_factory, prefix=str(prefix), agents=daemon, daemon=daemon)
    reason = "error: first / error: the stub has ended"
    assert said.endswith(f": ip-127-0-1-2: slurmd ended with code 3: {reason}")
    assert log.name == "slurmd.ip-127-0-1-2.out"


@pytest.mark.parametrize(
    ("name", "port", "what"),
    [
        ("slurmd", SLURMD_PORT, "slurmd of node ip-127-0-1-1 in the sandbox does not run"),
        ("slurmctld", SLURMCTLD_PORT, "slurmctld ended with exit code 3"),
    ],
    ids=["slurmd", "slurmctld"],
)
def test_a_daemon_that_ends_after_it_opened_its_port(sandbox_factory, prefix, name, port, what):
    (prefix / "sbin" / name).unlink()
    stub(prefix / "sbin" / name, LISTENS_AND_ENDS, python=sys.executable, port=port)
    said, log = failure(sandbox_factory, prefix=str(prefix), nodes=1, emulator=False)
    assert said.endswith(f" {what}: error: the stub has ended")
    assert log.read_text().endswith("error: the stub has ended\n")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("origin=127.0.0.1", "munged did not start"),
        ("origin=127.0.1.2", "ip-127-0-1-2: munged ended with code 3"),
    ],
    ids=["head", "node"],
)
def test_a_munged_that_ends_at_once(sandbox_factory, shared, monkeypatch, where, what):
    stub(shared / "munged", ENDS, where=where)
    monkeypatch.setenv("PATH", f"{shared}:{os.environ['PATH']}")
    said, log = failure(sandbox_factory)
    assert said.endswith(f" {what}: error: first / error: the stub has ended")
    assert log.name == "munged.out"
