"""FSx file systems: there, as the file says they are, and reachable from the nodes."""

from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any

from hpctl.clusters.validate.facts import (
    Ec2ListOperation,
    FileSystemFacts,
    SpecCheckFamily,
    SpecValidationFacts,
    find_security_groups,
    list_ec2_resources_by_id,
    list_subnet_cidr_blocks,
    read_aws_list_entries,
)
from hpctl.clusters.validate.network import SecurityGroupRulePeers, are_ports_open_to_peers
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    MountedFileSystem,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
    make_warning_finding,
)
from hpctl.vocabulary.ports import AwsClientFactory

FAMILY = SpecCheckFamily("storage", "FSx file systems.", ("storage", "network"))


def gather_file_system_facts(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> dict[str, FileSystemFacts | FailedAwsCall | None]:
    """A few calls a file system."""
    file_systems = chain.from_iterable(group.file_systems for group in wanted.groups)
    ids = {file_system.id for file_system in file_systems if file_system.id}
    return {file_system: _read_file_system_facts(aws, file_system) for file_system in sorted(ids)}


def _read_file_system_facts(
    aws: AwsClientFactory, file_system: str
) -> FileSystemFacts | FailedAwsCall | None:
    fsx, ec2 = aws.service("fsx"), aws.service("ec2")

    if file_system.startswith("fc"):
        found = read_aws_list_entries(
            fsx, "describe_file_caches", "FileCaches", FileCacheIds=[file_system]
        )
    else:
        found = read_aws_list_entries(
            fsx, "describe_file_systems", "FileSystems", FileSystemIds=[file_system]
        )
    if isinstance(found, FailedAwsCall):
        return found
    if not found:
        return None
    entry: Mapping[str, Any] = found[0]
    subnets = list_ec2_resources_by_id(
        ec2,
        Ec2ListOperation("describe_subnets", "Subnets", "SubnetId", "subnet-id"),
        list(entry.get("SubnetIds") or ()),
    )
    interfaces = list_ec2_resources_by_id(
        ec2,
        Ec2ListOperation(
            "describe_network_interfaces",
            "NetworkInterfaces",
            "NetworkInterfaceId",
            "network-interface-id",
        ),
        # Of a large file system one is as good as all: they have the same groups.
        list(entry.get("NetworkInterfaceIds") or ())[:10],
    )
    if isinstance(interfaces, FailedAwsCall):
        return FileSystemFacts(entry, interfaces, subnets)
    groups = chain.from_iterable(one.get("Groups") or () for one in interfaces.values())
    ids = sorted({str(group["GroupId"]) for group in groups})
    return FileSystemFacts(entry, find_security_groups(ec2, ids), subnets)


PORTS = {
    # FSx for Lustre User Guide, "File system access control with Amazon VPC".
    "LUSTRE": (("tcp", range(988, 989)), ("tcp", range(1018, 1024))),
    # FSx for OpenZFS User Guide, "File system access control with Amazon VPC".
    "OPENZFS": tuple(
        product(("tcp", "udp"), (range(111, 112), range(2049, 2050), range(20001, 20004)))
    ),
}
"""What a file system must let its clients in on."""

Mounted = tuple[MountedFileSystem, RequestedInstanceGroup, FileSystemFacts]


@FAMILY.check("file-system")
def check_file_systems_exist(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Every file system is there and AVAILABLE."""
    for fs, _ in _list_unique_file_system_mounts(wanted):
        place = (*fs.place, "DnsName")
        found = facts.storage.get(fs.id)
        if isinstance(found, FailedAwsCall):
            yield make_unknown_finding(place, found)
        elif found is None:
            yield make_failure_finding(
                place,
                f"there is no file system {fs.id or fs.dns_name} in {facts.region}",
                "check the DNS name and --region",
            )
        elif found.entry.get("Lifecycle") not in ("AVAILABLE", "UPDATING"):
            yield make_failure_finding(
                place,
                f"{fs.id} is {found.entry.get('Lifecycle')}: nodes cannot mount it",
                "wait until it is AVAILABLE",
            )
        else:
            yield make_ok_finding(f"{fs.id} is {found.entry['Lifecycle']}", place)


@FAMILY.check("as-declared")
def check_file_system_matches_spec(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Its kind, DNS name and mount name are as the file says."""
    for fs, _, guarded in _list_mounts_of_existing_file_systems(wanted, facts):
        entry = guarded.entry
        kind = entry.get("FileSystemType") or entry.get("FileCacheType")
        if kind != fs.kind:
            yield make_failure_finding(
                fs.place,
                f"{fs.id} is FSx for {kind}, and the file mounts it as {fs.kind}",
                "name it under fsx_lustre or fsx_openzfs, whichever it is",
            )
            continue
        dns = str(entry.get("DNSName") or fs.dns_name)
        mount = str(entry.get("LustreConfiguration", {}).get("MountName") or fs.mount_name)
        if dns.lower() != fs.dns_name.lower():
            yield make_failure_finding(
                (*fs.place, "DnsName"),
                f"{fs.id} has the DNS name {dns}, not {fs.dns_name}",
                f"write {dns}",
            )
        if mount != fs.mount_name:
            yield make_failure_finding(
                (*fs.place, "MountName"),
                f"{fs.id} has the mount name {mount}, not {fs.mount_name}",
                f"write {mount}",
            )
        if dns.lower() == fs.dns_name.lower() and mount == fs.mount_name:
            yield make_ok_finding(f"{fs.id} is as the file says", fs.place)


@FAMILY.check("same-vpc")
def check_file_system_in_node_vpc(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """It is in the nodes' VPC."""
    for fs, group, guarded in _list_mounts_of_existing_file_systems(wanted, facts):
        vpcs, own = facts.network.vpcs(group.network.subnets), str(guarded.entry.get("VpcId"))
        if not group.network.subnets:
            yield make_failure_finding(
                fs.place,
                f"{group.name} has no subnets, so its nodes are in a VPC of the service and "
                f"cannot reach {fs.id} in {own}",
                f"name subnets and security groups of {own} under vpc",
            )
        elif vpcs and own not in vpcs:
            yield make_failure_finding(
                fs.place,
                f"{fs.id} is in {own}, {group.name} in {', '.join(sorted(vpcs))}",
                "mount a file system of the nodes' own VPC",
            )
        elif vpcs:
            yield make_ok_finding(f"{fs.id} is in the nodes' VPC", fs.place)


@FAMILY.check("same-zone")
def check_file_system_in_node_zone(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """It is in the nodes' availability zone."""
    for fs, group, guarded in _list_mounts_of_existing_file_systems(wanted, facts):
        zones = {zone for zone, _ in facts.network.zones(group.network.subnets)}
        if isinstance(guarded.subnets, FailedAwsCall) or not guarded.subnets or not zones:
            continue
        own = {str(subnet["AvailabilityZone"]) for subnet in guarded.subnets.values()}
        if own & zones:
            yield make_ok_finding(
                f"{fs.id} is in {', '.join(sorted(own))}, as {group.name} is", fs.place
            )
            continue
        yield make_warning_finding(
            fs.place,
            f"{fs.id} is in {', '.join(sorted(own))}, {group.name} in {', '.join(sorted(zones))}: "
            "every byte between them is slower and is charged for",
            "use a file system in the nodes' zone",
        )


@FAMILY.check("ports")
def check_file_system_ports_open(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """Its security groups let the nodes in: tcp 988 and 1018-1023 for Lustre; tcp and udp 111, 2049
    and 20001-20003 for OpenZFS.
    """
    groups = facts.network.security_groups
    for fs, group, guarded in _list_mounts_of_existing_file_systems(wanted, facts):
        guards = guarded.security_groups
        for part in (guards, groups):
            if isinstance(part, FailedAwsCall):
                yield make_unknown_finding(fs.place, part)
                break
        if isinstance(guards, FailedAwsCall) or isinstance(groups, FailedAwsCall) or not guards:
            continue
        theirs = [groups[g] for g in group.network.security_groups if g in groups]
        nodes = SecurityGroupRulePeers(
            group.network.security_groups, facts.network.cidrs(group.network.subnets)
        )
        servers = SecurityGroupRulePeers(set(guards), _list_file_system_subnet_cidrs(guarded))
        if not nodes.cidrs or not servers.cidrs:
            # Subnets that are unknown: whether a rule for addresses covers them is open.
            continue
        shut_in = _format_ports_closed_to_peers(
            fs.kind, _list_security_group_rules(guards.values(), "IpPermissions"), nodes
        )
        shut_out = (
            _format_ports_closed_to_peers(
                fs.kind, _list_security_group_rules(theirs, "IpPermissionsEgress"), servers
            )
            if theirs
            else ""
        )
        yield _make_file_system_ports_finding(fs, group, guards, shut_in, shut_out)


def _make_file_system_ports_finding(
    fs: MountedFileSystem, group: RequestedInstanceGroup, guards: Any, shut_in: str, shut_out: str
) -> SpecFinding:
    own = ", ".join(group.network.security_groups)
    if shut_in:
        return make_failure_finding(
            fs.place,
            f"{', '.join(guards)} of {fs.id} do not let {group.name} in on {shut_in}",
            f"add inbound rules for {shut_in} from {own}",
        )
    if shut_out:
        return make_failure_finding(
            fs.place,
            f"{own} do not let {group.name} out to {fs.id} on {shut_out}",
            f"add outbound rules for {shut_out} to {', '.join(guards)}",
        )
    return make_ok_finding(f"{fs.id} lets {group.name} in", fs.place)


def _format_ports_closed_to_peers(
    kind: str, permissions: list[Any], peers: SecurityGroupRulePeers
) -> str:
    """The ports that are closed to these peers, as people write them."""
    closed = [
        f"{protocol} {_format_port_range(wanted)}"
        for protocol, wanted in PORTS[kind]
        if not are_ports_open_to_peers(permissions, protocol, wanted, peers)
    ]
    return ", ".join(closed)


def _format_port_range(wanted: range) -> str:
    return str(wanted.start) if len(wanted) == 1 else f"{wanted.start}-{wanted.stop - 1}"


def _list_security_group_rules(entries: Any, key: str) -> list[Any]:
    return list(chain.from_iterable(entry.get(key) or () for entry in entries))


def _list_file_system_subnet_cidrs(guarded: FileSystemFacts) -> tuple[str, ...]:
    if isinstance(guarded.subnets, FailedAwsCall):
        return ()
    return list_subnet_cidr_blocks(guarded.subnets.values())


def _list_unique_file_system_mounts(
    wanted: RequestedCluster,
) -> Iterator[tuple[MountedFileSystem, RequestedInstanceGroup]]:
    """Each file system once for each network that it is mounted in: its first group's place."""
    met = set()
    for group in wanted.groups:
        for fs in group.file_systems:
            lines = (fs.kind, fs.dns_name, fs.mount_name, group.network)
            if lines not in met:
                met.add(lines)
                yield fs, group


def _list_mounts_of_existing_file_systems(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[Mounted]:
    for fs, group in _list_unique_file_system_mounts(wanted):
        found = facts.storage.get(fs.id)
        if isinstance(found, FileSystemFacts):
            yield fs, group, found
