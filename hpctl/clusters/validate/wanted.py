"""What a cluster's file wants of an account, and what a check says of it.

The checks read the request and not the spec: so they see what will be sent, whatever way it came
there, the raw passthrough included.

A judge is a pure function: what is wanted and what was found out go in, verdicts come out. It
says nothing where it does not apply, and OK where it has looked and is content. Only the
gathers asks AWS anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import yaml
from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.request import CLUSTER, GROUP, make_create_cluster_request
from hpctl.clusters.spec import ClusterSpec
from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.yaml_files import find_yaml_key_line

_FILE_SYSTEM = re.compile(r"(f[sc]i?-[0-9a-f]{8,})")


class InstanceGroupNetwork(NamedTuple):
    """Subnets and security groups, and where they are said. No subnets: SageMaker's own network."""

    place: Place
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]


class MountedFileSystem(Struct, frozen=True):
    """A file system that a group mounts. `kind` is FSx's word: LUSTRE or OPENZFS."""

    place: Place
    kind: str
    dns_name: str
    mount_name: str
    mount_path: str

    @property
    def id(self) -> str:
        """`fs-...`; empty where the DNS name does not begin with one."""
        found = _FILE_SYSTEM.match(self.dns_name)
        return found[1] if found else ""


class RequestedInstanceGroup(Struct, frozen=True):
    """One instance group. `role` is SlurmConfig's word, empty where nothing says it."""

    place: Place
    name: str
    types: tuple[str, ...]
    count: int
    role: str
    network: InstanceGroupNetwork
    file_systems: tuple[MountedFileSystem, ...]
    raw: Mapping[str, Any]

    @property
    def spot(self) -> bool:
        """Whether it runs on spot capacity."""
        return "Spot" in self.raw.get("CapacityRequirements", {})

    @property
    def execution_role(self) -> str:
        """ARN of the role of its instances."""
        return str(self.raw.get("ExecutionRole", ""))

    @property
    def training_plan(self) -> str:
        """ARN of its training plan, empty without one."""
        return str(self.raw.get("TrainingPlanArn", ""))

    @property
    def alarms(self) -> tuple[str, ...]:
        """The CloudWatch alarms that roll its updates back."""
        parts = (self.raw.get(key) or {} for key in ("ScheduledUpdateConfig", "AutoPatchConfig"))
        lines = [(part.get("DeploymentConfig") or {}) for part in parts]
        alarms = chain.from_iterable(line.get("AutoRollbackConfiguration", ()) for line in lines)
        return tuple(alarm["AlarmName"] for alarm in alarms)

    @property
    def lifecycle(self) -> Mapping[str, str]:
        """LifeCycleConfig; empty where the AMI configures everything."""
        found: Mapping[str, str] = self.raw.get("LifeCycleConfig") or {}
        return found

    @property
    def scripts(self) -> Iterator[tuple[str, str]]:
        """(`OnCreate` or `OnInitComplete`, entry point) as given."""
        for key in ("OnCreate", "OnInitComplete"):
            if key in self.lifecycle:
                yield key, self.lifecycle[key]

    def at(self, *more: str | int) -> Place:
        """A place below the group's."""
        return (*self.place, *more)

    @property
    def instance_type_request_path(self) -> Place:
        """Where its type is named, or its types are."""
        flexible = ("InstanceRequirements", "InstanceTypes")
        return self.at(*(flexible if flexible[0] in self.raw else ("InstanceType",)))


class RequestedCluster(Struct, frozen=True):
    """A cluster as it is to be."""

    name: str
    groups: tuple[RequestedInstanceGroup, ...]
    request: Mapping[str, Any]
    mode: str = ""
    """What hpctl's daemon is to do: `observe`, `assist` or `own`."""
    secret: str = ""
    """ARN of the secret of an accounting database of one's own, empty without one."""
    secret_place: Place = ()

    @property
    def by_api(self) -> bool:
        """Whether Slurm is configured through the API: any group has a SlurmConfig."""
        return any("SlurmConfig" in group.raw for group in self.groups)


