"""What keeps a node in service: its systemd units, and its clock."""

import ctypes
import os
import re

from msgspec import Struct

from hpctl.agent.check import (
    CannotTell,
    Functions,
    Judged,
    Limits,
    Machine,
    NotHere,
    Observation,
    fail,
    warn,
)
from hpctl.agent.probe import ProbeResult, Probes
from hpctl.core.model import Verdict

# --- host.units ----------
# The systemd units that a compute node cannot do without.
#
# Only a unit that is installed and enabled is missed, and the fabric manager only where there is an
# NVSwitch. One that was stopped and ended well was stopped by somebody: reported, not undone.

FABRIC_MANAGER = "nvidia-fabricmanager.service"
UNITS = {
    FABRIC_MANAGER: "fabricmanager",
    "slurmd.service": "slurmd",
    "munge.service": "munge",
    "nvidia-imex.service": "nvidia",
    "nvidia-persistenced.service": "nvidia",
    "nvidia-dcgm.service": "nvidia",
    "sagemaker-host-agent.service": "hyperpod",
    "sagemaker-health-monitoring-agent.service": "hyperpod",
    "sagemaker-role-proxy-agent.service": "hyperpod",
}
"""The code under which each is reported."""
PROPERTIES = "Id,LoadState,UnitFileState,ActiveState,SubState,Result,ConditionResult"
SHOW = ("systemctl", "show", f"--property={PROPERTIES}", "--", *UNITS)
TIMEOUT_S = 5.0
NVSWITCH = "/sys/bus/pci/drivers/nvidia-nvswitch"
_HAS_NVSWITCH = re.compile(r"(ml\.)?(p4de?|p5|p5en?|p6-b[23]00)\.(24|48)xlarge")
_ENABLED = frozenset({"enabled", "enabled-runtime", "static", "generated"})
_STARTED_BY_OTHERS = frozenset({"nvidia"})
"""Codes whose units udev starts and stops where they are static: only enabled ones are missed."""
_RUNS = frozenset({"active", "reloading", "refreshing"})

_probes = Probes(TIMEOUT_S)


class Unit(Struct, frozen=True):
    """One unit as systemd shows it; `needed` is false for what this machine has no use for."""

    name: str
    load: str
    enabled: str
    active: str
    sub: str
    result: str
    conditions: bool
    needed: bool = True


def gather_units(machine: Machine) -> tuple[Unit, ...]:
    """One call of systemctl for all. Raises CannotTell; NotHere where systemd does not run."""
    if not machine.path("/run/systemd/system").is_dir():
        raise NotHere("systemd does not run")
    answer = _probes.ask({"systemctl": SHOW}, TIMEOUT_S)["systemctl"]
    if not isinstance(answer, ProbeResult):
        raise CannotTell(f"systemctl has not answered for {answer.age_s:.0f} s")
    if answer.exit_code:
        raise CannotTell(f"systemctl exited with {answer.exit_code}: {answer.err.strip()[:200]}")
    return parse_units(answer.out, nvswitch=has_nvswitch(machine))


def has_nvswitch(machine: Machine) -> bool:
    """Whether the driver holds one, or the instance type has them."""
    try:
        bound = any(":" in path.name for path in machine.path(NVSWITCH).iterdir())
    except OSError:
        bound = False
    return bound or _HAS_NVSWITCH.fullmatch(machine.expected.instance_type) is not None


def parse_units(text: str, *, nvswitch: bool) -> tuple[Unit, ...]:
    """The blocks of `systemctl show`, one a unit."""
    found = []
    for block in text.strip().split("\n\n"):
        unit = dict(line.partition("=")[::2] for line in block.splitlines())
        name = unit.get("Id", "")
        if name in UNITS:
            found.append(
                Unit(
                    name,
                    unit.get("LoadState", ""),
                    unit.get("UnitFileState", ""),
                    unit.get("ActiveState", ""),
                    unit.get("SubState", ""),
                    unit.get("Result", ""),
                    unit.get("ConditionResult", "") == "yes",
                    nvswitch or name != FABRIC_MANAGER,
                )
            )
    return tuple(found)


