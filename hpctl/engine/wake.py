"""The loop's time: the real Clock, and who wakes it by one byte into a FIFO in the state directory.

Anything that can write to a file can wake the daemon (an EpilogSlurmctld in plain sh, the CLI,
the intake thread); no writer ever blocks on it, and only time is lost while no daemon listens.
"""

import contextlib
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpctl.toolkit.token_bucket import TokenBucket

FIFO_NAME = "wake"
_EVENT = b"!"
_JOB_END = b"j"
"""What EpilogSlurmctld writes for each job that ends."""
_JOB_ENDS = 5
"""So many ends of jobs wake the loop at once."""
_JOB_END_S = 5.0
"""After those, an end of a job wakes it once in this time: each such cycle reads all of Slurm, and
users' jobs may end by the thousand. A failed run shows in slurmctld's log, and a recovery that
waits for a job has its own cycles."""


class DaemonLoopWaker:
    """The daemon's end of the FIFO."""

    def __init__(self, state_dir: Path) -> None:
        """Create the FIFO if it is not there, and open it so that writers never block."""
        self.path = state_dir / FIFO_NAME
        if self.path.exists() and not stat.S_ISFIFO(self.path.stat().st_mode):
            self.path.unlink()
        if not self.path.exists():
            os.mkfifo(self.path)
            # Past the umask: the group is for slurmctld's user, who may write and not listen.
            self.path.chmod(0o620)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._job_ends = TokenBucket(_JOB_ENDS, 1 / _JOB_END_S)

    def poke(self) -> None:
        """Wake the loop. Safe from any thread and from a signal handler."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._fd, _EVENT)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until poked or the time is over; True when poked.

        False, and perhaps early, where only jobs have ended, and too many recently.
        """
        return self._ready(max(0.0, timeout_s)) and self._drain_fifo()

    def _drain_fifo(self) -> bool:
        """Empty the FIFO; return whether what was in it is an event."""
        pokes = bytearray()
        with contextlib.suppress(BlockingIOError):
            while some := os.read(self._fd, 4096):
                pokes += some
        if pokes.strip(_JOB_END):
            return True
        return self._job_ends.take(time.monotonic())

    def has_pending_wakeup(self) -> bool:
        """Return whether the next `wait` returns at once."""
        return self._ready(0.0)

    def _ready(self, timeout_s: float) -> bool:
        poll = select.poll()  # select() takes no descriptor from 1,024 on
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(1e3 * timeout_s))

    def close(self) -> None:
        """Stop listening."""
        os.close(self._fd)


class DaemonWakeRateLimiter:
    """Wakes the loop for those whom anybody may be: at once, and then once a second at most."""

    def __init__(self, poke: Callable[[], None], every_s: float = 1.0) -> None:
        self._poke = poke
        self._wakes = TokenBucket(1, 1 / every_s)
        self._lock = threading.Lock()

    def poke(self) -> None:
        """Wake the loop now, or as soon as the second is over. Safe from any thread."""
        with self._lock:
            now = time.monotonic()
            if self._wakes.available(now) < 0:
                return  # a timer wakes the loop already
            wait_s = self._wakes.wait_s(now)
            self._wakes.spend(now)
        if not wait_s:
            self._poke()
            return
        timer = threading.Timer(wait_s, self._poke)
        timer.daemon = True
        timer.start()


def wake_daemon(state_dir: Path) -> bool:
    """Poke the daemon of a state directory. Return False when none listens; never block."""
    try:
        fd = os.open(state_dir / FIFO_NAME, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, _EVENT)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
