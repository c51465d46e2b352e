"""The network: subnets in one VPC and one zone with room for the nodes, and ways out of it."""

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations
from typing import Any

from msgspec import Struct

from hpctl.clusters.validate.facts import (
    Ec2ListOperation,
    Listed,
    NetworkFacts,
    SpecCheckFamily,
    SpecValidationFacts,
    call_aws_or_return_none_if_missing,
    find_security_groups,
    list_ec2_resources_by_id,
)
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    InstanceGroupNetwork,
    Place,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
    list_findings_or_ok,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
    make_warning_finding,
)
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

FAMILY = SpecCheckFamily("network", "Subnets, routes and names.", ("network", "living"))


def gather_network_facts(aws: AwsClientFactory, wanted: RequestedCluster) -> NetworkFacts:
    """A handful of calls, whatever the number of groups."""
    networks = {group.network for group in wanted.groups}
    types = sorted(set(chain.from_iterable(group.types for group in wanted.groups)))
    subnets = sorted(set(chain.from_iterable(network.subnets for network in networks)))
    groups = sorted(set(chain.from_iterable(network.security_groups for network in networks)))
    if not subnets and not groups:
        return NetworkFacts()
    ec2 = aws.service("ec2")
    found = list_ec2_resources_by_id(
        ec2, Ec2ListOperation("describe_subnets", "Subnets", "SubnetId", "subnet-id"), subnets
    )
    vpcs = [] if isinstance(found, FailedAwsCall) else sorted({s["VpcId"] for s in found.values()})
    return NetworkFacts(
        subnets=found,
        security_groups=find_security_groups(ec2, groups),
        route_tables=list_ec2_resources_by_id(
            ec2,
            Ec2ListOperation("describe_route_tables", "RouteTables", "RouteTableId", "vpc-id"),
            vpcs,
        ),
        endpoints=list_ec2_resources_by_id(
            ec2,
            Ec2ListOperation("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "vpc-id"),
            vpcs,
        ),
        dns={vpc: _query_vpc_dns_enabled(ec2, vpc) for vpc in vpcs},
        types=_describe_ec2_instance_types(ec2, types),
    )


def _describe_ec2_instance_types(ec2: AwsServiceClient, types: list[str]) -> Listed:
    """SageMaker's `ml.p5.48xlarge` is EC2's `p5.48xlarge`."""
    names = [kind.removeprefix("ml.") for kind in types]
    found = list_ec2_resources_by_id(
        ec2,
        Ec2ListOperation(
            "describe_instance_types", "InstanceTypes", "InstanceType", "instance-type"
        ),
        names,
    )
    if isinstance(found, FailedAwsCall):
        return found
    return {f"ml.{name}": entry for name, entry in found.items()}


def _query_vpc_dns_enabled(ec2: AwsServiceClient, vpc: str) -> bool | FailedAwsCall:
    def are_vpc_dns_attributes_enabled() -> bool:
        return all(
            ec2.read("describe_vpc_attribute", VpcId=vpc, Attribute=name)[key]["Value"]
            for name, key in (
                ("enableDnsSupport", "EnableDnsSupport"),
                ("enableDnsHostnames", "EnableDnsHostnames"),
            )
        )

    answer = call_aws_or_return_none_if_missing(are_vpc_dns_attributes_enabled)
    return answer if isinstance(answer, FailedAwsCall) else bool(answer)


def map_networks_to_instance_groups(
    wanted: RequestedCluster,
) -> dict[InstanceGroupNetwork, list[RequestedInstanceGroup]]:
    """Each network of the customer's with its groups. Groups in SageMaker's own are left out."""
    found: dict[InstanceGroupNetwork, list[RequestedInstanceGroup]] = defaultdict(list)
    for group in wanted.groups:
        if group.network.subnets or group.network.security_groups:
            found[group.network].append(group)
    return found


@FAMILY.check("subnets-exist")
def check_subnets_exist(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Every subnet is there."""
    ids = {network: network.subnets for network in map_networks_to_instance_groups(wanted)}
    yield from check_vpc_resource_ids_exist(
        "subnet", "Subnets", facts.network.subnets, ids, facts.region
    )


def check_vpc_resource_ids_exist(
    kind: str,
    field: str,
    found: Mapping[str, Any] | FailedAwsCall,
    ids: Mapping[InstanceGroupNetwork, Sequence[str]],
    region: str,
) -> Iterator[SpecFinding]:
    """Whether everything of a `kind` that networks name in `field` was found."""
    if isinstance(found, FailedAwsCall):
        yield make_unknown_finding(("VpcConfig", field), found)
        return
    named: dict[str, InstanceGroupNetwork] = {}
    for network, ones in ids.items():
        named |= dict.fromkeys(ones, network)
    if not named:
        return
    yield from list_findings_or_ok(
        (
            make_failure_finding(
                (*network.place, field, ids[network].index(one)),
                f"there is no {kind} {one} in {region}",
                "check the id and --region",
            )
            for one, network in named.items()
            if one not in found
        ),
        f"{len(named)} {kind}{'s' * (len(named) > 1)} found",
    )


@FAMILY.check("one-vpc")
def check_all_networks_share_vpc(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """All subnets and security groups are of one VPC."""
    network = facts.network
    subnets, groups = network.subnets, network.security_groups
    if isinstance(subnets, FailedAwsCall) or isinstance(groups, FailedAwsCall):
        return
    by_vpc: dict[str, set[str]] = defaultdict(set)
    for entry in subnets.values():
        by_vpc[str(entry["VpcId"])].add(str(entry["SubnetId"]))
    for entry in groups.values():
        by_vpc[str(entry["VpcId"])].add(str(entry["GroupId"]))
    if len(by_vpc) > 1:
        text = "; ".join(f"{vpc} has {', '.join(sorted(ids))}" for vpc, ids in by_vpc.items())
        yield make_failure_finding(
            ("VpcConfig",),
            f"the network is spread over {len(by_vpc)} VPCs: {text}",
            "name subnets and security groups of one VPC: nodes of different ones cannot meet",
        )
    elif by_vpc:
        yield make_ok_finding(f"everything is in {next(iter(by_vpc))}")


@FAMILY.check("one-zone")
def check_group_subnets_share_zone(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The subnets of a group are in one availability zone.

    EFA traffic does not leave it.
    """
    for network, groups in map_networks_to_instance_groups(wanted).items():
        zones = sorted(name for name, _ in facts.network.zones(network.subnets))
        names = ", ".join(group.name for group in groups)
        if len(zones) > 1:
            yield make_warning_finding(
                (*network.place, "Subnets"),
                f"the subnets of {names} are in {len(zones)} zones ({', '.join(zones)}): "
                "the service takes one of them, and you cannot say which",
                "name subnets of one zone; give other zones to other groups",
            )
        elif zones:
            yield make_ok_finding(f"{names}: {zones[0]}", (*network.place, "Subnets"))


@FAMILY.check("room")
def check_subnets_have_free_ip_addresses(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The subnets have addresses for the new nodes and their cards."""
    subnets = facts.network.subnets
    if isinstance(subnets, FailedAwsCall):
        return
    for network, groups in map_networks_to_instance_groups(wanted).items():
        known = [subnets[s] for s in network.subnets if s in subnets]
        if not known:
            continue
        free = sum(int(subnet["AvailableIpAddressCount"]) for subnet in known)
        nodes = sum(facts.new_nodes(group) for group in groups)
        cards = sum(
            facts.new_nodes(group) * _count_ip_addresses_per_node(group, facts.network)
            for group in groups
        )
        yield _make_free_ip_address_finding(network, groups, free, nodes, cards)


def _make_free_ip_address_finding(
    network: InstanceGroupNetwork,
    groups: list[RequestedInstanceGroup],
    free: int,
    nodes: int,
    cards: int,
) -> SpecFinding:
    place = (*network.place, "Subnets")
    names = ", ".join(group.name for group in groups)
    have = f"the subnets of {names} have {free} free addresses"
    fix = "name larger subnets: the size of one cannot be changed later"
    if free < nodes:
        return make_failure_finding(place, f"{have}, and {nodes} new nodes need one each", fix)
    if free < cards:
        return make_warning_finding(
            place, f"{have}: enough for {nodes} new nodes, but not for all their {cards} cards", fix
        )
    return make_ok_finding(f"{names}: {free} free addresses for {nodes} new nodes", place)


def _count_ip_addresses_per_node(group: RequestedInstanceGroup, facts: NetworkFacts) -> int:
    """What a node of a group takes: one for each network card (HyperPod: 32 for a P5)."""
    if group.raw.get("NetworkInterface", {}).get("InterfaceType") == "efa-only":
        return 1
    return max((facts.cards(kind) for kind in group.types), default=1)


SERVICES: Mapping[str, str] = {
    "s3": "lifecycle scripts and checkpoints cannot be read",
    "sagemaker.api": "hpctl's daemon cannot have nodes replaced",
}
"""What a node calls without a user's request, and what fails without a way there."""


@FAMILY.check("ways-out")
def check_subnet_routes_to_aws_services(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The nodes reach S3 and SageMaker: by NAT or VPC endpoints."""
    network = facts.network
    if isinstance(network.subnets, FailedAwsCall):
        return
    for part in (network.route_tables, network.endpoints):
        if isinstance(part, FailedAwsCall):
            yield make_unknown_finding(("VpcConfig", "Subnets"), part)
            return
    for subnet, place in sorted(_map_subnet_ids_to_request_paths(wanted).items()):
        if subnet in network.subnets:
            yield from list_findings_or_ok(
                _find_unreachable_aws_services(subnet, place, network, facts.region),
                f"{subnet} has a way to S3 and SageMaker",
                place,
            )


@FAMILY.check("names")
def check_vpc_dns_enabled(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The VPC resolves the names of file systems."""
    mounts = list(chain.from_iterable(group.file_systems for group in wanted.groups))
    if not mounts:
        return
    for vpc, on in facts.network.dns.items():
        if isinstance(on, FailedAwsCall):
            yield make_unknown_finding(("VpcConfig",), on)
        elif on:
            yield make_ok_finding(f"{vpc} resolves names")
        else:
            yield make_failure_finding(
                ("VpcConfig",),
                f"{vpc} has DNS resolution or DNS hostnames turned off, so nodes do not find "
                f"{mounts[0].dns_name}",
                "turn on enableDnsSupport and enableDnsHostnames (aws ec2 modify-vpc-attribute)",
            )


def _map_subnet_ids_to_request_paths(wanted: RequestedCluster) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for group in wanted.groups:
        for at, subnet in enumerate(group.network.subnets):
            places[subnet] = (*group.network.place, "Subnets", at)
    return places


def _find_unreachable_aws_services(
    subnet: str, place: Place, network: NetworkFacts, region: str
) -> Iterator[SpecFinding]:
    table = _find_subnet_route_table(subnet, network)
    routes = table.get("Routes") or ()
    default = [
        route
        for route in routes
        if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") != "blackhole"
    ]
    ways = [r for r in default if not str(r.get("GatewayId", "")).startswith("igw-")]
    if ways:
        return
    served = _list_services_reachable_by_endpoint(subnet, table, network, region)
    without = [name for name in SERVICES if name not in served]
    if not without:
        return
    why = (
        "its default route is an internet gateway, and HyperPod's interfaces have no public address"
        if default
        else "it has no default route"
    )
    harm = "; ".join(f"without {name}, {SERVICES[name]}" for name in without)
    yield make_warning_finding(
        place,
        f"{subnet} has no way to {' and '.join(without)}: {why}; {harm}",
        "use a private subnet with a NAT gateway, or add VPC endpoints for "
        + " and ".join(f"com.amazonaws.{region}.{name}" for name in without),
    )


def _find_subnet_route_table(subnet: str, network: NetworkFacts) -> Mapping[str, Any]:
    """The subnet's own route table, else its VPC's main one."""
    assert not isinstance(network.route_tables, FailedAwsCall)
    assert not isinstance(network.subnets, FailedAwsCall)
    vpc = network.subnets[subnet]["VpcId"]
    main: Mapping[str, Any] = {}
    for table in network.route_tables.values():
        for link in table.get("Associations") or ():
            if link.get("SubnetId") == subnet:
                return table
            if link.get("Main") and table.get("VpcId") == vpc:
                main = table
    return main


def _list_services_reachable_by_endpoint(
    subnet: str, table: Mapping[str, Any], network: NetworkFacts, region: str
) -> set[str]:
    """Names of the services that the subnet reaches by endpoints."""
    assert not isinstance(network.endpoints, FailedAwsCall)
    assert not isinstance(network.subnets, FailedAwsCall)
    vpc = network.subnets[subnet]["VpcId"]
    found = set()
    for endpoint in network.endpoints.values():
        if endpoint.get("VpcId") != vpc or endpoint.get("State", "available") != "available":
            continue
        # An interface's private address is reached from every subnet of the VPC.
        tables = endpoint.get("RouteTableIds") or ()
        if endpoint.get("VpcEndpointType") == "Interface" or table.get("RouteTableId") in tables:
            # com.amazonaws.us-east-1.s3, and in China cn.com.amazonaws.cn-north-1.s3.
            found.add(str(endpoint.get("ServiceName", "")).partition(f".{region}.")[2])
    return found


GROUPS = SpecCheckFamily("security-groups", "Security groups of the nodes.", ("network", "living"))

Permission = Mapping[str, Any]

ALL = "-1"
"""EC2's word for every protocol."""


class SecurityGroupRulePeers(Struct, frozen=True):
    """Who is at the other end: the security groups that they carry, and their networks."""

    groups: Collection[str]
    cidrs: Sequence[str] = ()


def has_rule_allowing_all_traffic(
    permissions: Iterable[Permission], peers: SecurityGroupRulePeers, *, by_group: bool = False
) -> bool:
    """Whether some rule lets all traffic of these peers through.

    `by_group`: only a rule that names a security group counts. That is what EFA needs: its
    traffic is not IP, and no block of addresses matches it (EC2 User Guide, "Get started with
    EFA": all traffic to and from the security group itself).
    """
    return any(
        rule["IpProtocol"] == ALL
        and _is_rule_applicable_to_all_peers(rule, peers, by_group=by_group)
        for rule in permissions
    )


def are_ports_open_to_peers(
    permissions: Iterable[Permission], protocol: str, wanted: range, peers: SecurityGroupRulePeers
) -> bool:
    """Whether every one of these ports is open to these peers, by one rule or several."""
    open_spans = sorted(
        span
        for rule in permissions
        if _is_rule_applicable_to_all_peers(rule, peers, by_group=False)
        and (span := _get_security_group_rule_port_range(rule, protocol))
    )
    reached = wanted.start
    for first, last in open_spans:
        if first <= reached:
            reached = max(reached, last + 1)
    return reached >= wanted.stop


def _get_security_group_rule_port_range(rule: Permission, protocol: str) -> tuple[int, int] | None:
    """The ports that a rule opens, both ends included."""
    if rule["IpProtocol"] == ALL:
        return 0, 65535
    if rule["IpProtocol"] != protocol:
        return None
    # Without ports a rule of tcp or udp is open for all of them.
    return int(rule.get("FromPort", 0)), int(rule.get("ToPort", 65535))


def _is_rule_applicable_to_all_peers(
    rule: Permission, peers: SecurityGroupRulePeers, *, by_group: bool
) -> bool:
    """Whether a rule is for all of these peers: for a group they carry, or for their networks."""
    if any(pair.get("GroupId") in peers.groups for pair in rule.get("UserIdGroupPairs") or ()):
        return True
    if by_group or not peers.cidrs:
        return False
    cidrs = [one["CidrIp"] for one in rule.get("IpRanges") or ()]
    cidrs += [one["CidrIpv6"] for one in rule.get("Ipv6Ranges") or ()]
    blocks = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
    return all(_is_cidr_inside_any_block(cidr, blocks) for cidr in peers.cidrs)


def _is_cidr_inside_any_block(cidr: str, blocks: Sequence[Any]) -> bool:
    inner = ipaddress.ip_network(cidr, strict=False)
    return any(_is_subnet_of_network(inner, block) for block in blocks)


def _is_subnet_of_network(inner: Any, outer: Any) -> bool:
    return inner.version == outer.version and bool(inner.subnet_of(outer))


INGRESS, EGRESS = "IpPermissions", "IpPermissionsEgress"
ALL_TCP = range(65536)

Entries = Mapping[str, Mapping[str, Any]]


@GROUPS.check("groups-exist")
def check_security_groups_exist(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Every security group is there."""
    ids = {network: network.security_groups for network in map_networks_to_instance_groups(wanted)}
    found = facts.network.security_groups
    yield from check_vpc_resource_ids_exist(
        "security group", "SecurityGroupIds", found, ids, facts.region
    )


@GROUPS.check("themselves")
def check_node_traffic_within_network(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Nodes of one network reach each other both ways; with EFA by a rule for all traffic that
    names the security group itself.
    """
    found = facts.network.security_groups
    if isinstance(found, FailedAwsCall):
        return
    for network, groups in map_networks_to_instance_groups(wanted).items():
        entries = _select_network_security_groups(network, found)
        if not entries:
            continue
        efa = [group.name for group in groups if facts.has_efa(group)]
        peers = SecurityGroupRulePeers(set(entries), facts.network.cidrs(network.subnets))
        if not efa and not peers.cidrs:
            # Subnets that are unknown: whether a rule for addresses covers them is open.
            continue
        names = ", ".join(group.name for group in groups)
        yield from list_findings_or_ok(
            _check_security_group_ingress_and_egress(network, entries, peers, efa),
            f"{names}: {', '.join(entries)} allow each other both ways",
            (*network.place, "SecurityGroupIds"),
        )


@GROUPS.check("each-other")
def check_node_traffic_between_networks(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Groups in different networks reach each other.

    Head nodes and workers must.
    """
    found = facts.network.security_groups
    if isinstance(found, FailedAwsCall):
        return
    by_network = map_networks_to_instance_groups(wanted)
    for here, there in permutations(by_network, 2):
        if set(here.security_groups) == set(there.security_groups):
            continue
        ours, theirs = (
            _select_network_security_groups(here, found),
            _select_network_security_groups(there, found),
        )
        if not ours or not theirs:
            continue
        them = SecurityGroupRulePeers(set(theirs), facts.network.cidrs(there.subnets))
        us = SecurityGroupRulePeers(set(ours), facts.network.cidrs(here.subnets))
        if not them.cidrs or not us.cidrs:
            continue
        closed = [
            way
            for way, entries, peers in (("in", ours, them), ("out", theirs, us))
            if not _are_all_tcp_ports_open_to_peers(
                entries, INGRESS if way == "in" else EGRESS, peers
            )
        ]
        yield _make_cross_network_traffic_finding(
            by_network[here], by_network[there], here, there, closed
        )


def _check_security_group_ingress_and_egress(
    network: InstanceGroupNetwork,
    entries: Entries,
    peers: SecurityGroupRulePeers,
    efa: Sequence[str],
) -> Iterator[SpecFinding]:
    place = (*network.place, "SecurityGroupIds")
    ids = ", ".join(entries)
    for key, way, word in ((INGRESS, "in", "inbound"), (EGRESS, "out", "outbound")):
        permissions = _list_security_group_rules(entries, key)
        if efa and not has_rule_allowing_all_traffic(permissions, peers, by_group=True):
            yield make_failure_finding(
                place,
                f"{ids}: no {word} rule lets all traffic of the security group itself {way}; EFA "
                f"({', '.join(efa)}) needs one that names the group, a block of addresses will "
                "not do",
                f"add an {word} rule: all traffic, {'from' if way == 'in' else 'to'} the security "
                "group itself",
            )
        elif not efa and not _are_all_tcp_ports_open_to_peers(entries, key, peers):
            yield make_failure_finding(
                place,
                f"{ids}: no {word} rule lets the nodes' own traffic {way}; slurmctld, slurmd and "
                "srun talk on ports of their choice",
                f"add an {word} rule: all traffic, {'from' if way == 'in' else 'to'} the security "
                "group itself",
            )


def _make_cross_network_traffic_finding(
    ours: list[RequestedInstanceGroup],
    theirs: list[RequestedInstanceGroup],
    here: InstanceGroupNetwork,
    there: InstanceGroupNetwork,
    closed: list[str],
) -> SpecFinding:
    us = ", ".join(group.name for group in ours)
    them = ", ".join(group.name for group in theirs)
    place = (*here.place, "SecurityGroupIds")
    if not closed:
        return make_ok_finding(f"{them} reach {us}", place)
    sides = " and ".join(
        f"{', '.join(here.security_groups)} do not let them in"
        if way == "in"
        else f"{', '.join(there.security_groups)} do not let them out"
        for way in closed
    )
    return make_failure_finding(
        place,
        f"{them} cannot reach {us}: {sides}",
        "allow all TCP between the security groups of the two, inbound on one and outbound on "
        "the other",
    )


def _are_all_tcp_ports_open_to_peers(
    entries: Entries, key: str, peers: SecurityGroupRulePeers
) -> bool:
    return are_ports_open_to_peers(_list_security_group_rules(entries, key), "tcp", ALL_TCP, peers)


def _list_security_group_rules(entries: Entries, key: str) -> list[Mapping[str, Any]]:
    return list(chain.from_iterable(entry.get(key) or () for entry in entries.values()))


def _select_network_security_groups(
    network: InstanceGroupNetwork, found: Entries
) -> dict[str, Mapping[str, Any]]:
    return {g: found[g] for g in network.security_groups if g in found}