def judge_units(seen: tuple[Unit, ...], before: tuple[Unit, ...] | None, limits: Limits) -> Judged:
    """The unit's code when it does not run; `stopped` when it was ended and nothing is wrong."""
    for unit in seen:
        wanted = unit.needed and unit.load == "loaded" and unit.enabled in _ENABLED
        if not wanted or unit.active in _RUNS:
            continue
        if unit.enabled == "static" and UNITS[unit.name] in _STARTED_BY_OTHERS:
            continue
        fabric = unit.name == FABRIC_MANAGER
        if not unit.conditions and not fabric:
            # Never started in this boot, or not meant for this machine (its Condition lines).
            continue
        detail = f"{unit.active} ({unit.sub}), result {unit.result}"
        stopped = unit.active == "inactive" and unit.result == "success" and not fabric
        code = "stopped" if stopped else UNITS[unit.name]
        yield Observation(code, unit.name, Verdict.WARN if stopped else Verdict.FAIL, detail)


# --- host.clock ----------
# The clock: kept by a time service, and how far off. MUNGE refuses credentials of other times.
#
# The kernel knows whether its clock is kept, and the last half second of an offset; how far a clock
# is off that has lost its time only the time service can say, so chrony is asked where it is there.

CHRONY = ("chronyc", "-n", "-c", "tracking")
DEADLINE_S = 5.0
WAIT_S = 0.25

# adjtimex(2), include/uapi/linux/timex.h.
_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000


class Timex(ctypes.Structure):
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


class Clock(Struct, frozen=True):
    """`offset_s` without its sign, the larger of the kernel's and chrony's."""

    kept: bool
    offset_s: float


_libc = ctypes.CDLL(None, use_errno=True)
_clock_probes = Probes(DEADLINE_S)


def gather_clock(machine: Machine) -> Clock:
    """Ask the kernel, and chrony. Raises CannotTell; NotHere where systemd does not run.

    There (a container) the clock is another machine's to keep.
    """
    if not machine.path("/run/systemd/system").is_dir():
        raise NotHere("systemd does not run: the clock is not this machine's own")
    kept, offset_s = kernel()
    return Clock(kept, max(offset_s, chrony()))


def kernel() -> tuple[bool, float]:
    """Whether the kernel's clock is kept, and its offset in seconds. Raises CannotTell."""
    timex = Timex()
    if _libc.adjtimex(ctypes.byref(timex)) < 0:
        raise CannotTell(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    unit = 1e-9 if timex.status & _STA_NANO else 1e-6
    return not timex.status & _STA_UNSYNC, abs(timex.offset) * unit


def chrony() -> float:
    """What chrony says it is off, in seconds; 0 where it is not there or does not know."""
    try:
        answer = _clock_probes.ask({"chronyc": CHRONY}, WAIT_S)["chronyc"]
    except NotHere:
        return 0.0
    return tracking(answer.out) if isinstance(answer, ProbeResult) and not answer.exit_code else 0.0


def tracking(line: str) -> float:
    """From chronyc's CSV: the fifth field, unless the stratum (third) says there is no source."""
    fields = line.strip().split(",")
    try:
        return abs(float(fields[4])) if int(fields[2]) else 0.0
    except (ValueError, IndexError):
        return 0.0


def judge_clock(seen: Clock, before: Clock | None, limits: Limits) -> Judged:
    """`skewed` beyond repair by slewing, `offset` when large, `unsynchronised`."""
    detail = f"{seen.offset_s:.3f} s off"
    if seen.offset_s > limits["skewed_s"]:
        yield fail("skewed", "", detail)
    elif seen.offset_s > limits["offset_s"]:
        yield warn("offset", "", detail)
    if not seen.kept:
        yield warn("unsynchronised", "", "no time service keeps the clock (STA_UNSYNC)")


CHECKS = {
    "host.units": Functions(gather_units, judge_units),
    "host.clock": Functions(gather_clock, judge_clock),
}
"""What the runner calls, by the check's name."""
