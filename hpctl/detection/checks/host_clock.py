"""Check `host.clock`: the clock: kept by a time service, and how far off."""

import ctypes
import os

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.probe import ProbeResult, ProbeRunner

# The clock: whether a time service keeps it, and its offset. MUNGE refuses credentials of other
# times.
#
# The kernel reports whether its clock is kept, and up to half a second of its offset; only the time
# service knows a larger offset, so chrony is asked where it is installed.

CHRONY = ("chronyc", "-n", "-c", "tracking")


DEADLINE_S = 5.0


WAIT_S = 0.25


# adjtimex(2), include/uapi/linux/timex.h.
_STA_UNSYNC = 0x0040


_STA_NANO = 0x2000


class KernelTimex(ctypes.Structure):
    """`struct timex`; with `modes` 0 the call only reads. The rest is room for the kernel."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


class SystemClockReading(Struct, frozen=True):
    """A reading of the clock. `offset_s` without its sign, the larger of the kernel's and
    chrony's."""

    kept: bool
    offset_s: float


_libc = ctypes.CDLL(None, use_errno=True)


_clock_probes = ProbeRunner(DEADLINE_S)


def read_system_clock_offset(machine: CheckedMachine) -> SystemClockReading:
    """Ask the kernel, and chrony. Raises CheckResultUnknownError; DeviceAbsentError where systemd
    does not run.

    In a container another machine keeps the clock.
    """
    if not machine.path("/run/systemd/system").is_dir():
        raise DeviceAbsentError("systemd does not run: the clock is not this machine's own")
    kept, offset_s = read_kernel_clock_sync_state()
    return SystemClockReading(kept, max(offset_s, read_chrony_offset()))


def read_kernel_clock_sync_state() -> tuple[bool, float]:
    """Return whether the kernel's clock is kept, and its offset in seconds. Raises
    CheckResultUnknownError."""
    timex = KernelTimex()
    if _libc.adjtimex(ctypes.byref(timex)) < 0:
        raise CheckResultUnknownError(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    unit = 1e-9 if timex.status & _STA_NANO else 1e-6
    return not timex.status & _STA_UNSYNC, abs(timex.offset) * unit


def read_chrony_offset() -> float:
    """Return the offset that chrony reports, in seconds; 0 where it is not installed or has
    none."""
    try:
        answer = _clock_probes.ask({"chronyc": CHRONY}, WAIT_S)["chronyc"]
    except DeviceAbsentError:
        return 0.0
    return (
        parse_chrony_tracking_offset(answer.out)
        if isinstance(answer, ProbeResult) and not answer.exit_code
        else 0.0
    )


def parse_chrony_tracking_offset(line: str) -> float:
    """Return the offset of chronyc's CSV: the fifth field, unless the stratum (third) shows that
    there is no source."""
    fields = line.strip().split(",")
    try:
        return abs(float(fields[4])) if int(fields[2]) else 0.0
    except (ValueError, IndexError):
        return 0.0


def judge_clock_offset(
    seen: SystemClockReading, before: SystemClockReading | None, limits: Limits
) -> Judged:
    """Return `skewed` beyond what slewing corrects, `offset` when large, `unsynchronised`."""
    detail = f"{seen.offset_s:.3f} s off"
    if seen.offset_s > limits["skewed_s"]:
        yield make_fail_observation("skewed", "", detail)
    elif seen.offset_s > limits["offset_s"]:
        yield make_warn_observation("offset", "", detail)
    if not seen.kept:
        yield make_warn_observation(
            "unsynchronised", "", "no time service keeps the clock (STA_UNSYNC)"
        )
