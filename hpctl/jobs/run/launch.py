"""The one place of the supervisor that starts processes: srun, scancel, scontrol, notifications.

srun inherits the job's own stdout and stderr where they are files: nothing of ours then stands
between the ranks and their log, so nothing of ours can block them.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpctl.core.hostlist import fold
from hpctl.core.model import JobId, NodeName
from hpctl.errors import HpctlError
from hpctl.slurm.run import End, Ran, Runner

SCANCEL_S = 15.0
"""scancel speaks to each node itself and waits 10 s for one that is frozen."""
NOTIFY_S = 60.0
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that ask a program to end."""

_STEP = re.compile(
    r"^StepId=(\S+) (?:.*?\bState=(\S+) )?.*\bSrunHost:Pid=[^:\s]*:(\d+)", re.MULTILINE
)


class RunningStep(Struct, frozen=True):
    """One running srun. `began` is by the monotonic clock."""

    attempt: int
    nodes: tuple[NodeName, ...]
    process: subprocess.Popen[bytes]
    began: float


class StepLauncher:
    """Starts and ends the steps of one job. Only `start` raises."""

    def __init__(self, job: JobId, bin_dir: Path | None = None) -> None:
        self.job = job
        self.runner = Runner(bin_dir=bin_dir)
        self._srun = str(bin_dir / "srun") if bin_dir else "srun"
        if shutil.which(self._srun) is None:
            raise HpctlError(
                f"no {self._srun}", "Name Slurm's bin directory with --slurm-bin, or set PATH."
            )

    def start(
        self,
        attempt: int,
        nodes: Sequence[NodeName],
        arguments: Sequence[str],
        env: Mapping[str, str],
        sinks: tuple[int, int],
        ended: Callable[[RunningStep, int], None],
    ) -> RunningStep:
        """Start srun; `ended(step, code)` is called once, from a thread, with the shell's code.

        `sinks` are the descriptors of its stdout and stderr. Raises HpctlError.
        """
        try:
            process = subprocess.Popen(
                [self._srun, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sinks[0],
                stderr=sinks[1],
                env=dict(env),
            )
        except OSError as error:
            raise HpctlError(f"cannot start {self._srun}: {error.strerror}", "") from error
        step = RunningStep(attempt, tuple(nodes), process, time.monotonic())

        def wait() -> None:
            code = process.wait()
            ended(step, code if code >= 0 else 128 - code)

        threading.Thread(target=wait, name=f"srun {attempt}", daemon=True).start()
        return step

    def signal(self, step: RunningStep, number: int) -> None:
        """Pass a signal on to the ranks.

        srun forwards SIGUSR1 and the like. Those that ask a program to end it takes for itself:
        SIGINT prints a status, SIGTERM ends the step before the ranks can do anything about it.
        """
        if number in ENDING:
            self._scancel(step, signal.Signals(number).name.removeprefix("SIG"))
            return
        with contextlib.suppress(ProcessLookupError):
            step.process.send_signal(number)

    def kill(self, step: RunningStep) -> None:
        """SIGKILL to all ranks, without Slurm's KillWait. Returns at once."""
        self._scancel(step, "KILL")

    def answering(self, nodes: Sequence[NodeName], seconds: float) -> set[NodeName] | None:
        """Those of these nodes on which a task starts in so many seconds; None: not known.

        A frozen node starts none. One that is only busy giving back its old ranks' memory does.
        """
        ran = self.runner.run(
            "srun", f"--jobid={self.job}", "--overlap", "--mem=0", "--gres=none", "--mpi=none",
            f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
            "--kill-on-bad-exit=0", f"--nodelist={fold(nodes)}",
            "/bin/sh", "-c", "echo $SLURMD_NODENAME", timeout=seconds,
        )  # fmt: skip
        heard = {NodeName(word) for word in ran.text.split()} & set(nodes)
        return heard if heard or ran.end is End.TIMED_OUT else None

    def abandon(self, step: RunningStep) -> None:
        """End srun itself: it would wait for ever for the tasks of a node that is gone."""
        with contextlib.suppress(ProcessLookupError):
            step.process.kill()

    def blocked(self, step: RunningStep, before: Collection[int]) -> bool:
        """Whether slurmctld holds a step back for one of those `before` (process ids of sruns),
        which have ended: it was away at that moment."""
        return blocked(self._steps(), step.process.pid, before)

    def withdraw(self, step: RunningStep) -> None:
        """Have srun give up a step that was not created yet."""
        with contextlib.suppress(ProcessLookupError):
            step.process.terminate()

    def scontrol(self, *arguments: str) -> Ran:
        """One command. A requeue of this job ends its run, and with it this process."""
        return self.runner.run("scontrol", *arguments)

    def notify(self, command: Sequence[str], document: bytes) -> None:
        """Run the policy's command with a JSON document on its stdin. Returns at once."""

        def run() -> None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    list(command), input=document, timeout=NOTIFY_S, check=False,
                    stdout=subprocess.DEVNULL, env=dict(os.environ),
                )  # fmt: skip

        threading.Thread(target=run, name="notify", daemon=True).start()

    def _scancel(self, step: RunningStep, name: str) -> None:
        def run() -> None:
            step_id = step_of(self._steps(), step.process.pid)
            if step_id is None:
                # Not created yet, so srun is all there is of it; or gone, and so will srun be.
                self.abandon(step)
                return
            self.runner.run("scancel", f"--signal={name}", step_id, timeout=SCANCEL_S)

        threading.Thread(target=run, name=f"scancel {name}", daemon=True).start()

    def _steps(self) -> str:
        return self.scontrol("-o", "show", "step", str(self.job)).text


def step_of(text: str, pid: int) -> str | None:
    """The StepId of the srun `pid` in `scontrol -o show step`."""
    return next((match[1] for match in _STEP.finditer(text) if int(match[3]) == pid), None)


def blocked(text: str, pid: int, before: Collection[int]) -> bool:
    """Whether the step of srun `pid` is pending while one of those `before` is still listed."""
    states = {int(match[3]): match[2] for match in _STEP.finditer(text)}
    return states.get(pid) == "PENDING" and any(each in states for each in before)
