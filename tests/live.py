"""What the live tests share: one cluster with its daemon, jobs on it, and its journal."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpctl.engine.adapters import make_slurm_command_client, open_journal_reader
from hpctl.engine.config import read_config_file
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import ServiceUnavailable
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
        self.config = read_config_file(sandbox.config_path)
        self.scheduler = make_slurm_command_client(self.config)
        self._marks = Path(sandbox.state_dir) / "begun"
        self._marks.mkdir(exist_ok=True)
        # Scripts of any user say there that they have begun.
        self._marks.chmod(0o1777)

    def state(self) -> EngineState:
        """What the journal amounts to now."""
        store = open_journal_reader(self.config)
        try:
            return replay_events(store.events())
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
        """Submit a script that first says that it has begun: see `begun`."""
        path = Path(self.sandbox.state_dir) / f"job-{time.monotonic_ns()}.sh"
        begins = f'touch "{self._mark("$SLURM_JOB_ID", "${SLURM_RESTART_COUNT:-0}")}"\n'
        path.write_text(header + begins + body + "\n")
        out = Path(self.sandbox.state_dir) / "job-%j.log"
        done = self.sandbox.run(
            ["sbatch", "--parsable", f"--output={out}", *options, str(path)], cwd=path.parent
        )
        return int(done.stdout.strip())

    def _mark(self, number: object, restarts: object) -> Path:
        return self._marks / f"{number}-{restarts}"

    def running(self, number: int, restarts: int = 0) -> bool:
        job = self.job(number)
        return job.state == "RUNNING" and job.restarts >= restarts

    def begun(self, number: int, restarts: int = 0) -> bool:
        """Whether the script of a job from `submit` has begun in the run after so many restarts.

        slurmctld calls a job RUNNING before the node has heard of it. An order to end it then may
        overtake the launch, which the node refuses; slurmctld takes that for a launch that failed,
        and requeues the job once more.
        """
        return self._mark(number, restarts).exists()

    def requeue(self, number: int, verb: str = "requeue") -> None:
        """Requeue a job that runs, as an operator; return once it waits and may start again."""
        restarts = self.job(number).restarts
        until(lambda: self.begun(number, restarts), 60, f"the script of job {number} begins")
        self.sandbox.run(["scontrol", verb, str(number)])
        until(lambda: self.job(number).restarts == restarts + 1, 60, "slurmctld requeues it")
        self.cleared(number)

    def cleared(self, number: int) -> None:
        """Wait until the last run of a job has cleared, and its nodes take the job again.

        A node refuses a credential of the clock's second in which it ended the job's last run
        (hpctl/slurm/rules.py).
        """
        until(lambda: not self.job(number).completing, 60, "its last run has cleared")
        second = int(time.time())
        until(lambda: int(time.time()) > second, 60, "that second is over")

    def end_delay(self, number: int, restarts: int) -> None:
        """End Slurm's delay of a job that waits, as an operator; return once its script begins."""
        self.sandbox.run(["scontrol", "update", f"jobid={number}", "StartTime=now"])
        until(lambda: self.running(number, restarts), 60, f"job {number} runs again")
        until(lambda: self.begun(number, restarts), 60, f"the script of job {number} begins")

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


def until(test: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Wait until a test returns something true, and return that; AssertionError where it does not
    in `timeout_s`, or in a minute where that is longer."""
    limit = time.monotonic() + max(timeout_s, PATIENCE_S)
    while (began := time.monotonic()) < limit:
        try:
            found = test()
            if found:
                return found
        except (ServiceUnavailable, KeyError, IndexError):
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
