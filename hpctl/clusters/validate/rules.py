"""What security group rules let through. Pure; the shapes are EC2's own (IpPermissions)."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Permission = Mapping[str, Any]

ALL = "-1"
"""EC2's word for every protocol."""


@dataclass(frozen=True, slots=True)
class Peers:
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
