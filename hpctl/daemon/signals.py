"""SIGTERM and SIGINT stop the daemon, SIGHUP reloads its configuration."""

import signal
from types import FrameType

from hpctl.engine.wake import DaemonLoopWaker


class DaemonSignalHandler:
    """Notes what a signal asks for, and wakes the loop, which looks here."""

    def __init__(self, waker: DaemonLoopWaker) -> None:
        """No signal is handled before `install`."""
        self._waker = waker
        self.stopping = False
        self._reload_wanted = False

    def install(self) -> None:
        """Handle the signals from now on. For the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Note one signal."""
        if number == signal.SIGHUP:
            self._reload_wanted = True
        else:
            self.stopping = True
        self._waker.poke()

    def consume_reload_request(self) -> bool:
        """Return whether a reload was asked for since the last call."""
        wanted, self._reload_wanted = self._reload_wanted, False
        return wanted
