"""NVML for the agent: the newest sweep and the events of a child that may hang, and may crash.

A call into the driver can block for minutes or forever, and a process that is killed in one can
wedge the GPU. So the child is never killed. One that has been inside a call for longer than
`deadline_s`, `misses` times over, is abandoned: the hang is reported, and no other child is started
in parallel. When its call returns, its results are still used, and it is released; once it has
exited, a new one is started. A child that crashes is started again. Each start after a failure
waits twice as long as the one before.

Time in which the child is stopped, frozen or starved, or in which the agent itself does not run, is
not the driver's (`hpctl.detection.nvml.pauses`): it counts towards no deadline, and the state is
then reported as unknown.
"""

import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpctl.detection.check import CheckResultUnknownError, DeviceAbsentError, DriverHungError
from hpctl.detection.driver_files import find_nvml_library
from hpctl.detection.machine import list_gpu_pci_addresses
from hpctl.detection.nvml.driver import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    DriverCallsInFlight,
    PendingDriverCall,
)
from hpctl.detection.nvml.pauses import NvmlChildPauseTracker, sample_thread_state
from hpctl.detection.nvml.snapshot import NvmlEvent, NvmlSnapshot
from hpctl.toolkit.compat import SAFE_PATH

#
# One NVML child as the agent uses it: its socket, its messages, and the page of its calls.

MODULE = "hpctl.detection.nvml.child"
LENGTH = struct.Struct(">I")
LARGEST = 4 << 20
"""Bytes of one message; a sweep of 16 GPUs is under 100 kB."""
CHUNK = 1 << 16
CHUNKS_A_READ = 16
"""The most chunks of one read, so that a child that writes without end does not block the agent."""


class NvmlSweepMessage(msgspec.Struct, tag="sweep", tag_field="kind", frozen=True):
    """A sweep, and when it ended: a hung call may lie between its `at` and that."""

    snapshot: NvmlSnapshot
    done: float


class NvmlEventMessage(msgspec.Struct, tag="event", tag_field="kind", frozen=True):
    """An event that the driver reported."""

    event: NvmlEvent


class NvmlFailureMessage(msgspec.Struct, tag="failed", tag_field="kind", frozen=True):
    """The child's last message."""

    text: str


Message = NvmlSweepMessage | NvmlEventMessage | NvmlFailureMessage
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class NvmlChildClosedError(Exception):
    """The error of a child that sent its last message, or an invalid one; the text names which."""


