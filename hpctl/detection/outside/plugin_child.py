"""One run of a plugin as a child, bounded in time and output."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpctl.detection.check import CannotTell

# Run a foreign program with a deadline and a limit on its output, and kill its whole process group.

MAX_OUTPUT = 64 * 1024


_STDERR_KEPT = 2048


_END_S = 1.0
"""How long a killed child may take to end; one in an uninterruptible call does not end."""


_ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}


class Ended(Struct, frozen=True):
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

    def run(self) -> Ended:
        """Run it to its end; then kill what it leaves in its process group.

        Raises CannotTell where it cannot be started, prints more than it may, is not done in
        time, or still hangs from an earlier run.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise CannotTell("still hangs from an earlier run and cannot be killed")
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise CannotTell(f"cannot be run: {error.strerror}") from error
        with child.stdout, child.stderr:  # type: ignore[union-attr]
            try:
                output, complaint = self._read_output(child)
            finally:
                self._kill_group(child)
        return Ended(child.returncode, output, complaint)

    def _read_output(self, child: subprocess.Popen[bytes]) -> tuple[bytes, str]:
        """Read until it has ended, not until its output is closed: a grandchild may keep that
        open."""
        assert child.stdout is not None
        assert child.stderr is not None
        end = time.monotonic() + self._timeout_s
        output, complaint = bytearray(), bytearray()
        ended = os.pidfd_open(child.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe, into in ((child.stdout, output), (child.stderr, complaint)):
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, selectors.EVENT_READ, into)
                selector.register(ended, selectors.EVENT_READ)
                over = False
                while not over:
                    left = end - time.monotonic()
                    if left <= 0:
                        raise CannotTell(f"was not done within {self._timeout_s:g} s and is killed")
                    ready = selector.select(left)
                    over = any(key.fileobj == ended for key, _ in ready)
                    for key, _ in ready:
                        if key.fileobj != ended and not self._take_in(key.fd, key.data):
                            selector.unregister(key.fileobj)
                for pipe, into in ((child.stdout, output), (child.stderr, complaint)):
                    while self._take_in(pipe.fileno(), into):
                        pass
        finally:
            os.close(ended)
        del complaint[:-_STDERR_KEPT]
        return bytes(output), complaint.decode(errors="replace").strip()

    def _kill_group(self, child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._stuck = child

    def _take_in(self, fd: int, into: bytearray) -> bool:
        """Read the available output; return False at its end. Raises CannotTell past `most`."""
        try:
            chunk = os.read(fd, 16384)
        except BlockingIOError:
            return False
        into += chunk
        if len(into) > self._most:
            raise CannotTell(f"prints more than {self._most} bytes and is killed")
        return bool(chunk)
