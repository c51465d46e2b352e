"""Check `host.nvme.smart`: the disks' own warning of failure (critical_warning)."""

import json

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
from hpctl.detection.checks.host_nvme import NVME
from hpctl.detection.probe import ProbeResult, ProbeRunner

# What NVMe disks report of their health (`critical_warning`), where nvme-cli is installed.
#
# It costs each disk an administration command, so it is read rarely and in a child.

COMMAND = ("nvme", "smart-log", "--output-format=json")


DEADLINE_S = 10.0


WAIT_S = 2.0


MOST = 32


# The bits of Critical Warning (NVM Express base specification, SMART / Health log page).
_SPARE, _HEAT, _WORN, _READ_ONLY, _BACKUP, _PMR = (1 << bit for bit in range(6))


WORDS = {
    _SPARE: "spare space below its threshold",
    _HEAT: "temperature beyond its threshold",
    _WORN: "reliability degraded by media or internal errors",
    _READ_ONLY: "media is read-only",
    _BACKUP: "backup of the volatile memory has failed",
    _PMR: "persistent memory region is read-only",
}


class NvmeSmartHealth(Struct, frozen=True):
    """One controller's critical warning, as its log records it."""

    name: str
    warning: int


PROBES = ProbeRunner(DEADLINE_S)


def read_nvme_smart_health(machine: CheckedMachine) -> tuple[NvmeSmartHealth, ...]:
    """Ask each controller. Raises DeviceAbsentError without NVMe, nvme-cli or leave;
    CheckResultUnknownError."""
    try:
        live = [
            place.name
            for place in sorted(machine.path(NVME).iterdir())
            if machine.text(f"{NVME}/{place.name}/state") == "live"
        ][:MOST]
    except OSError as error:
        raise DeviceAbsentError(f"no {NVME}") from error
    if not live:
        raise DeviceAbsentError("no live NVMe controller")
    answers = PROBES.ask({name: (*COMMAND, f"/dev/{name}") for name in live}, PROBES.wait_s(WAIT_S))
    found = [
        NvmeSmartHealth(name, warning)
        for name, answer in answers.items()
        if isinstance(answer, ProbeResult)
        and (warning := parse_nvme_smart_critical_warning(answer)) is not None
    ]
    if not found and any(
        isinstance(a, ProbeResult) and is_nvme_access_denied(a) for a in answers.values()
    ):
        # Not allowed, as in hpctl's own unit, is not a failure: it would leave the node Unknown.
        raise DeviceAbsentError("asking a disk for its health needs CAP_SYS_ADMIN")
    if not found:
        raise CheckResultUnknownError("no NVMe controller reported its health")
    return tuple(found)


def is_nvme_access_denied(answer: ProbeResult) -> bool:
    """Return whether the kernel denied nvme-cli the command."""
    return any(word in answer.err for word in ("not permitted", "Permission denied"))


def parse_nvme_smart_critical_warning(answer: ProbeResult) -> int | None:
    """Return the warning in nvme-cli's JSON: a number, or in verbose builds an object with
    `value`."""
    try:
        warning = json.loads(answer.out)["critical_warning"]
        return int(warning["value"] if isinstance(warning, dict) else warning)
    except (ValueError, KeyError, TypeError):
        return None


def judge_nvme_smart_health(
    seen: tuple[NvmeSmartHealth, ...], before: tuple[NvmeSmartHealth, ...] | None, limits: Limits
) -> Judged:
    """Return `failing` for a disk that is failing, `hot` for only its temperature."""
    for disk in seen:
        warnings = "; ".join(text for bit, text in WORDS.items() if disk.warning & bit)
        raw = f"critical_warning={disk.warning:#04x}"
        if disk.warning & (_SPARE | _WORN | _READ_ONLY | _BACKUP | _PMR):
            yield make_fail_observation("failing", disk.name, warnings, raw)
        elif disk.warning & _HEAT:
            yield make_warn_observation("hot", disk.name, warnings, raw)
