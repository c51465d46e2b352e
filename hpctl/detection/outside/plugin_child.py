"""One run of a plugin as a child, bounded in time and output."""

import subprocess
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpctl.detection.check import CheckResultUnknownError
from hpctl.toolkit.bounded_child import BoundedSubprocess, ChildOutputLimitError, ChildTimeoutError

MAX_OUTPUT = 64 * 1024


_STDERR_KEPT = 2048


END_S = 1.0
"""How long a killed child may take to end; one in an uninterruptible call does not end."""


_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}


class PluginProcessResult(Struct, frozen=True):
    """The end of a program: its exit status (negative: the signal) and what it printed."""

    status: int
    output: bytes
    complaint: str


class PluginProcess:
    """One program that is run repeatedly, never twice in parallel.

    `environment` and `most` (bytes of output) are a plugin's unless others are given.
    """

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float,
        environment: Mapping[str, str] = _ENVIRONMENT,
        most: int = MAX_OUTPUT,
    ) -> None:
        self._command, self._timeout_s = tuple(command), timeout_s
        self._environment, self._most = environment, most
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(self) -> PluginProcessResult:
        """Run it to its end; then kill what it leaves in its process group.

        Raises CheckResultUnknownError where it cannot be started, prints more than it may, is not
        done in time, or still hangs from an earlier run.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise CheckResultUnknownError("still hangs from an earlier run and cannot be killed")
        try:
            child = BoundedSubprocess(self._command, environment=self._environment)
        except OSError as error:
            raise CheckResultUnknownError(f"cannot be run: {error.strerror}") from error
        output, complaint = bytearray(), bytearray()
        status: int | None = None
        try:
            ends = time.monotonic() + self._timeout_s
            for pipe, chunk in child.read(ends, self._most):
                into = output if pipe is child.process.stdout else complaint
                into += chunk
        except ChildTimeoutError as error:
            raise CheckResultUnknownError(
                f"was not done within {self._timeout_s:g} s and is killed"
            ) from error
        except ChildOutputLimitError as error:
            raise CheckResultUnknownError(
                f"prints more than {self._most} bytes and is killed"
            ) from error
        finally:
            status = child.end(END_S)
            if status is None:
                self._stuck = child.process
        if status is None:
            raise CheckResultUnknownError("has ended, and its process cannot be reaped")
        said = complaint[-_STDERR_KEPT:].decode(errors="replace").strip()
        return PluginProcessResult(status, bytes(output), said)
