"""Tell a driver that is stuck looking for NVLinks from one that starts.

Not a pattern of a row: the same line is both, and only how long it repeats differs.

    NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!
    NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!

While the GPUs of a node start, one may ask another for its links before that one can answer
(kernel_nvlink.c: the question fails, and the links are found later). A driver that is stuck asks in
each call until the node restarts (NVIDIA/open-gpu-kernel-modules#971: after 66 days of uptime).
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.detection.kernel.line import KernelFaultLine

CHECK = "kernel.nvidia"
STARTING = "nvlink"
STUCK = "nvlink-stuck"
GOES_ON = timedelta(minutes=5)
"""From the first complaint to the one that counts: GPUs have started by then."""
PAUSE = timedelta(minutes=10)
"""A complaint later than this after the one before it begins another start."""


class NvlinkErrorTracker:
    """How long the driver has been complaining, over batches. It holds two times."""

    def __init__(self) -> None:
        self._first: datetime | None = None
        self._last: datetime | None = None

    def mark_persistent_nvlink_error(
        self, line: KernelFaultLine, last: datetime
    ) -> KernelFaultLine:
        """Return the line, as one of a stuck driver where complaints go on for `GOES_ON`.

        `last` is the time of the last of equal lines. All other lines are returned as they are.
        """
        if (line.check, line.code) != (CHECK, STARTING):
            return line
        if self._first is None or self._last is None or line.at - self._last > PAUSE:
            self._first = line.at
        self._last = max(self._last or last, last)
        return replace(line, code=STUCK) if last - self._first >= GOES_ON else line