def build_requested_cluster(spec: ClusterSpec) -> RequestedCluster:
    """A cluster's file: its request, and what it says beside that."""
    wanted = parse_cluster_request(make_create_cluster_request(spec))
    roles = {group.name: (group.role or "").capitalize() for group in spec.groups}
    mounts = tuple(_list_lifecycle_script_mounts(spec))
    groups = tuple(
        replace(
            group,
            role=group.role or roles.get(group.name, ""),
            file_systems=(*group.file_systems, *mounts),
        )
        for group in wanted.groups
    )
    secret, place = _find_accounting_database_secret(spec)
    return replace(wanted, groups=groups, mode=spec.hpctl.mode, secret=secret, secret_place=place)


def _find_accounting_database_secret(spec: ClusterSpec) -> tuple[str, Place]:
    """The controller reads it when it is born, whichever way Slurm is configured."""
    if spec.accounting_database:
        return spec.accounting_database.secret_arn, ("accounting_database", "secret_arn")
    answer = spec.provisioning_parameters
    if answer and answer.head_nodes:
        place = ("provisioning_parameters", "head_nodes", "database_secret_arn")
        return answer.head_nodes.database_secret_arn, place
    return "", ()


def parse_cluster_request(request: Mapping[str, Any]) -> RequestedCluster:
    """Read a CreateCluster request, which need not be one that the service takes."""
    vpc = _parse_group_network(request.get("VpcConfig"), ("VpcConfig",))
    groups = tuple(
        _parse_instance_group(raw, ("InstanceGroups", at), vpc)
        for at, raw in enumerate(request.get("InstanceGroups") or ())
    )
    return RequestedCluster(str(request.get("ClusterName", "")), groups, request)


def _parse_instance_group(
    raw: Mapping[str, Any], place: Place, vpc: InstanceGroupNetwork
) -> RequestedInstanceGroup:
    override = raw.get("OverrideVpcConfig")
    types = raw.get("InstanceRequirements", {}).get("InstanceTypes") or ()
    if "InstanceType" in raw:
        types = (raw["InstanceType"], *types)
    return RequestedInstanceGroup(
        place=place,
        name=str(raw.get("InstanceGroupName", "")),
        types=tuple(map(str, types)),
        count=int(raw.get("InstanceCount") or 0),
        role=str(raw.get("SlurmConfig", {}).get("NodeType", "")),
        network=_parse_group_network(override, (*place, "OverrideVpcConfig")) if override else vpc,
        file_systems=tuple(
            _parse_fsx_storage_configs(raw.get("InstanceStorageConfigs") or (), place)
        ),
        raw=raw,
    )


def _parse_group_network(
    config: Mapping[str, Sequence[str]] | None, place: Place
) -> InstanceGroupNetwork:
    config = config or {}
    subnets, groups = config.get("Subnets") or (), config.get("SecurityGroupIds") or ()
    return InstanceGroupNetwork(place, tuple(subnets), tuple(groups))


def _parse_fsx_storage_configs(
    configs: Sequence[Mapping[str, Any]], place: Place
) -> Iterator[MountedFileSystem]:
    for at, config in enumerate(configs):
        for key, kind in (("FsxLustreConfig", "LUSTRE"), ("FsxOpenZfsConfig", "OPENZFS")):
            if key in config:
                fsx = config[key]
                yield MountedFileSystem(
                    (*place, "InstanceStorageConfigs", at, key),
                    kind,
                    str(fsx.get("DnsName", "")),
                    str(fsx.get("MountName", "")),
                    str(fsx.get("MountPath", "")),
                )


def _list_lifecycle_script_mounts(spec: ClusterSpec) -> Iterator[MountedFileSystem]:
    """What the lifecycle scripts mount on every node: the places are the file's own."""
    answer = spec.provisioning_parameters
    place = "provisioning_parameters"
    if answer and answer.fsx_lustre:
        fsx = answer.fsx_lustre
        yield MountedFileSystem(
            (place, "fsx_lustre"), "LUSTRE", fsx.dns_name, fsx.mount_name, "/fsx"
        )
    if answer and answer.fsx_openzfs:
        yield MountedFileSystem(
            (place, "fsx_openzfs"), "OPENZFS", answer.fsx_openzfs.dns_name, "", "/home"
        )


