"""How nodes get out of their VPC: routes, endpoints, names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.network_facts import NetworkFacts
from hpctl.clusters.validate.verdict import (
    Finding,
    Place,
    Unanswered,
    fail,
    ok,
    settled,
    unknown,
    warn,
)
from hpctl.clusters.validate.wanted import Wanted

SERVICES: Mapping[str, str] = {
    "s3": "lifecycle scripts and checkpoints cannot be read",
    "sagemaker.api": "hpctl's daemon cannot have nodes replaced",
}
"""What a node calls by itself, and what fails without a way there."""


def endpoints(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Each subnet has a NAT route, or endpoints for what the nodes call."""
    network = facts.network
    if isinstance(network.subnets, Unanswered):
        return
    for part in (network.route_tables, network.endpoints):
        if isinstance(part, Unanswered):
            yield unknown(("VpcConfig", "Subnets"), part)
            return
    for subnet, place in sorted(_places(wanted).items()):
        if subnet in network.subnets:
            yield from settled(
                _lacking(subnet, place, network, facts.region),
                f"{subnet} has a way to S3 and SageMaker",
                place,
            )


def names_resolve(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """DNS is on in the VPC where a file system is mounted by its name."""
    mounts = [fs for group in wanted.groups for fs in group.file_systems]
    if not mounts:
        return
    for vpc, on in facts.network.dns.items():
        if isinstance(on, Unanswered):
            yield unknown(("VpcConfig",), on)
        elif on:
            yield ok(f"{vpc} resolves names")
        else:
            yield fail(
                ("VpcConfig",),
                f"{vpc} has DNS resolution or DNS hostnames turned off, so nodes do not find "
                f"{mounts[0].dns_name}",
                "turn on enableDnsSupport and enableDnsHostnames (aws ec2 modify-vpc-attribute)",
            )


def _places(wanted: Wanted) -> dict[str, Place]:
    return {
        subnet: (*group.network.place, "Subnets", at)
        for group in wanted.groups
        for at, subnet in enumerate(group.network.subnets)
    }


def _lacking(subnet: str, place: Place, network: NetworkFacts, region: str) -> Iterator[Finding]:
    table = _table_of(subnet, network)
    routes = table.get("Routes") or ()
    default = [
        route
        for route in routes
        if route.get("DestinationCidrBlock") == "0.0.0.0/0" and route.get("State") != "blackhole"
    ]
    ways = [r for r in default if not str(r.get("GatewayId", "")).startswith("igw-")]
    if ways:
        return
    served = _served(subnet, table, network, region)
    without = [name for name in SERVICES if name not in served]
    if not without:
        return
    why = (
        "its default route is an internet gateway, and HyperPod's interfaces have no public address"
        if default
        else "it has no default route"
    )
    harm = "; ".join(f"without {name}, {SERVICES[name]}" for name in without)
    yield warn(
        place,
        f"{subnet} has no way to {' and '.join(without)}: {why}; {harm}",
        "use a private subnet with a NAT gateway, or add VPC endpoints for "
        + " and ".join(f"com.amazonaws.{region}.{name}" for name in without),
    )


def _table_of(subnet: str, network: NetworkFacts) -> Mapping[str, Any]:
    """The subnet's own route table, else its VPC's main one."""
    assert not isinstance(network.route_tables, Unanswered)
    assert not isinstance(network.subnets, Unanswered)
    vpc = network.subnets[subnet]["VpcId"]
    main: Mapping[str, Any] = {}
    for table in network.route_tables.values():
        for link in table.get("Associations") or ():
            if link.get("SubnetId") == subnet:
                return table
            if link.get("Main") and table.get("VpcId") == vpc:
                main = table
    return main


def _served(subnet: str, table: Mapping[str, Any], network: NetworkFacts, region: str) -> set[str]:
    """Names of the services that the subnet reaches by endpoints."""
    assert not isinstance(network.endpoints, Unanswered)
    assert not isinstance(network.subnets, Unanswered)
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
