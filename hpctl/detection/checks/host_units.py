"""Check `host.units`: the systemd units that keep a node in service."""

import re

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckObservation,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
)
from hpctl.detection.probe import ProbeResult, ProbeRunner
from hpctl.vocabulary.model import DeviceVerdict

# The systemd units that a compute node needs.
#
# Only a unit that is installed and enabled is missed, and the fabric manager only where there is an
# NVSwitch. One that was stopped and exited normally was stopped by an administrator: reported, not
# started again.

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


PROBES = ProbeRunner(TIMEOUT_S)


class SystemdUnitState(Struct, frozen=True):
    """One unit as systemd shows it; `needed` is false for what this machine has no use for."""

    name: str
    load: str
    enabled: str
    active: str
    sub: str
    result: str
    conditions: bool
    needed: bool = True


def read_systemd_units(machine: CheckedMachine) -> tuple[SystemdUnitState, ...]:
    """Call systemctl once for all units. Raises CheckResultUnknownError; DeviceAbsentError where
    systemd does not run."""
    if not machine.path("/run/systemd/system").is_dir():
        raise DeviceAbsentError("systemd does not run")
    answer = PROBES.ask({"systemctl": SHOW}, TIMEOUT_S)["systemctl"]
    if not isinstance(answer, ProbeResult):
        raise CheckResultUnknownError(f"systemctl has not answered for {answer.age_s:.0f} s")
    if answer.exit_code:
        raise CheckResultUnknownError(
            f"systemctl exited with {answer.exit_code}: {answer.err.strip()[:200]}"
        )
    return parse_systemd_units(answer.out, nvswitch=has_nvswitch(machine))


def has_nvswitch(machine: CheckedMachine) -> bool:
    """Return whether the driver holds one, or the instance type has them."""
    try:
        bound = any(":" in path.name for path in machine.path(NVSWITCH).iterdir())
    except OSError:
        bound = False
    return bound or _HAS_NVSWITCH.fullmatch(machine.expected.instance_type) is not None


def parse_systemd_units(text: str, *, nvswitch: bool) -> tuple[SystemdUnitState, ...]:
    """Return the blocks of `systemctl show`, one a unit."""
    found = []
    for block in text.strip().split("\n\n"):
        unit = dict(line.partition("=")[::2] for line in block.splitlines())
        name = unit.get("Id", "")
        if name in UNITS:
            found.append(
                SystemdUnitState(
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


def judge_systemd_units(
    seen: tuple[SystemdUnitState, ...], before: tuple[SystemdUnitState, ...] | None, limits: Limits
) -> Judged:
    """Return the unit's code when it does not run; `stopped` when it was stopped without an
    error."""
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
        yield CheckObservation(
            code, unit.name, DeviceVerdict.WARN if stopped else DeviceVerdict.FAIL, detail
        )