Place = tuple[str | int, ...]
"""Where a thing stands in the CreateCluster request: `("InstanceGroups", 1, "ExecutionRole")`."""


class CheckLevel(StrEnum):
    """Worst last. UNKNOWN is neither good nor bad: the answer could not be read."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    WARN = "WARN"
    FAIL = "FAIL"


class SpecFinding(Struct, frozen=True):
    """What a judge says of one place."""

    level: CheckLevel
    place: Place
    what: str
    fix: str = ""


class FindingWithCheck(Struct, frozen=True):
    """A finding with the check that made it."""

    family: str
    check: str
    level: CheckLevel
    place: Place
    what: str
    fix: str = ""


def make_ok_finding(what: str, place: Place = ()) -> SpecFinding:
    """Looked at, and as it should be."""
    return SpecFinding(CheckLevel.OK, place, what)


def make_warning_finding(place: Place, what: str, fix: str) -> SpecFinding:
    """Works, or may work, but not as its author thinks."""
    return SpecFinding(CheckLevel.WARN, place, what, fix)


def make_failure_finding(place: Place, what: str, fix: str) -> SpecFinding:
    """The service refuses it, or the cluster comes up broken."""
    return SpecFinding(CheckLevel.FAIL, place, what, fix)


def make_unknown_finding(place: Place, unanswered: FailedAwsCall) -> SpecFinding:
    """A call failed."""
    return SpecFinding(CheckLevel.UNKNOWN, place, f"cannot tell: {unanswered.why}", unanswered.fix)


def list_findings_or_ok(
    found: Iterable[SpecFinding], content: str, place: Place = ()
) -> Iterator[SpecFinding]:
    """Each finding, or OK with `content` where there is none."""
    nothing = True
    for one in found:
        nothing = False
        yield one
    if nothing:
        yield make_ok_finding(content, place)


class FailedAwsCall(Struct, frozen=True):
    """A call that failed, in the place of its answer."""

    why: str
    fix: str = ""


NAMES = {
    **CLUSTER,
    **GROUP,
    "EbsVolumeConfig": "ebs",
    "FsxLustreConfig": "fsx_lustre",
    "FsxOpenZfsConfig": "fsx_openzfs",
    "NodeType": "role",
    "PartitionNames": "partition",
    "SecurityGroupIds": "security_groups",
    "VpcConfig": "vpc",
    "CapacityRequirements": "capacity",
}
"""Where the file's key is not the API's word in snake case."""

DROPPED = frozenset({"Orchestrator", "Slurm", "SlurmConfig", "InterfaceType"}) | {
    "OverrideVpcConfig",
    "InstanceRequirements",
}
"""Structures of the API that the file does not have: their fields stand one level up."""

_ENDS = {"capacity", "partition"}
"""Keys below which the file has nothing."""


def convert_request_path_to_spec_keys(place: Place) -> tuple[str | int, ...]:
    """The keys in the file: `("instance_groups", 1, "subnets", 0)`."""
    found: list[str | int] = []
    for part in place:
        if part in DROPPED:
            continue
        word = part if isinstance(part, int) else NAMES.get(part) or _to_snake_case(part)
        if found and found[-1] in _ENDS:
            break
        found.append(word)
    return tuple(found)


def format_spec_key_path(place: Place) -> str:
    """The place in dots: `instance_groups.1.subnets.0`."""
    return ".".join(map(str, convert_request_path_to_spec_keys(place)))


class SpecLineFinder:
    """The lines of a file that could be read."""

    def __init__(self, text: str) -> None:
        self._root = yaml.compose(text, Loader=yaml.SafeLoader)

    def of(self, place: Place) -> int | None:
        """The line of the place, or of the nearest that there is above it."""
        return find_yaml_key_line(self._root, convert_request_path_to_spec_keys(place))


def _to_snake_case(word: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()
