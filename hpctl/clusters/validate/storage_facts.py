"""Asks FSx for the file systems that are mounted, and EC2 for what guards them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctl.clusters.validate.ask import rows
from hpctl.clusters.validate.network_facts import Listed, listed, security_groups
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws


@dataclass(frozen=True, slots=True)
class Guarded:
    """A file system (FSx's own entry) with its security groups and the zones it stands in."""

    entry: Mapping[str, Any]
    security_groups: Listed = field(default_factory=dict)
    subnets: Listed = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """By file system id; None where there is none of that id."""

    file_systems: Mapping[str, Guarded | Unanswered | None] = field(default_factory=dict)


def gather(aws: Aws, wanted: Wanted) -> StorageFacts:
    """A few calls a file system."""
    ids = {fs.id for group in wanted.groups for fs in group.file_systems if fs.id}
    return StorageFacts({file_system: _guarded(aws, file_system) for file_system in sorted(ids)})


def _guarded(aws: Aws, file_system: str) -> Guarded | Unanswered | None:
    fsx, ec2 = aws.service("fsx"), aws.service("ec2")

    if file_system.startswith("fc"):
        found = rows(fsx, "describe_file_caches", "FileCaches", FileCacheIds=[file_system])
    else:
        found = rows(fsx, "describe_file_systems", "FileSystems", FileSystemIds=[file_system])
    if isinstance(found, Unanswered):
        return found
    if not found:
        return None
    entry: Mapping[str, Any] = found[0]
    subnets = listed(
        ec2,
        "describe_subnets",
        "Subnets",
        "SubnetId",
        "subnet-id",
        list(entry.get("SubnetIds") or ()),
    )
    interfaces = listed(
        ec2,
        "describe_network_interfaces",
        "NetworkInterfaces",
        "NetworkInterfaceId",
        "network-interface-id",
        # Of a large file system one is as good as all: they have the same groups.
        list(entry.get("NetworkInterfaceIds") or ())[:10],
    )
    if isinstance(interfaces, Unanswered):
        return Guarded(entry, interfaces, subnets)
    ids = sorted({str(g["GroupId"]) for i in interfaces.values() for g in i.get("Groups") or ()})
    return Guarded(entry, security_groups(ec2, ids), subnets)
