"""What the live tests share: one cluster with its daemon, jobs on it, and its journal."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpctl.engine.adapters import make_scheduler, open_reader
from hpctl.engine.config import load
from hpctl.engine.journal.state import State, replay
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import Unavailable
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.waiting import PATIENCE_S

ROOT = str(Path(__file__).resolve().parents[1])
FAST = {
    "node": {
        "verify_healthy_s": 0.5, "remedy_after_s": 0.0, "step_retry_s": 1.0, "doubt_window_s": 3.0,
    },
    "job": {"prove_s": 1.0, "step_retry_s": 1.0}, "cluster": {"busy_poll_s": 0.3, "poll_s": 1.0},
    "catalogue": {"xid-79": {"ladder": ["replace"]}}, "loop": {"reconcile_s": 2.0},
}  # fmt: skip
EAGER = "SchedulerParameters=batch_sched_delay=0\n"
"""What `hpctl doctor` advises: else a restarted job waits up to 3 s for slurmctld to look."""
SLEEPER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --gres=gpu:8\n"


class Live:
    """A sandbox seen through Slurm, the journal and the emulator's log of calls."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.config = load(sandbox.config_path)
        self.scheduler = make_scheduler(self.config)

    def state(self) -> State:
        """What the journal amounts to now."""
        store = open_reader(self.config)
        try:
            return replay(store.events())
        finally:
            store.close()

    def node(self, name: str) -> SlurmNode:
        return self.scheduler.view().nodes[name]

    def job(self, number: int) -> SlurmJob:
        return self.scheduler.view().jobs[number]

    def sbatch(self, script: Path, *options: str) -> int:
        """Submit a script by `hpctl sbatch` in its own directory, with the log in `log` there."""
        hpctl = [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "--output=log"]
        done = self.sandbox.run(
            [*hpctl, *options, str(script)], env={"PYTHONPATH": ROOT}, cwd=script.parent
        )
        return int(done.stdout.split()[-1])

    def submit(self, body: str, *options: str, header: str = SLEEPER) -> int:
        path = Path(self.sandbox.state_dir) / f"job-{time.monotonic_ns()}.sh"
        path.write_text(header + body + "\n")
        out = Path(self.sandbox.state_dir) / "job-%j.log"
        done = self.sandbox.run(
            ["sbatch", "--parsable", f"--output={out}", *options, str(path)], cwd=path.parent
        )
        return int(done.stdout.strip())

    def running(self, number: int, restarts: int = 0) -> bool:
        job = self.job(number)
        return job.state == "RUNNING" and job.restarts >= restarts

    def node_recoveries(self) -> list[NodeRecovery]:
        return list(self.state().nodes.values())

    def job_recoveries(self) -> list[JobRecovery]:
        return list(self.state().jobs.values())

    def calls(self, operation: str) -> int:
        """How many of these calls the cloud has accepted or refused."""
        return len(self.sandbox.calls(operation))

    def instance(self, node: str) -> str:
        rows = [n for n in self.sandbox.status()["nodes"] if n["node"] == node]
        return str(rows[0]["instance_id"])

    def explained(self, target: object) -> str:
        """What `hpctl explain` prints, on one line."""
        return " ".join(self.hpctl("explain", str(target), check=False).split())

    def hpctl(self, *text: str, check: bool = True) -> str:
        """Run `hpctl` as an operator would."""
        done = self.sandbox.run([sys.executable, "-m", "hpctl", *text], check=check)
        return done.stdout


def until(test: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for something that must come; AssertionError where it does not."""
    limit = time.monotonic() + max(timeout_s, PATIENCE_S)
    while (began := time.monotonic()) < limit:
        try:
            if test():
                return
        except (Unavailable, KeyError, IndexError):
            pass
        # Looking forks scontrol or reads the journal: no more than half of the time.
        time.sleep(min(0.5, max(0.1, time.monotonic() - began)))
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def unkilled(sandbox: Sandbox, log: str) -> bool:
    """Whether a run went on without a node because Slurm had not ended a rank there at SIGKILL.

    Slurm must say so itself, or it was hpctl that did not kill it: after 60 s slurmstepd gives up,
    and the node is drained ("Kill task failed"; seen on 22.05.8 and 24.11.5, rarely).
    """
    if "its ranks did not end within" not in log:
        return False
    logs = sandbox.spec.layout.logs
    gave_up = "DUE TO JOB NOT ENDING WITH SIGNALS"
    until(
        lambda: any(gave_up in p.read_text(errors="replace") for p in logs.glob("**/*slurmd*.log")),
        90,
        "slurmstepd says that it could not end a rank",
    )
    return True
