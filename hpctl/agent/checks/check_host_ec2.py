"""What EC2 gives the instance: its disks and cards, its allowances, a spot interruption."""

from __future__ import annotations

import json
import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from hpctl.agent.check import CannotTell, Functions, Judged, Limits, Machine, NotHere, fail, warn
from hpctl.agent.checks.check_host_disks import refused
from hpctl.agent.machine import shape_of
from hpctl.agent.probe import ProbeResult, Probes

if TYPE_CHECKING:
    from http.client import HTTPConnection

# --- host.devices ----------
# The instance's own NVMe disks and its network cards: as many as there should be, and were.
#
# What a device is, its PCI function says: an EBS volume or a network interface that somebody
# attached or took away is another matter, and only what the instance type brings is counted.

PCI = "/sys/bus/pci/devices"
AMAZON, MELLANOX = "0x1d0f", "0x15b3"
# Amazon's PCI functions (drivers/nvme/host/pci.c and amzn-drivers): instance storage, and ENA.
_DISKS = frozenset({"0xcd00", "0xcd01", "0xcd02"})
_ENA = frozenset({"0x0ec2", "0x1ec2", "0xec20", "0xec21"})
_NETWORK = "0x02"
"""PCI class of network controllers."""


class Sample(Struct, frozen=True):
    """PCI addresses now, those of network cards that are gone since the agent began, and how many
    disks the instance type has."""

    disks: tuple[str, ...]
    cards: tuple[str, ...]
    gone: tuple[str, ...]
    expected_disks: int | None


@lru_cache(maxsize=4)
def _seen(root: Path) -> set[str]:
    return set()


def gather_devices(machine: Machine) -> Sample:
    """Look at every PCI function. Raises NotHere where there is none of either."""
    disks, cards = [], []
    for folder in sorted(machine.path(PCI).glob("*")):
        try:
            vendor, device, kind = (
                (folder / name).read_text().strip() for name in ("vendor", "device", "class")
            )
        except OSError:
            continue  # one that goes while it is looked at is not there
        if vendor == AMAZON and device in _DISKS:
            disks.append(folder.name)
        elif kind.startswith(_NETWORK) and (vendor == MELLANOX or device in _ENA):
            cards.append(folder.name)
    seen = _seen(machine.root)
    gone = tuple(sorted(seen - set(cards)))
    seen.update(cards)
    expected = shape_of(machine.expected.instance_type).nvme_disks
    if not disks and not cards and not gone:
        raise NotHere("no network card, and no disk of an instance")
    return Sample(tuple(disks), tuple(cards), gone, expected)


