"""What security group rules let through. Pure; the shapes are EC2's own (IpPermissions)."""

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from msgspec import Struct

from hpctl.clusters.validate.facts import Facts, Family
from hpctl.clusters.validate.network import all_there, networks
from hpctl.clusters.validate.wanted import (
    Finding,
    Group,
    Network,
    Unanswered,
    Wanted,
    fail,
    ok,
    settled,
)

FAMILY = Family("security-groups", "Security groups of the nodes.", ("network", "living"))

Permission = Mapping[str, Any]

ALL = "-1"
"""EC2's word for every protocol."""


class Peers(Struct, frozen=True):
    """Who is at the other end: the security groups that they carry, and their networks."""

    groups: Collection[str]
    cidrs: Sequence[str] = ()


def everything(permissions: Iterable[Permission], peers: Peers, *, by_group: bool = False) -> bool:
    """Whether some rule lets all traffic of these peers through.

    `by_group`: only a rule that names a security group counts. That is what EFA needs: its
    traffic is not IP, and no block of addresses matches it (EC2 User Guide, "Get started with
    EFA": all traffic to and from the security group itself).
    """
    return any(
        rule["IpProtocol"] == ALL and _names(rule, peers, by_group=by_group) for rule in permissions
    )


def ports(permissions: Iterable[Permission], protocol: str, wanted: range, peers: Peers) -> bool:
    """Whether every one of these ports is open to these peers, by one rule or several."""
    open_spans = sorted(
        span
        for rule in permissions
        if _names(rule, peers, by_group=False) and (span := _span(rule, protocol))
    )
    reached = wanted.start
    for first, last in open_spans:
        if first <= reached:
            reached = max(reached, last + 1)
    return reached >= wanted.stop


def _span(rule: Permission, protocol: str) -> tuple[int, int] | None:
    """The ports that a rule opens, both ends included."""
    if rule["IpProtocol"] == ALL:
        return 0, 65535
    if rule["IpProtocol"] != protocol:
        return None
    # Without ports a rule of tcp or udp is open for all of them.
    return int(rule.get("FromPort", 0)), int(rule.get("ToPort", 65535))


def _names(rule: Permission, peers: Peers, *, by_group: bool) -> bool:
    """Whether a rule is for all of these peers: for a group they carry, or for their networks."""
    if any(pair.get("GroupId") in peers.groups for pair in rule.get("UserIdGroupPairs") or ()):
        return True
    if by_group or not peers.cidrs:
        return False
    blocks = [
        ipaddress.ip_network(block, strict=False)
        for block in (
            *(r["CidrIp"] for r in rule.get("IpRanges") or ()),
            *(r["CidrIpv6"] for r in rule.get("Ipv6Ranges") or ()),
        )
    ]
    return all(
        any(_inside(ipaddress.ip_network(cidr, strict=False), block) for block in blocks)
        for cidr in peers.cidrs
    )


def _inside(inner: Any, outer: Any) -> bool:
    return inner.version == outer.version and bool(inner.subnet_of(outer))


INGRESS, EGRESS = "IpPermissions", "IpPermissionsEgress"
ALL_TCP = range(65536)

Entries = Mapping[str, Mapping[str, Any]]


@FAMILY.check("groups-exist")
def exist(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Every security group is there."""
    ids = {network: network.security_groups for network in networks(wanted)}
    found = facts.network.security_groups
    yield from all_there("security group", "SecurityGroupIds", found, ids, facts.region)


@FAMILY.check("themselves")
def themselves(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Nodes of one network reach each other both ways; with EFA by a rule for all traffic that
    names the security group itself.
    """
    found = facts.network.security_groups
    if isinstance(found, Unanswered):
        return
    for network, groups in networks(wanted).items():
        entries = _entries(network, found)
        if not entries:
            continue
        efa = [group.name for group in groups if facts.has_efa(group)]
        peers = Peers(set(entries), facts.network.cidrs(network.subnets))
        if not efa and not peers.cidrs:
            # Subnets that nobody knows: whether a rule for addresses covers them is open.
            continue
        names = ", ".join(group.name for group in groups)
        yield from settled(
            _both_ways(network, entries, peers, efa),
            f"{names}: {', '.join(entries)} allow each other both ways",
            (*network.place, "SecurityGroupIds"),
        )


@FAMILY.check("each-other")
def each_other(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Groups in different networks reach each other.

    Head nodes and workers must.
    """
    found = facts.network.security_groups
    if isinstance(found, Unanswered):
        return
    by_network = networks(wanted)
    for here, there in permutations(by_network, 2):
        if set(here.security_groups) == set(there.security_groups):
            continue
        ours, theirs = _entries(here, found), _entries(there, found)
        if not ours or not theirs:
            continue
        them = Peers(set(theirs), facts.network.cidrs(there.subnets))
        us = Peers(set(ours), facts.network.cidrs(here.subnets))
        if not them.cidrs or not us.cidrs:
            continue
        closed = [
            way
            for way, entries, peers in (("in", ours, them), ("out", theirs, us))
            if not _tcp(entries, INGRESS if way == "in" else EGRESS, peers)
        ]
        yield _verdict(by_network[here], by_network[there], here, there, closed)


def _both_ways(
    network: Network, entries: Entries, peers: Peers, efa: Sequence[str]
) -> Iterator[Finding]:
    place = (*network.place, "SecurityGroupIds")
    ids = ", ".join(entries)
    for key, way, word in ((INGRESS, "in", "inbound"), (EGRESS, "out", "outbound")):
        permissions = _permissions(entries, key)
        if efa and not everything(permissions, peers, by_group=True):
            yield fail(
                place,
                f"{ids}: no {word} rule lets all traffic of the security group itself {way}; EFA "
                f"({', '.join(efa)}) needs one that names the group, a block of addresses will "
                "not do",
                f"add an {word} rule: all traffic, {'from' if way == 'in' else 'to'} the security "
                "group itself",
            )
        elif not efa and not _tcp(entries, key, peers):
            yield fail(
                place,
                f"{ids}: no {word} rule lets the nodes' own traffic {way}; slurmctld, slurmd and "
                "srun talk on ports of their choice",
                f"add an {word} rule: all traffic, {'from' if way == 'in' else 'to'} the security "
                "group itself",
            )


def _verdict(
    ours: list[Group], theirs: list[Group], here: Network, there: Network, closed: list[str]
) -> Finding:
    us, them = (", ".join(group.name for group in groups) for groups in (ours, theirs))
    place = (*here.place, "SecurityGroupIds")
    if not closed:
        return ok(f"{them} reach {us}", place)
    sides = " and ".join(
        f"{', '.join(here.security_groups)} do not let them in"
        if way == "in"
        else f"{', '.join(there.security_groups)} do not let them out"
        for way in closed
    )
    return fail(
        place,
        f"{them} cannot reach {us}: {sides}",
        "allow all TCP between the security groups of the two, inbound on one and outbound on "
        "the other",
    )


def _tcp(entries: Entries, key: str, peers: Peers) -> bool:
    return ports(_permissions(entries, key), "tcp", ALL_TCP, peers)


def _permissions(entries: Entries, key: str) -> list[Mapping[str, Any]]:
    return [rule for entry in entries.values() for rule in entry.get(key) or ()]


def _entries(network: Network, found: Entries) -> dict[str, Mapping[str, Any]]:
    return {g: found[g] for g in network.security_groups if g in found}
