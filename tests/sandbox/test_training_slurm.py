"""The wrapper and the example job on a real Slurm: submitted, requeued, resumed, same bits."""

import json
import sys
import time
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]
AT_ONCE = "SchedulerParameters=batch_sched_delay=0\n"


def submit(slurm: Sandbox, *arguments: str) -> str:
    done = slurm.run(
        [sys.executable, "-m", "hpctl", "sbatch", "--parsable", *arguments],
        env={"PYTHONPATH": ROOT},
    )
    return done.stdout.strip()


def field(slurm: Sandbox, job: str, name: str) -> str:
    text = slurm.run(["scontrol", "--oneliner", "show", "job", job]).stdout
    found = [word for word in text.split() if word.startswith(f"{name}=")]
    return found[0].partition("=")[2] if found else ""


def field_of_node(slurm: Sandbox, node: str, name: str) -> str:
    text = slurm.run(["scontrol", "--oneliner", "show", "node", node]).stdout
    (found,) = (word for word in text.split() if word.startswith(f"{name}="))
    return found.partition("=")[2]


def wait(slurm: Sandbox, job: str, *states: str, timeout: float = 120.0) -> str:
    deadline = time.monotonic() + timeout
    while (state := field(slurm, job, "JobState")) not in states:
        assert time.monotonic() < deadline, f"job {job} is {state}, not {states}"
        time.sleep(0.2)
    return state


def wait_for_text(path: Path, text: str, timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"no {text!r} in {path}"
        time.sleep(0.1)


def requeue(slurm: Sandbox, job: str) -> None:
    """Requeue a running job and have it start at once, as recovery does."""
    slurm.run(["scontrol", "requeue", job])
    wait(slurm, job, "PENDING", timeout=120)
    time.sleep(1.1)  # its nodes kill it when it comes back in the second it was ended in
    deadline = time.monotonic() + 90
    while field(slurm, job, "JobState") in ("PENDING", "COMPLETING"):
        if time.monotonic() > deadline:
            shown = slurm.run(["scontrol", "show", "job", job]).stdout
            raise AssertionError(f"job {job} did not start again:\n{shown}")
        slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False)
        time.sleep(1)  # on a busy machine it may have run and ended before we look again


MEET = """#!/bin/sh -eu
#SBATCH --nodes=2 --ntasks-per-node=1
export HPCTL_ELASTIC_SECRET=0123456789abcdef
srun "$HPCTL_PYTHON" -m hpctl.jobs.elastic -- sh -c 'echo "rank $RANK meets at $MASTER_ADDR"'
exec srun "$HPCTL_PYTHON" -m hpctl.sandbox.training --steps 3 --step-s 0
"""


@pytest.mark.parametrize("node_names", ["ip", "group"])
def test_ranks_meet_at_the_address_that_slurm_has_whatever_its_nodes_are_called(
    sandbox_factory, shared, node_names
):
    plain = {"nodes": 3, "agents": False, "emulator": False, "slurm_conf": AT_ONCE}
    slurm = sandbox_factory(node_names=node_names, **plain)
    script, out = shared / "job.sh", shared / "out"
    script.write_text(MEET)
    # Not the first nodes: an address that is made up from the rank would pass there.
    last = slurm.nodes[1:]
    arguments = [f"--nodelist={','.join(last)}", f"--checkpoint-dir={shared}/save"]
    job = submit(slurm, *arguments, "-o", str(out), str(script))
    assert wait(slurm, job, "COMPLETED", "FAILED") == "COMPLETED", out.read_text()
    address = field_of_node(slurm, last[0], "NodeAddr")
    assert address.startswith("127.0.1.")
    output = sorted(line for line in out.read_text().splitlines() if line.startswith("rank "))
    assert output == [f"rank {rank} meets at {address}" for rank in (0, 1)]
    assert "done: 3 steps" in out.read_text()


def test_nothing_whole_ends_the_job_with_93_and_the_reason(slurm, shared):
    save, out = shared / "save", shared / "out"
    (save / "step-1").mkdir(parents=True)
    (save / "step-1/manifest.json").write_text(json.dumps({"format": "hpctl-checkpoint"}))
    script = shared / "job.sh"
    script.write_text("#!/bin/bash\necho the job itself ran\n")
    job = submit(slurm, "--checkpoint-dir", str(save), "-o", str(out), str(script))
    assert wait(slurm, job, "COMPLETED", "FAILED") == "FAILED"
    assert field(slurm, job, "ExitCode") == "93:0"
    assert "not starting from scratch" in out.read_text()
    assert "the job itself ran" not in out.read_text()
    again = submit(
        slurm, "--checkpoint-dir", str(save), "-o", str(out), "--export=ALL,HPCTL_RESUME=scratch",
        str(script),
    )  # fmt: skip
    assert wait(slurm, again, "COMPLETED", "FAILED") == "COMPLETED"
    assert "the job itself ran" in out.read_text()
