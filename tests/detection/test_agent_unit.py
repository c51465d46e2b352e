"""What the agent can see with no more of root's powers than its unit leaves it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import run_text

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "lifecycle_scripts/systemd/hpctl-agent.service"
NOBODY = "65534"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,  # where root is at hand, as for the sandbox's network namespaces
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has powers to give up"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)"),
]


def capabilities() -> list[str]:
    (line,) = [t for t in UNIT.read_text().splitlines() if t.startswith("CapabilityBoundingSet=")]
    return [name.removeprefix("CAP_").lower() for name in line.partition("=")[2].split()]


def confined(names: list[str], *args: str) -> str:
    """What a command prints when it runs as the unit's program would."""
    kept = ",".join(["-all", *(f"+{name}" for name in names)])
    confine = ["setpriv", f"--bounding-set={kept}", "--inh-caps=-all", "--no-new-privs", "--"]
    done = run_text([*confine, *args], env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"})
    return done.stdout


@pytest.fixture
def anothers_task():
    """A task of a user that is not root, asleep in the kernel."""
    args = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    with subprocess.Popen([*args, sys.executable, "-c", SLEEP], stdout=subprocess.PIPE) as task:
        assert task.stdout.readline() == b"ready\n"
        yield task.pid
        task.kill()


SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
WHERE = """
import sys
from pathlib import Path
from hpctl.detection.check import CheckedMachine
from hpctl.detection.checks.host_dstate import read_task_kernel_stack
print(read_task_kernel_stack(CheckedMachine(), int(sys.argv[1])))
"""


def test_where_another_users_task_sleeps_shows(anothers_task: int) -> None:
    look = (sys.executable, "-c", WHERE, str(anothers_task))
    assert "sleep" in confined(capabilities(), *look)
    # This is what CAP_SYS_PTRACE is in the unit for.
    without = [name for name in capabilities() if name != "sys_ptrace"]
    assert confined(without, *look).strip() == ""


def test_the_kernels_log_is_open_to_it() -> None:
    look = "import os; os.close(os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)); print('open')"
    assert confined(capabilities(), sys.executable, "-c", look).strip() == "open"
