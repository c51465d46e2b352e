"""A sandbox ends completely, however it ends, and touches nothing of anybody else's."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from hpctl.sandbox import packages
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.proctree import list_pids, read_process_environment, read_process_start_time
from hpctl.toolkit.errors import HpctlError
from tests.process import become_ordinary_user, room, run_text
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.timeout(120)]

SMALL = {"nodes": 2, "agents": False, "emulator": False}
ROOT = Path(__file__).resolve().parents[2]


def processes_of(state: Path) -> list[int]:
    """Everything that has a file or a word of this sandbox on its command line or environment."""
    mine = os.getpid()
    found = []
    for pid in list_pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        env = " ".join(read_process_environment(pid).values())
        if (
            pid != mine
            and read_process_start_time(pid)
            and (f"{state}/" in arguments + env or f"{state}\0" in arguments)
        ):
            found.append(pid)
    return found


def assert_all_gone(state: Path) -> None:
    until(lambda: not processes_of(state), every=0.1)


def with_escaping_job(sandbox: Sandbox) -> int:
    """Run a job whose process leaves session, parent and environment behind; that process."""
    mark = sandbox.state_dir / "escaped"
    script = f"env -i setsid sh -c 'echo $$ > {mark}; exec sleep 600' & sleep 600"
    sandbox.run(["sbatch", "-D", "/", "-o", "/dev/null", "--wrap", script])
    return int(until(lambda: mark.exists() and mark.read_text()))


def supervisor_of(sandbox: Sandbox) -> int:
    return int(sandbox.status()["supervisor_pid"])


@pytest.fixture
def state():
    with room() as base:
        yield base / "s"
        Sandbox("cleanup", state_dir=base / "s").down()


def test_down_leaves_no_process_and_no_file(state):
    sandbox = Sandbox("x", state_dir=state, **SMALL).up()
    escaped = with_escaping_job(sandbox)
    assert len(processes_of(state)) > 8
    sandbox.down()
    assert processes_of(state) == []
    assert not read_process_start_time(escaped)
    assert list(state.parent.iterdir()) == []
    sandbox.down()


@pytest.mark.parametrize(
    "victim",
    ["both", *(pytest.param(v, marks=pytest.mark.nightly) for v in ("supervisor", "keeper"))],
)
def test_a_killed_sandbox_leaves_nothing(state, victim):
    sandbox = Sandbox("x", state_dir=state, **SMALL).up()
    escaped = with_escaping_job(sandbox)
    supervisor = supervisor_of(sandbox)
    keeper = int((state / "keeper.pid").read_text().split()[0])
    for pid in {"supervisor": [supervisor], "keeper": [keeper]}.get(victim, [keeper, supervisor]):
        with suppress(ProcessLookupError):  # the supervisor ends with its keeper
            os.kill(pid, signal.SIGKILL)
    assert_all_gone(state)
    sandbox.down()
    if victim != "both":
        assert not read_process_start_time(escaped)
    elif read_process_start_time(escaped):
        # With both gone at once nothing can follow a process without a name: the one limit.
        os.kill(escaped, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize("half_way", [False, True])
def test_a_killed_starter_takes_its_sandbox_along(state, half_way):
    wait = "lambda line: print(line, flush=True), detach=True" if half_way else ""
    code = (
        "import time; from hpctl.sandbox.api import Sandbox\n"
        f"Sandbox('x', state_dir={str(state)!r}, **{SMALL!r}).up({wait})\n"
        "print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as starter:
        line = starter.stdout.readline()
        assert half_way or (line == "up\n" and processes_of(state))
        starter.kill()
    assert_all_gone(state)


@pytest.mark.nightly
def test_a_generous_umask_is_no_trouble(sandbox_factory):
    umask = os.umask(0o002)
    try:
        sandbox = sandbox_factory(nodes=1, agents=False, emulator=False)
    finally:
        os.umask(umask)
    assert "idle" in sandbox.run(["sinfo", "-h", "-o", "%T"]).stdout


@pytest.mark.nightly
def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch, state, tmp_path
):
    with pytest.raises(HpctlError, match=f"{tmp_path}/bin"):
        packages.find_sandbox_programs(str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HpctlError, match="slurmctld, slurmd, scontrol") as raised:
        Sandbox("x", state_dir=state, **SMALL).up()
    assert "munge slurm-client slurmctld slurmd" in raised.value.hint
    assert not state.exists()


@pytest.mark.nightly
def test_a_refused_configuration_is_quoted_and_nothing_stays(sandbox_factory):
    sandbox = sandbox_factory(up=False, slurm_conf="NoSuchKey=1", **SMALL)
    with pytest.raises(HpctlError, match=r"slurmctld did not start: .*NoSuchKey"):
        sandbox.up()
    assert_all_gone(sandbox.state_dir)
    assert not sandbox.running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_can_run_one(state):
    state.parent.chmod(0o777 | 0o1000)
    code = (
        "from hpctl.sandbox.api import Sandbox\n"
        f"with Sandbox('x', state_dir={str(state)!r}, **{SMALL!r}) as one:\n"
        "    arguments = ['srun', '-N2', '--gres=gpu:8', 'id', '-u']\n"
        "    print(one.run(arguments).stdout)"
    )
    done = run_text(
        [*become_ordinary_user(), sys.executable, "-c", code],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
    )
    assert done.stdout.split() == [str(pwd.getpwnam("daemon").pw_uid)] * 2, done.stderr
    assert not state.exists()


@pytest.mark.nightly
def test_the_command_line_starts_shows_and_ends_one(tmp_path):
    home = Path(tempfile.mkdtemp(prefix="hpctl-"))
    home.chmod(0o755)
    env = {**os.environ, "XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}

    def hpctl(*arguments: str, code: int = 0) -> str:
        line = [sys.executable, "-m", "hpctl", "sandbox", *arguments]
        done = run_text(line, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    try:
        assert "sandbox default does not run" in hpctl("status", code=3)
        hpctl("up", "--nodes", "2", "--groups", "2", "--hardware", "efa=2")
        shown = json.loads(hpctl("status", "--json"))
        assert [node["group"] for node in shown["nodes"]] == ["worker-1", "worker-2"]
        node = shown["nodes"][0]["node"]
        assert hpctl("exec", "--", "sinfo", "-h", "-p", "worker-2", "-o", "%N %T").split() == [
            shown["nodes"][1]["node"],
            "idle",
        ]
        hpctl("inject", node, "xid", "48", "--pci", "0000:53:00")
        hpctl("inject", node, "xid", "much", code=2)
        hpctl("inject", "api", "throttle", "calls=1")
        port = "/sys/class/infiniband/rdmap79s0/ports/1/state"
        assert "1: DOWN" in hpctl("inject", node, "file", "--path", port, "--text", "1: DOWN")
        hpctl("inject", node, "file", "--path", port, "--remove")
        hpctl("inject", node, "file", "--path", port, "--remove", code=1)
        hpctl("inject", node, "file", "--text", "1: DOWN", code=2)
        hpctl("inject", node, "hardware", "--kind", "efa", "--count", "1")
        hpctl("inject", node, "hardware", "--kind", "efa", code=2)
        hpctl("inject", node, "hardware", "--kind", "floppy", "--count", "1", code=1)
        assert "emulates no GPUs" in hpctl("inject", node, "gpu", "--set", "count=7", code=1)
        exports = json.loads(hpctl("env", "--json"))
        assert f"export SLURM_CONF={exports['SLURM_CONF']}" in hpctl("env")
        assert "slurmctld version" in hpctl("logs", "slurmctld", "-n", "1000")
        hpctl("down")
        assert "sandbox default does not run" in hpctl("status", code=3)
        assert_all_gone(home)
    finally:
        hpctl("down")
        shutil.rmtree(home)
