"""Which call into the driver is under way, and since when: a page that two processes share.

The NVML child writes it around every call; the agent reads it. So a call that does not come back
can be named and timed by a process that made none, and without a word from the one that hangs.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

SWEEP, EVENTS, WHOLE = 0, 1, 2
"""One slot for the calls of each of the child's two threads, one for a sweep as a whole."""

_SINCE = struct.Struct("<d")
_CALL = struct.Struct("<48s")
_SLOT_SIZE = 64
_SIZE = mmap.PAGESIZE


class InFlight:
    """The shared page behind a file descriptor; three slots, each `since` and `call`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def create(cls) -> InFlight:
        """A fresh page with nothing under way. Raises OSError."""
        fd = os.memfd_create("hpctl-nvml", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def begin(self, slot: int, call: str, lasts_s: float = 0.0) -> None:
        """A call begins that is meant to last so many seconds. `call` is cut at 48 bytes."""
        at = slot * _SLOT_SIZE
        # The time last: a reader that meets a half-written slot sees no call, not a wrong one.
        _SINCE.pack_into(self._page, at, 0.0)
        _CALL.pack_into(self._page, at + _SINCE.size, call.encode())
        _SINCE.pack_into(self._page, at, time.monotonic() + lasts_s)

    def end(self, slot: int) -> None:
        """The call came back."""
        _SINCE.pack_into(self._page, slot * _SLOT_SIZE, 0.0)

    def oldest(self) -> tuple[float, str] | None:
        """Since when (monotonic seconds) the driver keeps the child, and with which call.

        For a call that is meant to last, since when it should be over: in the future, in order.
        A sweep as a whole counts too: many calls that are slow are as bad as one that hangs.
        """
        sweep, events, whole = (self._read(slot) for slot in (SWEEP, EVENTS, WHOLE))
        if whole is not None:
            sweep = (whole[0], sweep[1] if sweep else whole[1])
        return min((call for call in (sweep, events) if call is not None), default=None)

    def _read(self, slot: int) -> tuple[float, str] | None:
        at = slot * _SLOT_SIZE
        (since,) = _SINCE.unpack_from(self._page, at)
        (call,) = _CALL.unpack_from(self._page, at + _SINCE.size)
        if not since or (since,) != _SINCE.unpack_from(self._page, at):
            return None
        return since, call.rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        self._page.close()
        os.close(self.fd)
