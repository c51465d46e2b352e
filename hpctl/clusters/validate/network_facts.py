"""Asks EC2 for the subnets, security groups and ways out that a cluster names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctl.clusters.validate.ask import ask, rows
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws, Service

_EFA = re.compile(r"ml\.(p4|p5|p6|trn)")
"""Types that have EFA where EC2 cannot be asked."""

Listed = Mapping[str, Mapping[str, Any]] | Unanswered
"""EC2's own entries by id. An id that is not in it is not there."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Subnets, security groups, and the VPCs' routes and endpoints."""

    subnets: Listed = field(default_factory=dict)
    security_groups: Listed = field(default_factory=dict)
    route_tables: Listed = field(default_factory=dict)
    endpoints: Listed = field(default_factory=dict)
    dns: Mapping[str, bool | Unanswered] = field(default_factory=dict)
    """By VPC: whether it resolves names and gives them to hosts, as FSx's names need."""
    types: Listed = field(default_factory=dict)
    """EC2's entries of the instance types, by SageMaker's name."""

    def cards(self, kind: str) -> int:
        """Network cards of an instance type: EC2's word for it, 1 where it has none."""
        entry = {} if isinstance(self.types, Unanswered) else self.types.get(kind, {})
        efa = entry.get("NetworkInfo", {}).get("EfaInfo", {})
        return int(efa.get("MaximumEfaInterfaces", 1)) if self.efa(kind) else 1

    def efa(self, kind: str) -> bool:
        """Whether nodes of an instance type train over EFA: an accelerator, and EFA beside it."""
        entry = {} if isinstance(self.types, Unanswered) else self.types.get(kind, {})
        if not entry:
            return bool(_EFA.match(kind))
        accelerated = bool(entry.get("GpuInfo") or entry.get("NeuronInfo") or _EFA.match(kind))
        return accelerated and bool(entry.get("NetworkInfo", {}).get("EfaSupported"))

    def zones(self, subnets: Iterable[str]) -> set[tuple[str, str]]:
        """(name, id) of the zones of these subnets, as far as they are known."""
        if isinstance(self.subnets, Unanswered):
            return set()
        found = (self.subnets[s] for s in subnets if s in self.subnets)
        return {(str(s["AvailabilityZone"]), str(s.get("AvailabilityZoneId", ""))) for s in found}

    def vpcs(self, subnets: Iterable[str]) -> set[str]:
        """The VPCs of these subnets, as far as they are known."""
        if isinstance(self.subnets, Unanswered):
            return set()
        return {str(self.subnets[s]["VpcId"]) for s in subnets if s in self.subnets}

    def cidrs(self, subnets: Iterable[str]) -> tuple[str, ...]:
        """The IPv4 blocks of these subnets, as far as they are known."""
        if isinstance(self.subnets, Unanswered):
            return ()
        return blocks(self.subnets[s] for s in subnets if s in self.subnets)


def blocks(subnets: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The blocks of subnets: IPv4, else IPv6 for those that have no other."""
    found = []
    for subnet in subnets:
        six = [b["Ipv6CidrBlock"] for b in subnet.get("Ipv6CidrBlockAssociationSet") or ()]
        found += [subnet["CidrBlock"]] if subnet.get("CidrBlock") else six
    return tuple(map(str, found))


def gather(aws: Aws, wanted: Wanted) -> NetworkFacts:
    """A handful of calls, whatever the number of groups."""
    networks = {group.network for group in wanted.groups}
    types = sorted({kind for group in wanted.groups for kind in group.types})
    subnets = sorted({s for network in networks for s in network.subnets})
    groups = sorted({g for network in networks for g in network.security_groups})
    if not subnets and not groups:
        return NetworkFacts()
    ec2 = aws.service("ec2")
    found = listed(ec2, "describe_subnets", "Subnets", "SubnetId", "subnet-id", subnets)
    vpcs = [] if isinstance(found, Unanswered) else sorted({s["VpcId"] for s in found.values()})
    return NetworkFacts(
        subnets=found,
        security_groups=security_groups(ec2, groups),
        route_tables=listed(
            ec2, "describe_route_tables", "RouteTables", "RouteTableId", "vpc-id", vpcs
        ),
        endpoints=listed(
            ec2, "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "vpc-id", vpcs
        ),
        dns={vpc: _dns(ec2, vpc) for vpc in vpcs},
        types=_types(ec2, types),
    )


def security_groups(ec2: Service, ids: Iterable[str]) -> Listed:
    """The security groups of these ids that there are."""
    return listed(
        ec2, "describe_security_groups", "SecurityGroups", "GroupId", "group-id", list(ids)
    )


def _types(ec2: Service, types: list[str]) -> Listed:
    """SageMaker's `ml.p5.48xlarge` is EC2's `p5.48xlarge`."""
    names = [kind.removeprefix("ml.") for kind in types]
    found = listed(
        ec2, "describe_instance_types", "InstanceTypes", "InstanceType", "instance-type", names
    )
    if isinstance(found, Unanswered):
        return found
    return {f"ml.{name}": entry for name, entry in found.items()}


def listed(
    ec2: Service, operation: str, key: str, id_key: str, filter_name: str, values: list[str]
) -> Listed:
    """Entries by a filter. EC2 refuses a list of ids that has one unknown; a filter it does not."""
    if not values:
        return {}
    filters = [{"Name": filter_name, "Values": values}]
    found = rows(ec2, operation, key, Filters=filters)
    if isinstance(found, Unanswered):
        return found
    return {str(entry[id_key]): entry for entry in found}


def _dns(ec2: Service, vpc: str) -> bool | Unanswered:
    def both() -> bool:
        return all(
            ec2.read("describe_vpc_attribute", VpcId=vpc, Attribute=name)[key]["Value"]
            for name, key in (
                ("enableDnsSupport", "EnableDnsSupport"),
                ("enableDnsHostnames", "EnableDnsHostnames"),
            )
        )

    answer = ask(both)
    return answer if isinstance(answer, Unanswered) else bool(answer)