class NvmlChildProcess:
    """A running child. No method waits for it without a limit or kills it."""

    def __init__(self, every_s: float, env: Mapping[str, str], library: str = "") -> None:
        """Start the child. Raises OSError.

        `env` is its environment, `library` the path of NVIDIA's library, used where the loader
        finds none.
        """
        self.started = time.monotonic()
        self._page = DriverCallsInFlight.create()
        self._buffer = bytearray()
        self.last_output = ""
        """The failure that it reported."""
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(every_s), str(self._page.fd), library]
            try:
                self._process = subprocess.Popen(
                    # Without `site`: it costs memory, and the import paths are passed on.
                    [sys.executable, "-S", *SAFE_PATH, MODULE, *arguments],
                    stdin=theirs.fileno(),
                    # Not the agent's own: a child that hangs would keep them open after the agent
                    # has ended.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[self._page.fd],
                    env=_make_nvml_child_environment(env),
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
        """Return its process id."""
        return self._process.pid

    def messages(self) -> Iterator[Message]:
        """Yield the messages since the last call. Raises NvmlChildClosedError after the last
        message."""
        ended = self._read_socket_into_buffer()
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > LARGEST:
                raise NvmlChildClosedError(f"announced a message of {length} bytes")
            if len(self._buffer) < LENGTH.size + length:
                break
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            try:
                message = _decoder.decode(frame)
            except msgspec.DecodeError as error:
                raise NvmlChildClosedError(f"sent no message: {error}") from error
            if isinstance(message, NvmlFailureMessage):
                self.last_output = message.text
            yield message
        if ended:
            raise NvmlChildClosedError("has ended")

    def _read_socket_into_buffer(self) -> bool:
        """Read what is available; return whether the end was reached."""
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

    def get_oldest_driver_call(self) -> PendingDriverCall | None:
        """Return the call of the driver that it is in; None where it is in none."""
        return self._page.oldest()

    def exit_status(self) -> int | None:
        """Return the exit status: None while it runs, negative for the signal that ended it."""
        return self._process.poll()

    def let_go(self) -> None:
        """Close the socket: the child ends as soon as it is in no driver call."""
        self.socket.close()

    def forget(self) -> None:
        """Free the resources of a child that has exited or is abandoned."""
        self.let_go()
        self._page.close()
        # init reaps one that still runs; Popen must not warn of it.
        if self._process.returncode is None:
            self._process.returncode = 0

    def wait(self, seconds: float) -> bool:
        """Wait so long for its end; return whether it has exited."""
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


def _make_nvml_child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the given environment with the agent's import paths, and one heap for both threads."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    return {**env, "PYTHONPATH": paths, "MALLOC_ARENA_MAX": "1"}


log = logging.getLogger(__name__)

EVERY_S = 5.0
DEADLINE_S = 10.0
MISSES = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
ABSENT_PAUSE_S = 300.0
"""Seconds until NVML is tried again on a machine without a GPU."""
ERROR_PAUSE_S = 20.0
"""Seconds until NVML is tried again after it did not start on a machine with GPUs."""
RECENT_EVENTS = 64
WAITING_EVENTS = 1024
END_S = 2.0
"""How long `close` waits for a child to end, unless a call has already lasted longer."""
PAUSE_LOG_S = 60.0
"""A child that is stopped and continued repeatedly is logged at most this often."""
LOOKS = 4
"""No pause between two observations counts for more than this part of the time after which a call
is hung: at least so many observations must find the call under way and the child able to run."""


class NvmlClient:
    """The agent's side of the NVML child. Any thread may call any method; none waits long.

    It has no thread: the child is started and supervised whenever a method is called. Call `events`
    when `fileno` is readable, and at least every few seconds.

    `every_s`, `deadline_s` in seconds; `env` is the child's environment (None: the agent's), `root`
    the machine's root for sysfs and for the driver's files.
    """

    def __init__(
        self,
        every_s: float = EVERY_S,
        deadline_s: float = DEADLINE_S,
        *,
        misses: int = MISSES,
        env: Mapping[str, str] | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._every_s, self._root = every_s, root
        self._hung_after_s = deadline_s * misses
        self._env = dict(os.environ if env is None else env)
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._child: NvmlChildProcess | None = None
        self._leaving: NvmlChildProcess | None = None
        self._left_at = 0.0
        self._abandoned = self._closed = self._held = False
        self._hung_since: float | None = None
        """The call that was found to hang, until it returns."""
        self._pauses = NvmlChildPauseTracker(self._hung_after_s / LOOKS)
        self._pause_logged, self._pause_logged_at = False, float("-inf")
        self._start_at, self._failures, self._why = 0.0, 0, ""
        self._snapshot: NvmlSnapshot | None = None
        self._done = 0.0
        self._recent: deque[NvmlEvent] = deque(maxlen=RECENT_EVENTS)
        self._waiting: deque[NvmlEvent] = deque(maxlen=WAITING_EVENTS)

    def fileno(self) -> int:
        """Return a descriptor that is readable when the child has sent something; it stays the
        same."""
        return self._epoll.fileno()

    def newest(self) -> NvmlSnapshot:
        """Return the newest sweep, with the newest events.

        Raises DeviceAbsentError on a machine without an NVIDIA GPU or driver, DriverHungError while
        a call does not return, and CheckResultUnknownError while there is no sweep, or none that is
        new enough. The message mentions a child that is stopped, frozen or starved.
        """
        with self._lock:
            if self._closed:
                raise CheckResultUnknownError("NVML is closed")
            self._supervise_child()
            hung = self._find_hung_driver_call()
            if hung is not None:
                overdue_s, call = hung
                raise DriverHungError(overdue_s, call)
            halted = self._explain_late_child()
            if halted is not None:
                raise CheckResultUnknownError(halted)
            snapshot = self._snapshot
            if snapshot is None:
                raise CheckResultUnknownError(self._why or "the first sweep of NVML is under way")
            if self._is_driver_and_gpu_absent(snapshot):
                raise DeviceAbsentError("no NVIDIA GPU, driver or library")
            age_s = time.monotonic() - self._done
            pause_s = ERROR_PAUSE_S if snapshot.error else 0.0
            if age_s > self._every_s + pause_s + self._hung_after_s:
                why = f"the newest sweep of NVML is {age_s:.0f} s old; {self._why}"
                raise CheckResultUnknownError(self._pauses.reason or why)
            return replace(snapshot, events=tuple(self._recent))

    def events(self) -> tuple[NvmlEvent, ...]:
        """Return the events since the last call, oldest first; at most WAITING_EVENTS are kept."""
        with self._lock:
            self._supervise_child()
            events = tuple(self._waiting)
            self._waiting.clear()
            return events

    def wait(self, seconds: float) -> NvmlSnapshot:
        """Return the newest sweep, waiting so long for a first one. Raises as `newest`."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.newest()
            except CheckResultUnknownError:
                left = until - time.monotonic()
                if left <= 0 or self._closed:
                    raise
                self._epoll.poll(min(left, 1.0))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all GPUs closed in the agent meanwhile, as a reset of one requires."""
        with self._lock:
            self._held, self._snapshot, child = True, None, self._child
            self._why = "a GPU is being reset"
            if child is not None:
                self._disconnect_nvml_child(child)
        if child is not None:
            child.wait(END_S)
        try:
            yield
        finally:
            with self._lock:
                self._held, self._start_at = False, 0.0

    def child_pid(self) -> int | None:
        """Return the process id of the child that runs or hangs, for the agent's own measures."""
        with self._lock:
            self._supervise_child()
            child = self._child or self._leaving
            return None if child is None else child.pid

    def close(self) -> None:
        """Let the child end. One that hangs is abandoned: it ends when its call returns."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for child in (self._child, self._leaving):
                if child is not None:
                    child.let_go()
                    if not child.wait(
                        0.0 if self._measure_driver_call_age(child) > END_S else END_S
                    ):
                        log.warning("the NVML child %d hangs in the driver; left", child.pid)
                    child.forget()
            self._child = self._leaving = None
            self._epoll.close()

    def _supervise_child(self) -> None:
        if self._leaving is not None and (status := self._leaving.exit_status()) is not None:
            self._handle_child_exit(self._leaving, status)
        if self._child is not None:
            self._read_child_messages(self._child)
        elif not (self._leaving or self._closed or self._held or time.monotonic() < self._start_at):
            self._start_child()
        self._monitor_late_child()

    def _start_child(self) -> None:
        library = find_nvml_library(self._root, self._env)
        try:
            child = NvmlChildProcess(
                self._every_s, self._env, "" if library is None else str(library)
            )
        except OSError as error:
            self._schedule_child_restart(f"the NVML child does not start: {error}")
            return
        self._epoll.register(child.socket, select.EPOLLIN)
        self._child, self._abandoned, self._hung_since = child, False, None

    def _read_child_messages(self, child: NvmlChildProcess) -> None:
        try:
            for message in child.messages():
                match message:
                    case NvmlSweepMessage(snapshot, done):
                        self._snapshot, self._done = snapshot, done
                        self._why = ""
                    case NvmlEventMessage(event):
                        self._recent.append(event)
                        self._waiting.append(event)
                    case NvmlFailureMessage(text):
                        log.error("the NVML child failed: %s", text)
                if self._abandoned and isinstance(message, NvmlSweepMessage):
                    log.warning("the driver's call came back: a fresh NVML child takes over")
                    self._disconnect_nvml_child(child)
                    return
        except NvmlChildClosedError as closed:
            self._why = f"the NVML child {closed}"
            self._disconnect_nvml_child(child)
            return

    def _disconnect_nvml_child(self, child: NvmlChildProcess) -> None:
        self._epoll.unregister(child.socket)
        child.let_go()
        self._child, self._leaving, self._left_at = None, child, time.monotonic()
        status = child.exit_status()
        if status is not None:
            self._handle_child_exit(child, status)

    def _handle_child_exit(self, child: NvmlChildProcess, status: int) -> None:
        """Handle its exit: set when the next may start."""
        self._leaving = None
        child.forget()
        if time.monotonic() - child.started > LONGEST_PAUSE_S:
            self._failures = 0
        snapshot = self._snapshot
        ended_well = status == 0 and not self._abandoned
        if ended_well and snapshot is not None and snapshot.error is not None:
            pause_s = ABSENT_PAUSE_S if self._is_driver_and_gpu_absent(snapshot) else ERROR_PAUSE_S
            self._start_at = time.monotonic() + pause_s
            return
        suffix = f": {child.last_output}" if child.last_output else ""
        self._schedule_child_restart(f"the NVML child ended with status {status}{suffix}")

    def _schedule_child_restart(self, why: str) -> None:
        self._why = why
        pause_s = min(FIRST_PAUSE_S * 2.0**self._failures, LONGEST_PAUSE_S)
        self._failures += 1
        self._start_at = time.monotonic() + pause_s
        log.warning("%s; the next starts in %g s", why, pause_s)

    def _monitor_late_child(self) -> None:
        """Examine a late child: whether it can run, and for how long it could."""
        now, call = time.monotonic(), self._find_overdue_driver_call()
        longest_s = self._hung_after_s / LOOKS
        if call is None or now - call.since < longest_s / 5:
            self._pauses.calm(now)
            self._log_child_pause("", now)
            return
        if self._pauses.compute_observation_age_s(now) < longest_s / 20:
            return
        child = self._child or self._leaving
        self._pauses.overdue(
            now, None if child is None else sample_thread_state(child.pid, call.thread)
        )
        self._log_child_pause(self._pauses.reason, now)
        if (
            child is self._child
            and not self._abandoned
            and self._find_hung_driver_call() is not None
        ):
            self._abandoned = True
            log.error("the driver hangs in %s", call.name)

    def _log_child_pause(self, reason: str, now: float) -> None:
        """Log that the child does not run, at a limited rate, and that it runs again."""
        if not reason:
            if self._pause_logged:
                log.warning("the NVML child can run again")
            self._pause_logged = False
        elif not self._pause_logged and now - self._pause_logged_at >= PAUSE_LOG_S:
            self._pause_logged, self._pause_logged_at = True, now
            log.warning("%s; the driver is not blamed for the time without an answer", reason)

    def _find_hung_driver_call(self) -> tuple[float, str] | None:
        """Return which call has not returned, and for how long; None where the driver is not the
        cause."""
        now, call = time.monotonic(), self._find_driver_call_in_flight()
        if call is None:
            return None
        if call.since != self._hung_since:
            if self._pauses.compute_unpaused_s(call.since, now) <= self._hung_after_s:
                return None
            self._hung_since = call.since
        return now - call.since, call.name

    def _explain_late_child(self) -> str | None:
        """Return why the child is late, where it is so late that the driver would count as hung."""
        call = self._find_overdue_driver_call()
        if call is None or time.monotonic() - call.since <= self._hung_after_s:
            return None
        return self._pauses.reason or None

    def _find_driver_call_in_flight(self) -> PendingDriverCall | None:
        """Return the call that the child is in: one of the driver's, or its own exit."""
        child = self._child or self._leaving
        call = None if child is None else child.get_oldest_driver_call()
        if call is None and self._leaving is not None:
            # Its descriptors are closed in the driver too: that can hang like any call.
            call = PendingDriverCall(self._left_at, "the child's exit", self._leaving.pid)
        return call

    def _find_overdue_driver_call(self) -> PendingDriverCall | None:
        """Return the call that the child is in, or the sweep that it does not begin."""
        call = self._find_driver_call_in_flight()
        if call is None and self._child is not None:
            begun = max(self._done, self._child.started)
            call = PendingDriverCall(begun + self._every_s, "a sweep", self._child.pid)
        return call

    def _measure_driver_call_age(self, child: NvmlChildProcess) -> float:
        call = child.get_oldest_driver_call()
        return 0.0 if call is None else time.monotonic() - call.since

    def _is_driver_and_gpu_absent(self, snapshot: NvmlSnapshot) -> bool:
        """Return whether neither a driver nor a GPU is present: with a GPU, a missing driver is a
        fault."""
        error = snapshot.error
        if error is None or error.code not in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
            return False
        return not list_gpu_pci_addresses(self._root)
