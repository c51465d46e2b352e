"""Check `host.allowance`: traffic beyond what EC2 allows the instance."""

from __future__ import annotations

import re
import struct

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_warn_observation,
)
from hpctl.detection.checks.host_nvme_smart import is_nvme_access_denied
from hpctl.detection.probe import ProbeResult, ProbeRunner

# Traffic that EC2 throttled: network and EBS allowances of the instance that were exceeded.
#
# ENA counts packets that were queued or dropped beyond each allowance (`ethtool -S`, amzn-drivers
# kernel/linux/ena); an EBS volume counts the microseconds for which it, or the instance, was asked
# for more than is allowed (NVMe log page 0xd0, Amazon EBS User Guide, "NVMe statistics").

NET, NVME = "/sys/class/net", "/sys/class/nvme"


DEADLINE_S, WAIT_S = 10.0, 2.0


MOST = 32


EBS_MODEL = "Amazon Elastic Block Store"


_COUNTER = re.compile(r"^\s*(\w+)_allowance_exceeded: (\d{1,20})\s*$", re.MULTILINE)


_CODES = {"conntrack": "conntrack"}


_LOG = ("nvme", "get-log", "--log-id=0xd0", "--log-len=96", "--namespace-id=1")


_ROW = re.compile(r"^[0-9a-f]{4}:((?: [0-9a-f]{2}){1,16})", re.MULTILINE)


_MAGIC = 0x3C23B510


_STATS = struct.Struct("<II10Q")


_EBS_WORDS = ("the volume's IOPS", "the volume's throughput", "the instance's IOPS to EBS",
              "the instance's throughput to EBS")  # fmt: skip


_probes = ProbeRunner(DEADLINE_S)


class Ec2AllowanceSample(Struct, frozen=True):
    """Counters by device and by what was exceeded: packets of the network, microseconds of EBS."""

    network: tuple[tuple[str, str, int], ...]
    ebs: tuple[tuple[str, str, int], ...]


def read_ec2_allowance_counters(machine: CheckedMachine) -> Ec2AllowanceSample:
    """Ask each ENA device and each EBS volume. Raises DeviceAbsentError,
    CheckResultUnknownError."""
    cards = [
        name
        for name in _list_sysfs_entries(machine, NET)
        if _read_network_interface_driver(machine, name) == "ena"
    ]
    volumes = [
        name for name in _list_sysfs_entries(machine, NVME)
        if machine.text(f"{NVME}/{name}/model") == EBS_MODEL
    ]  # fmt: skip
    if not cards and not volumes:
        raise DeviceAbsentError("neither ENA nor EBS")
    network = _run_allowance_probes({name: ("ethtool", "-S", name) for name in cards})
    ebs = _run_allowance_probes({name: (*_LOG, f"/dev/{name}") for name in volumes})
    if not network and not ebs:
        raise DeviceAbsentError("neither ethtool nor nvme-cli tells, or CAP_SYS_ADMIN is missing")
    exceeded, throttled = [], []
    for name, answer in network.items():
        exceeded += [(name, what, count) for what, count in parse_ethtool_allowances(answer.out)]
    for name, answer in ebs.items():
        throttled += [(name, what, count) for what, count in parse_ebs_statistics(answer.out)]
    return Ec2AllowanceSample(tuple(exceeded), tuple(throttled))


def _list_sysfs_entries(machine: CheckedMachine, folder: str) -> list[str]:
    try:
        return sorted(place.name for place in machine.path(folder).iterdir())[:MOST]
    except OSError:
        return []


def _read_network_interface_driver(machine: CheckedMachine, name: str) -> str:
    try:
        return machine.path(f"{NET}/{name}/device/driver").resolve().name
    except OSError:
        return ""


def _run_allowance_probes(questions: dict[str, tuple[str, ...]]) -> dict[str, ProbeResult]:
    """Return the answers of the devices that answered. Raises CheckResultUnknownError where none
    did in time."""
    if not questions:
        return {}
    try:
        replies = _probes.ask(questions, _probes.wait_s(WAIT_S))
    except DeviceAbsentError:
        return {}  # the program is not installed: the other one may be
    answers = {name: one for name, one in replies.items() if isinstance(one, ProbeResult)}
    if not answers:
        raise CheckResultUnknownError(f"{next(iter(questions.values()))[0]} has not answered")
    return {
        name: one
        for name, one in answers.items()
        if not one.exit_code and not is_nvme_access_denied(one)
    }


def parse_ethtool_allowances(text: str) -> list[tuple[str, int]]:
    """Return `bw_in_allowance_exceeded: 12` of `ethtool -S` as `bw_in` and 12."""
    return [(name, int(count)) for name, count in _COUNTER.findall(text)]


def parse_ebs_statistics(text: str) -> list[tuple[str, int]]:
    """Return the log page in nvme-cli's hex dump (`0000: 10 b5 ... "..."`); empty for another
    text."""
    data = bytes.fromhex("".join(_ROW.findall(text)))
    if len(data) < _STATS.size:
        return []
    magic, _, *numbers = _STATS.unpack_from(data)
    return list(zip(_EBS_WORDS, numbers[6:], strict=True)) if magic == _MAGIC else []


def judge_exceeded_ec2_allowances(
    seen: Ec2AllowanceSample, before: Ec2AllowanceSample | None, limits: Limits
) -> Judged:
    """Return counters that grew since the last run, by their share of the time or traffic."""
    if before is None:
        return
    earlier = {(name, what): count for name, what, count in (*before.network, *before.ebs)}
    for code, floor, unit, counters in (
        ("network", limits["packets"], "packets", seen.network),
        ("ebs", limits["ebs_us"], "us", seen.ebs),
    ):
        for name, what, count in counters:
            grew = count - earlier.get((name, what), count)
            if grew >= floor:
                detail = f"{what}: {grew} {unit} since the last look"
                yield make_warn_observation(_CODES.get(what, code), name, detail)
