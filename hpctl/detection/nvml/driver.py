"""The only module that calls NVML: every call is recorded while it runs, every error is a number.

Part of the NVML child. The child passes pynvml in, so that this module costs no memory elsewhere.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module costs 1 MB
    from typing import Any

#
# Which call into the driver is under way, and since when: a page that two processes share.
#
# The NVML child writes it around every call; the agent reads it. So a process that makes no call
# can name and time one that does not return, without an answer from the process that hangs.

SWEEP, EVENTS, WHOLE = 0, 1, 2
"""One slot for the calls of each of the child's two threads, one for a sweep as a whole."""

_SINCE = struct.Struct("<d")
_CALL = struct.Struct("<48sQ")
_SLOT_SIZE = 64
_SIZE = mmap.PAGESIZE


class PendingDriverCall:
    """A call into the driver that has not returned.

    `since` is in monotonic seconds: when it began or, for a call that is meant to last, when it
    should be over (a time in the future is in order). `thread` is the kernel's id of the child's
    thread that makes it.
    """

    __slots__ = ("name", "since", "thread")

    def __init__(self, since: float, name: str, thread: int) -> None:
        self.since, self.name, self.thread = since, name, thread


class DriverCallsInFlight:
    """The shared page behind a file descriptor; three slots: `since`, the call, and the thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def create(cls) -> DriverCallsInFlight:
        """Return a new page without a call under way. Raises OSError."""
        fd = os.memfd_create("hpctl-nvml", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def begin(self, slot: int, call: str, lasts_s: float = 0.0) -> None:
        """Note that this thread begins a call that is meant to last so many seconds.

        `call` is cut at 48 bytes.
        """
        at = slot * _SLOT_SIZE
        # The time is written last: a reader of a half-written slot sees no call, not a wrong one.
        _SINCE.pack_into(self._page, at, 0.0)
        thread = threading.get_native_id()
        _CALL.pack_into(self._page, at + _SINCE.size, call.encode(), thread)
        _SINCE.pack_into(self._page, at, time.monotonic() + lasts_s)

    def end(self, slot: int) -> None:
        """Note that the call has returned."""
        _SINCE.pack_into(self._page, slot * _SLOT_SIZE, 0.0)

    def oldest(self) -> PendingDriverCall | None:
        """Return the call that the child has been in longest, or None where it is in no call.

        A sweep as a whole counts too, under the name of its current call: many slow calls are as
        bad as one that hangs.
        """
        sweep, events, whole = (self._read(slot) for slot in (SWEEP, EVENTS, WHOLE))
        if whole is not None:
            name = whole.name if sweep is None else sweep.name
            sweep = PendingDriverCall(whole.since, name, whole.thread)
        calls = [call for call in (sweep, events) if call is not None]
        return min(calls, key=lambda call: call.since, default=None)

    def _read(self, slot: int) -> PendingDriverCall | None:
        at = slot * _SLOT_SIZE
        (since,) = _SINCE.unpack_from(self._page, at)
        name, thread = _CALL.unpack_from(self._page, at + _SINCE.size)
        if not since or (since,) != _SINCE.unpack_from(self._page, at):
            return None
        return PendingDriverCall(since, name.rstrip(b"\0").decode(errors="replace"), thread)

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        self._page.close()
        os.close(self.fd)


UNINITIALIZED, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND = 1, 9, 10, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH = 13, 15, 16, 18

OF_THE_LIBRARY = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Errors that are not one GPU's: the driver was removed or replaced."""
OF_THE_GPU = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""Errors after which a GPU gives no useful answer. Every other one means that a value is not
available."""

BATCH = 32
"""Fields asked for in one call."""

# nvmlValueType_t -> the member of nvmlValue_t
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NvmlCallError(Exception):
    """The error of a call that answered `code`, an nvmlReturn_t other than success."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call} answered {code}")
        self.code, self.call = code, call

    def to_error_fields(self) -> dict[str, Any]:
        """Return the fields of `snapshot.NvmlError`."""
        return {"code": self.code, "call": self.call, "text": ERRORS.get(self.code, "")}


ERRORS = {
    DRIVER_NOT_LOADED: "the driver is not loaded",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU needs a reset",
    LIB_RM_VERSION_MISMATCH: "the driver and libnvidia-ml.so.1 are of different versions",
}


class NvmlDriver:
    """NVML as one thread of the child calls it; `slot` is that thread's in `inflight`."""

    def __init__(self, nvml: Any, inflight: DriverCallsInFlight, slot: int) -> None:
        self.nvml = nvml
        self._inflight, self._slot = inflight, slot

    def call(
        self, name: str, *arguments: object, gpu: int | None = None, lasts_s: float = 0.0
    ) -> Any:
        """Call pynvml's function of that name. Raises NvmlCallError.

        `gpu` is for the record; `lasts_s` is how long the call is meant to wait.
        """
        self._inflight.begin(self._slot, name if gpu is None else f"{name} gpu{gpu}", lasts_s)
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            raise NvmlCallError(error.value, name) from error
        except AttributeError as error:  # an nvidia-ml-py that is older than the function
            raise NvmlCallError(FUNCTION_NOT_FOUND, name) from error
        finally:
            self._inflight.end(self._slot)


class NvmlDevice:
    """One GPU's handle. What the device or driver does not report is None."""

    def __init__(self, driver: NvmlDriver, index: int, handle: Any) -> None:
        self._driver, self._index, self._handle = driver, index, handle

    def ask(self, name: str, *arguments: object) -> Any:
        """Make one call about the GPU. Raises NvmlCallError only for a lost GPU or driver."""
        try:
            return self._driver.call(name, self._handle, *arguments, gpu=self._index)
        except NvmlCallError as failed:
            if failed.code in OF_THE_GPU or failed.code in OF_THE_LIBRARY:
                raise
            return None

    def fill(self, name: str, struct: str) -> Any:
        """Make one call that fills pynvml's versioned struct of that name; return the struct, or
        None."""
        made = getattr(self._driver.nvml, struct, None)
        if made is None:
            return None
        room = made()
        # pynvml passes some of these on unchanged, and NVML needs the address.
        return None if self.ask(name, self._driver.nvml.byref(room)) is None else room

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> list[int | None]:
        """Return field values (an id, or an id and its scope), in order. Raises as `ask` does."""
        answers: list[int | None] = []
        for first in range(0, len(wanted), BATCH):
            batch = wanted[first : first + BATCH]
            values = self.ask("nvmlDeviceGetFieldValues", batch)
            answers += (
                [None] * len(batch) if values is None else map(_decode_nvml_field_value, values)
            )
        return answers


def _decode_nvml_field_value(field: Any) -> int | None:
    if field.nvmlReturn in OF_THE_GPU:
        raise NvmlCallError(field.nvmlReturn, f"nvmlDeviceGetFieldValues[{field.fieldId}]")
    if field.nvmlReturn != 0 or field.valueType >= len(_MEMBERS):
        return None
    return int(getattr(field.value, _MEMBERS[field.valueType]))
