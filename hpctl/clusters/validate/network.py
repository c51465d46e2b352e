"""The subnets: there, in one VPC, in one zone, and with room for the nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.network_facts import NetworkFacts
from hpctl.clusters.validate.verdict import (
    Check,
    Family,
    Finding,
    Unanswered,
    fail,
    ok,
    settled,
    unknown,
    warn,
)
from hpctl.clusters.validate.wanted import Group, Network, Wanted
from hpctl.clusters.validate.ways_out import endpoints, names_resolve


def networks(wanted: Wanted) -> dict[Network, list[Group]]:
    """Each network of the customer's with its groups. Groups in SageMaker's own are left out."""
    found: dict[Network, list[Group]] = defaultdict(list)
    for group in wanted.groups:
        if group.network.subnets or group.network.security_groups:
            found[group.network].append(group)
    return found


def subnets_exist(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Every subnet that the file names is there."""
    ids = {network: network.subnets for network in networks(wanted)}
    yield from all_there("subnet", "Subnets", facts.network.subnets, ids, facts.region)


def all_there(
    kind: str,
    field: str,
    found: Mapping[str, Any] | Unanswered,
    ids: Mapping[Network, Sequence[str]],
    region: str,
) -> Iterator[Finding]:
    """Whether everything of a `kind` that networks name in `field` was found."""
    if isinstance(found, Unanswered):
        yield unknown(("VpcConfig", field), found)
        return
    named = {one: network for network, ones in ids.items() for one in ones}
    if not named:
        return
    yield from settled(
        (
            fail(
                (*network.place, field, ids[network].index(one)),
                f"there is no {kind} {one} in {region}",
                "check the id and --region",
            )
            for one, network in named.items()
            if one not in found
        ),
        f"{len(named)} {kind}{'s' * (len(named) > 1)} found",
    )


def one_vpc(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """All subnets and security groups are of one VPC."""
    network = facts.network
    subnets, groups = network.subnets, network.security_groups
    if isinstance(subnets, Unanswered) or isinstance(groups, Unanswered):
        return
    by_vpc: dict[str, set[str]] = defaultdict(set)
    for entry in subnets.values():
        by_vpc[str(entry["VpcId"])].add(str(entry["SubnetId"]))
    for entry in groups.values():
        by_vpc[str(entry["VpcId"])].add(str(entry["GroupId"]))
    if len(by_vpc) > 1:
        said = "; ".join(f"{vpc} has {', '.join(sorted(ids))}" for vpc, ids in by_vpc.items())
        yield fail(
            ("VpcConfig",),
            f"the network is spread over {len(by_vpc)} VPCs: {said}",
            "name subnets and security groups of one VPC: nodes of different ones cannot meet",
        )
    elif by_vpc:
        yield ok(f"everything is in {next(iter(by_vpc))}")


def one_zone(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """A group's subnets are in one availability zone: EFA traffic does not leave it."""
    for network, groups in networks(wanted).items():
        zones = sorted(name for name, _ in facts.network.zones(network.subnets))
        names = ", ".join(group.name for group in groups)
        if len(zones) > 1:
            yield warn(
                (*network.place, "Subnets"),
                f"the subnets of {names} are in {len(zones)} zones ({', '.join(zones)}): "
                "the service takes one of them, and you cannot say which",
                "name subnets of one zone; give other zones to other groups",
            )
        elif zones:
            yield ok(f"{names}: {zones[0]}", (*network.place, "Subnets"))


def room(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The subnets have an address for every new node, and for each of its network cards."""
    subnets = facts.network.subnets
    if isinstance(subnets, Unanswered):
        return
    for network, groups in networks(wanted).items():
        known = [subnets[s] for s in network.subnets if s in subnets]
        if not known:
            continue
        free = sum(int(subnet["AvailableIpAddressCount"]) for subnet in known)
        nodes = sum(facts.new_nodes(group) for group in groups)
        cards = sum(facts.new_nodes(group) * _addresses(group, facts.network) for group in groups)
        yield _room(network, groups, free, nodes, cards)


def _room(network: Network, groups: list[Group], free: int, nodes: int, cards: int) -> Finding:
    place = (*network.place, "Subnets")
    names = ", ".join(group.name for group in groups)
    have = f"the subnets of {names} have {free} free addresses"
    mend = "name larger subnets: the size of one cannot be changed later"
    if free < nodes:
        return fail(place, f"{have}, and {nodes} new nodes need one each", mend)
    if free < cards:
        return warn(
            place,
            f"{have}: enough for {nodes} new nodes, but not for all their {cards} cards",
            mend,
        )
    return ok(f"{names}: {free} free addresses for {nodes} new nodes", place)


def _addresses(group: Group, facts: NetworkFacts) -> int:
    """What a node of a group takes: one for each network card (HyperPod: 32 for a P5)."""
    if group.raw.get("NetworkInterface", {}).get("InterfaceType") == "efa-only":
        return 1
    return max((facts.cards(kind) for kind in group.types), default=1)


FAMILY = Family(
    "network",
    "Subnets, routes and names.",
    ("network", "living"),
    (
        Check("subnets-exist", "Every subnet is there.", subnets_exist),
        Check("one-vpc", "All subnets and security groups are of one VPC.", one_vpc),
        Check("one-zone", "The subnets of a group are in one availability zone.", one_zone),
        Check("room", "The subnets have addresses for the new nodes and their cards.", room),
        Check("ways-out", "The nodes reach S3 and SageMaker: by NAT or VPC endpoints.", endpoints),
        Check("names", "The VPC resolves the names of file systems.", names_resolve),
    ),
)
