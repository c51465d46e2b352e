"""Children that touch what may hang, so that the agent never does.

A call into a dead file server or a dead disk can sleep in the kernel where no signal reaches it. So
a small program makes the call (`stat`, `dd`; no shell, no second Python), and the agent only polls
whether it has ended. One that does not end is killed once, because that frees what can be freed,
and is then abandoned: it is never waited for, and its key gets no second child before it has ended.
So however long a mount hangs, it has one sleeping process and not one for every run.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from hpctl.detection.check import CheckResultUnknownError, DeviceAbsentError

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class ProbeResult(Struct, frozen=True):
    """The output of a child that has ended. `exit_code` is negative for a signal."""

    exit_code: int
    out: str
    err: str


class PendingProbe(Struct, frozen=True):
    """No answer yet; the first question without one is `age_s` old, however many were asked."""

    age_s: float


class _ProbeProcess(Struct):
    process: subprocess.Popen[str]
    started: float
    given_up: bool = False


class ProbeRunner:
    """At most one child for each key. For one thread at a time.

    `deadline_s` is how long a child may take before it is abandoned. A child's output must fit into
    a pipe (64 KiB): it is read only after its end.
    """

    def __init__(
        self,
        deadline_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare. `environment` is added to the small environment of every child."""
        self.deadline_s = deadline_s
        self._environment = environment or {}
        self._monotonic = monotonic
        self._out: dict[str, _ProbeProcess] = {}
        self._unanswered: dict[str, float] = {}
        self._looked = False

    def wait_s(self, usual_s: float) -> float:
        """Return how long to wait: `usual_s`, but the whole deadline for the first run.

        A repeated run can leave a child to the next one; a single run needs the answer.
        """
        first, self._looked = not self._looked, True
        return max(usual_s, self.deadline_s) if first else usual_s

    def ask(
        self, questions: Mapping[str, Sequence[str]], wait_s: float
    ) -> Mapping[str, ProbeResult | PendingProbe]:
        """Start each program and wait for all of them together, for `wait_s` at most.

        A child without an answer by then is a PendingProbe, and the next call with its key polls it
        again. Raises DeviceAbsentError where there is no such program, CheckResultUnknownError
        where none can be started.
        """
        for key, command in questions.items():
            if not self._is_probe_running(key):
                self._start_probe(key, command)
        self._wait_for_probes(questions, wait_s)
        return {key: self._poll_probe(key) for key in questions}

    def forget(self, keep: Mapping[str, object] | frozenset[str]) -> None:
        """Drop what is known of all other keys: they no longer exist."""
        for key in self._unanswered.keys() - set(keep):
            del self._unanswered[key]
        for key in self._out.keys() - set(keep):
            self._kill_probe_process(self._out[key])
            self._is_probe_running(key)

    def out(self) -> int:
        """Return how many children have not ended."""
        return sum(self._is_probe_running(key) for key in list(self._out))

    def _is_probe_running(self, key: str) -> bool:
        """Return whether the key's last child still runs; one that has ended is reaped and its
        output dropped."""
        child = self._out.get(key)
        if child is None:
            return False
        if child.process.poll() is None:
            return True
        _close_pipes(child.process)
        del self._out[key]
        return False

    def _start_probe(self, key: str, command: Sequence[str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                cwd="/",
                env={**ENVIRONMENT, **self._environment},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise DeviceAbsentError(f"no {command[0]}") from error
        except OSError as error:
            raise CheckResultUnknownError(
                f"{command[0]} cannot be started: {error.strerror}"
            ) from error
        now = self._monotonic()
        self._out[key] = _ProbeProcess(process, now)
        self._unanswered.setdefault(key, now)

    def _wait_for_probes(self, keys: Mapping[str, object], wait_s: float) -> None:
        until, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        children = [self._out[key] for key in keys]
        running = [child.process for child in children if not child.given_up]
        while running := [process for process in running if process.poll() is None]:
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _poll_probe(self, key: str) -> ProbeResult | PendingProbe:
        child = self._out[key]
        exit_code = child.process.poll()
        if exit_code is None or child.given_up:
            now = self._monotonic()
            if now - child.started >= self.deadline_s:
                self._kill_probe_process(child)
            return PendingProbe(now - self._unanswered[key])
        out, err = child.process.communicate()
        del self._out[key], self._unanswered[key]
        return ProbeResult(exit_code, out, err)

    @staticmethod
    def _kill_probe_process(child: _ProbeProcess) -> None:
        if not child.given_up:
            child.given_up = True
            child.process.kill()


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
