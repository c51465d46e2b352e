"""One NVML child as the agent holds it: its socket, its messages, and the page of its calls."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import msgspec

from hpctl.agent.nvml.inflight import InFlight
from hpctl.agent.nvml.snapshot import Event, Snapshot
from hpctl.core.compat import SAFE_PATH

MODULE = "hpctl.agent.nvml.child"
LENGTH = struct.Struct(">I")
LARGEST = 4 << 20
"""Bytes of one message; a sweep of 16 GPUs is under 100 kB."""
CHUNK = 1 << 16
CHUNKS_A_READ = 16
"""So that a child which does nothing but write keeps the agent from nothing."""


class Sweep(msgspec.Struct, tag="sweep", tag_field="kind", frozen=True):
    """A sweep, and when it was done: a hung call may lie between that and its `at`."""

    snapshot: Snapshot
    done: float


class Happened(msgspec.Struct, tag="event", tag_field="kind", frozen=True):
    """The driver told of an event."""

    event: Event


class Failed(msgspec.Struct, tag="failed", tag_field="kind", frozen=True):
    """The child's last words."""

    text: str


Message = Sweep | Happened | Failed
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Closed(Exception):
    """The child said its last, or something that is no message. Its message says how."""


class Child:
    """A running child. Nothing here waits for it, and nothing here kills it."""

    def __init__(self, every_s: float, env: Mapping[str, str]) -> None:
        """Start it. `env` is the environment that it is to have. Raises OSError."""
        self.started = time.monotonic()
        self._page = InFlight.create()
        self._buffer = bytearray()
        self.words = ""
        """What it said of its own failure."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # No site: it costs memory, and the paths are ours in any case.
                    [sys.executable, "-S", *SAFE_PATH, MODULE, str(every_s), str(self._page.fd)],
                    stdin=theirs.fileno(),
                    # Not our own: a child that hangs would hold them open after we are gone.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[self._page.fd],
                    env=_environment(env),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                self._page.close()
                raise
        ours.setblocking(False)
        self.socket = ours

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def messages(self) -> Iterator[Message]:
        """What came since the last call. Raises Closed after the last message."""
        ended = self._fill()
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > LARGEST:
                raise Closed(f"announced a message of {length} bytes")
            if len(self._buffer) < LENGTH.size + length:
                break
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            try:
                message = _decoder.decode(frame)
            except msgspec.DecodeError as error:
                raise Closed(f"sent no message: {error}") from error
            if isinstance(message, Failed):
                self.words = message.text
            yield message
        if ended:
            raise Closed("has ended")

    def _fill(self) -> bool:
        """Read what there is; True at the end."""
        for _ in range(CHUNKS_A_READ):
            try:
                chunk = self.socket.recv(CHUNK)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not chunk:
                return True
            self._buffer += chunk
        return False

    def in_call(self) -> tuple[float, str] | None:
        """Since when (monotonic seconds) it is inside which call of the driver; None: in none."""
        return self._page.oldest()

    def exit_status(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def let_go(self) -> None:
        """Close the socket: the child ends by itself, as soon as no driver call holds it."""
        self.socket.close()

    def forget(self) -> None:
        """Free what is left of one that has exited, or that is left to itself for ever."""
        self.let_go()
        self._page.close()
        # One that still runs is init's to bury; Popen need not warn of it.
        if self._process.returncode is None:
            self._process.returncode = 0

    def wait(self, seconds: float) -> bool:
        """Wait so long for its end; True when it has exited."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return self.exit_status() is not None
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(seconds * 1000)
        finally:
            os.close(fd)
        return self.exit_status() is not None


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """The given one, with our own import paths, and one heap for both threads."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    return {**env, "PYTHONPATH": paths, "MALLOC_ARENA_MAX": "1"}