def judge_devices(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Too few disks; network cards that were there and are not.

    Where not one disk is to be seen it is rather the view that is cut off: a machine does not lose
    all of them at once.
    """
    if seen.expected_disks is not None and 0 < len(seen.disks) < seen.expected_disks:
        detail = f"{len(seen.disks)} of {seen.expected_disks} instance-storage disks on the bus"
        yield fail("nvme", "", detail)
    for card in seen.gone:
        yield warn("network", card, "the network card was there and is gone")


# --- host.allowance ----------
# Traffic that EC2 held back: network and EBS allowances of the instance that were exceeded.
#
# ENA counts packets that were queued or dropped beyond each allowance (`ethtool -S`, amzn-drivers
# kernel/linux/ena); an EBS volume counts the microseconds for which more was asked of it, or of the
# instance, than is allowed (NVMe log page 0xd0, Amazon EBS User Guide, "NVMe statistics").

NET, NVME = "/sys/class/net", "/sys/class/nvme"
DEADLINE_S, WAIT_S = 10.0, 2.0
MOST = 32
_EBS = "Amazon Elastic Block Store"
_COUNTER = re.compile(r"^\s*(\w+)_allowance_exceeded: (\d{1,20})\s*$", re.MULTILINE)
_CODES = {"conntrack": "conntrack"}
_LOG = ("nvme", "get-log", "--log-id=0xd0", "--log-len=96", "--namespace-id=1")
_ROW = re.compile(r"^[0-9a-f]{4}:((?: [0-9a-f]{2}){1,16})", re.MULTILINE)
_MAGIC = 0x3C23B510
_STATS = struct.Struct("<II10Q")
_EBS_WORDS = ("the volume's IOPS", "the volume's throughput", "the instance's IOPS to EBS",
              "the instance's throughput to EBS")  # fmt: skip

_probes = Probes(DEADLINE_S)


class AllowanceSample(Struct, frozen=True):
    """Counters by device and by what was exceeded: packets of the network, microseconds of EBS."""

    network: tuple[tuple[str, str, int], ...]
    ebs: tuple[tuple[str, str, int], ...]


def gather_allowance(machine: Machine) -> AllowanceSample:
    """Ask each ENA device and each EBS volume. Raises NotHere, CannotTell."""
    cards = [name for name in _names(machine, NET) if _driver(machine, name) == "ena"]
    volumes = [
        name for name in _names(machine, NVME)
        if machine.text(f"{NVME}/{name}/model") == _EBS
    ]  # fmt: skip
    if not cards and not volumes:
        raise NotHere("neither ENA nor EBS")
    network = _asked({name: ("ethtool", "-S", name) for name in cards})
    ebs = _asked({name: (*_LOG, f"/dev/{name}") for name in volumes})
    if not network and not ebs:
        raise NotHere("neither ethtool nor nvme-cli tells, or CAP_SYS_ADMIN is missing")
    return AllowanceSample(
        tuple((name, *one) for name, answer in network.items() for one in allowances(answer.out)),
        tuple((name, *one) for name, answer in ebs.items() for one in ebs_stats(answer.out)),
    )


def _names(machine: Machine, folder: str) -> list[str]:
    try:
        return sorted(place.name for place in machine.path(folder).iterdir())[:MOST]
    except OSError:
        return []


def _driver(machine: Machine, name: str) -> str:
    try:
        return machine.path(f"{NET}/{name}/device/driver").resolve().name
    except OSError:
        return ""


def _asked(questions: dict[str, tuple[str, ...]]) -> dict[str, ProbeResult]:
    """Those that answered. Raises CannotTell where none did in time."""
    if not questions:
        return {}
    try:
        replies = _probes.ask(questions, _probes.wait_s(WAIT_S))
    except NotHere:
        return {}  # the program is not installed: the other one may be
    answers = {name: one for name, one in replies.items() if isinstance(one, ProbeResult)}
    if not answers:
        raise CannotTell(f"{next(iter(questions.values()))[0]} has not answered")
    return {name: one for name, one in answers.items() if not one.exit_code and not refused(one)}


def allowances(text: str) -> list[tuple[str, int]]:
    """`bw_in_allowance_exceeded: 12` of `ethtool -S`, as `bw_in` and 12."""
    return [(name, int(count)) for name, count in _COUNTER.findall(text)]


def ebs_stats(text: str) -> list[tuple[str, int]]:
    """The log page in nvme-cli's hex dump (`0000: 10 b5 ... "..."`); nothing if it is none."""
    data = bytes.fromhex("".join(_ROW.findall(text)))
    if len(data) < _STATS.size:
        return []
    magic, _, *numbers = _STATS.unpack_from(data)
    return list(zip(_EBS_WORDS, numbers[6:], strict=True)) if magic == _MAGIC else []


def judge_allowance(
    seen: AllowanceSample, before: AllowanceSample | None, limits: Limits
) -> Judged:
    """Counters that grew since the last look, by the share that matters."""
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
                yield warn(_CODES.get(what, code), name, detail)


# --- host.spot ----------
# A spot instance that EC2 is about to take back: two minutes' notice, by its metadata service.
#
# `spot/instance-action` answers 404 until there is a notice, and then what happens when. Asked by
# IMDSv2 (a token first), on the link-local address, and only where agent.yaml says
# `expected: {spot: true}`: elsewhere nothing is asked. A metadata service that does not answer is
# UNKNOWN, which is no notice.

TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"
TOKEN_S = 21600
"""How long a token is good: IMDSv2's most."""
TIMEOUT_S = 1.0
LARGEST = 4096


class Notice(Struct, frozen=True):
    """What the metadata service answered; no action: there is no notice."""

    action: str = ""
    at: str = ""
    raw: str = ""


class _Token:
    """The session's token, kept between looks."""

    value = ""


def gather_spot(machine: Machine) -> Notice:
    """Ask for a notice. Raises NotHere where spot is not expected, CannotTell without an answer."""
    if not machine.expected.spot:
        raise NotHere("not expected to be a spot instance")
    # Only a spot instance pays for the module: two megabytes.
    from http.client import HTTPConnection, HTTPException

    place = urlsplit(machine.expected.metadata_url)
    connection = HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)
    try:
        status, body = _ask(connection)
    except (OSError, HTTPException) as error:
        _Token.value = ""
        raise CannotTell(f"the metadata service does not answer: {error}") from error
    finally:
        connection.close()
    if status == 404:
        return Notice()
    if status != 200:
        raise CannotTell(f"the metadata service answered {status}")
    return _notice(body)


def _ask(connection: HTTPConnection) -> tuple[int, str]:
    """The answer, with a fresh token where the one that is kept is not good any more."""
    for _ in range(2):
        if not _Token.value:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            connection.request("PUT", TOKEN, headers=lifetime)
            answer = connection.getresponse()
            token = answer.read(LARGEST).decode("ascii", "replace")
            if answer.status != 200:
                raise CannotTell(f"the metadata service gives no token: {answer.status}")
            _Token.value = token
        connection.request("GET", ACTION, headers={"X-aws-ec2-metadata-token": _Token.value})
        answer = connection.getresponse()
        body = answer.read(LARGEST).decode("utf-8", "replace")
        if answer.status != 401:
            return answer.status, body
        _Token.value = ""
    return 401, ""


def _notice(body: str) -> Notice:
    try:
        notice = json.loads(body)
        return Notice(str(notice["action"]), str(notice.get("time", "")), " ".join(body.split()))
    except (ValueError, KeyError, TypeError) as error:
        raise CannotTell(f"the notice cannot be read: {body[:200]!r}") from error


def judge_spot(seen: Notice, before: Notice | None, limits: Limits) -> Judged:
    """`interruption`, whatever becomes of the instance then: its jobs end either way."""
    if seen.action:
        when = f" at {seen.at}" if seen.at else ""
        yield fail("interruption", "", f"EC2 will {seen.action} the instance{when}", seen.raw)


CHECKS = {
    "host.devices": Functions(gather_devices, judge_devices),
    "host.allowance": Functions(gather_allowance, judge_allowance),
    "host.spot": Functions(gather_spot, judge_spot),
}
"""What the runner calls, by the check's name."""
