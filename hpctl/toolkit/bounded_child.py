"""A program that runs within bounds: of time, of what it says, and of what it leaves behind.

The engine of everything that runs a program which may hang or be hostile. What it waits for is the
end of the process and not of its output, which a grandchild may keep open. A process that sleeps in
the kernel (state D), as on a dead file server, is reached by no signal: it is left, and reaped by a
later start.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final

_CHUNK: Final = 64 * 1024
unreaped: list[subprocess.Popen[bytes]] = []
"""Killed programs that had not ended when they were given up."""
_lock = threading.Lock()


class ChildTimeoutError(Exception):
    """The program is not done in time."""


class ChildOutputLimitError(Exception):
    """The program says more than it may."""


class BoundedSubprocess:
    """One program that has started. `end` has to follow, whatever happens. For one thread.

    `stdout` and `stderr` are as of subprocess.Popen; pipes are for `read`. `own_group`: a separate
    session and process group, which `end` kills as a whole; without it the program stays in
    that of its parent, and `end` kills the program.
    """

    def __init__(  # noqa: PLR0913 -- settings of Popen, by keyword with defaults
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = "/",
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.PIPE,
        stderr: IO[bytes] | int | None = subprocess.PIPE,
        own_group: bool = True,
    ) -> None:
        """Start it. Raises OSError."""
        _reap_abandoned_children()
        self._own_group = own_group
        self.process = subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=directory,
            start_new_session=own_group,
        )

    def read(self, ends: float, most: int) -> Iterator[tuple[IO[bytes], bytes]]:
        """Yield what it says until it has ended, each with its pipe, and then what is left in them.

        Raises ChildTimeoutError after `ends`, by time.monotonic(), and ChildOutputLimitError where
        one pipe has more than `most` bytes; as many come before.
        """
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]
        left = dict.fromkeys(pipes, most)
        ended = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe in pipes:
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, selectors.EVENT_READ, pipe)
                selector.register(ended, selectors.EVENT_READ)
                over = False
                while not over:
                    ready = _wait_for_ready_pipes(selector, ends)
                    over = any(key.fd == ended for key, _ in ready)
                    for key, _ in ready:
                        if key.fd == ended:
                            continue
                        chunk = _read_available_bytes(key.data)
                        if chunk == b"":
                            selector.unregister(key.fileobj)
                        elif chunk is not None:
                            yield from _yield_bounded_chunk(key.data, chunk, left)
            for pipe in pipes:
                while chunk := _read_available_bytes(pipe):
                    yield from _yield_bounded_chunk(pipe, chunk, left)
        finally:
            os.close(ended)

    def wait(self, ends: float) -> bool:
        """Return whether it has ended before `ends`, by time.monotonic(). It is not reaped yet."""
        if self.process.returncode is not None:
            return True
        ended = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ended, selectors.EVENT_READ)
                return bool(selector.select(max(0.0, ends - time.monotonic())))
        finally:
            os.close(ended)

    def end(self, patience_s: float) -> int | None:
        """Kill what still runs, close the pipes, and return its exit code (negative: the signal);
        None where it has not ended after `patience_s`."""
        self._kill_process()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            with _lock:
                unreaped.append(self.process)
            return None

    def _kill_process(self) -> None:
        # One that was reaped has given its number back: another group may have it.
        if self.process.returncode is not None:
            return
        if not self._own_group:
            self.process.kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _wait_for_ready_pipes(
    selector: selectors.BaseSelector, ends: float
) -> list[tuple[selectors.SelectorKey, int]]:
    """Return what is ready. Raises ChildTimeoutError after `ends`."""
    wait = ends - time.monotonic()
    if wait <= 0:
        raise ChildTimeoutError
    return selector.select(wait)


def _read_available_bytes(pipe: IO[bytes]) -> bytes | None:
    """Return what a pipe has; nothing at its end, None where it has nothing yet."""
    try:
        return os.read(pipe.fileno(), _CHUNK)
    except BlockingIOError:
        return None


def _yield_bounded_chunk(
    pipe: IO[bytes], chunk: bytes, left: dict[IO[bytes], int]
) -> Iterator[tuple[IO[bytes], bytes]]:
    """Yield the part of a chunk that its pipe may still say. Raises ChildOutputLimitError for
    more."""
    yield pipe, chunk[: left[pipe]]
    left[pipe] -= len(chunk)
    if left[pipe] < 0:
        raise ChildOutputLimitError


def _reap_abandoned_children() -> None:
    with _lock:
        unreaped[:] = [each for each in unreaped if each.poll() is None]
