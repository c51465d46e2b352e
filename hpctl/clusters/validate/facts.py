"""What a check may look at, part by part, and what a check is.

A part that was not requested is empty. Each is gathered next to the checks that read it, by
reads of AWS whose failure is an answer too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, Protocol, TypeVar

from msgspec import Struct, field

from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    FindingWithCheck,
    Place,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
)
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ResourceNotFound, ServiceCallRefused, ServiceUnavailable
from hpctl.vocabulary.ports import AwsServiceClient

_EFA = re.compile(r"ml\.(p4|p5|p6|trn)")
"""Types that have EFA where EC2 cannot be asked."""


Listed = Mapping[str, Mapping[str, Any]] | FailedAwsCall
"""EC2's own entries by id. An id that is not in it is not there."""


class NetworkFacts(Struct, frozen=True):
    """Subnets, security groups, and the VPCs' routes and endpoints."""

    subnets: Listed = field(default_factory=dict)
    security_groups: Listed = field(default_factory=dict)
    route_tables: Listed = field(default_factory=dict)
    endpoints: Listed = field(default_factory=dict)
    dns: Mapping[str, bool | FailedAwsCall] = field(default_factory=dict)
    """By VPC: whether it resolves names and gives them to hosts, as FSx's names need."""
    types: Listed = field(default_factory=dict)
    """EC2's entries of the instance types, by SageMaker's name."""

    def cards(self, kind: str) -> int:
        """Network cards of an instance type: EC2's word for it, 1 where it has none."""
        entry = {} if isinstance(self.types, FailedAwsCall) else self.types.get(kind, {})
        efa = entry.get("NetworkInfo", {}).get("EfaInfo", {})
        return int(efa.get("MaximumEfaInterfaces", 1)) if self.efa(kind) else 1

    def efa(self, kind: str) -> bool:
        """Whether nodes of an instance type train over EFA: an accelerator, and EFA beside it."""
        entry = {} if isinstance(self.types, FailedAwsCall) else self.types.get(kind, {})
        if not entry:
            return bool(_EFA.match(kind))
        accelerated = bool(entry.get("GpuInfo") or entry.get("NeuronInfo") or _EFA.match(kind))
        return accelerated and bool(entry.get("NetworkInfo", {}).get("EfaSupported"))

    def zones(self, subnets: Iterable[str]) -> set[tuple[str, str]]:
        """(name, id) of the zones of these subnets, as far as they are known."""
        if isinstance(self.subnets, FailedAwsCall):
            return set()
        found = (self.subnets[s] for s in subnets if s in self.subnets)
        return {(str(s["AvailabilityZone"]), str(s.get("AvailabilityZoneId", ""))) for s in found}

    def vpcs(self, subnets: Iterable[str]) -> set[str]:
        """The VPCs of these subnets, as far as they are known."""
        if isinstance(self.subnets, FailedAwsCall):
            return set()
        return {str(self.subnets[s]["VpcId"]) for s in subnets if s in self.subnets}

    def cidrs(self, subnets: Iterable[str]) -> tuple[str, ...]:
        """The IPv4 blocks of these subnets, as far as they are known."""
        if isinstance(self.subnets, FailedAwsCall):
            return ()
        return list_subnet_cidr_blocks(self.subnets[s] for s in subnets if s in self.subnets)


def list_subnet_cidr_blocks(subnets: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The blocks of subnets: IPv4, else IPv6 for those that have no other."""
    found = []
    for subnet in subnets:
        six = [b["Ipv6CidrBlock"] for b in subnet.get("Ipv6CidrBlockAssociationSet") or ()]
        found += [subnet["CidrBlock"]] if subnet.get("CidrBlock") else six
    return tuple(map(str, found))


class FileSystemFacts(Struct, frozen=True):
    """A file system (FSx's own entry) with its security groups and its zones."""

    entry: Mapping[str, Any]
    security_groups: Listed = field(default_factory=dict)
    subnets: Listed = field(default_factory=dict)


PARAMETERS = "provisioning_parameters.json"
CONFIG = "config.json"


class LifecycleScript(Struct, frozen=True):
    """One file. `data` is None where it is too large to be a script."""

    name: str
    size: int
    data: bytes | None
    executable: bool | None = None
    """None where it is unknown: S3 keeps no modes."""
    syntax_error: str = ""

    @property
    def first_line(self) -> bytes:
        """The line that says what runs it."""
        return (self.data or b"").partition(b"\n")[0]

    @property
    def is_text(self) -> bool:
        """Whether a kernel or an interpreter reads it line by line."""
        return self.first_line.startswith(b"#!") or self.name.endswith((".sh", ".py"))


class LifecycleScriptFacts(Struct, frozen=True):
    """The files of a directory, by path relative to it; no directory, no files."""

    directory: str = ""
    files: Mapping[str, LifecycleScript] = field(default_factory=dict)
    truncated: bool = False
    unfit: tuple[str, ...] = ()
    """Why hpctl cannot be installed from the wheels of a bundle."""


class S3PrefixContents(Struct, frozen=True):
    """The objects below one prefix. `scripts` holds those that were read, by name below it."""

    bucket: str
    prefix: str
    region: str | FailedAwsCall | None
    """Of the bucket; None where there is no such bucket."""
    names: frozenset[str] | FailedAwsCall = frozenset()
    scripts: Mapping[str, LifecycleScript | FailedAwsCall | None] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """As people write it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class IamSimulationResult(Struct, frozen=True):
    """By action, what is not allowed and on what; and what depends on keys of a request."""

    denied: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)


class ExecutionRole(Struct, frozen=True):
    """One role, and what IAM says that it allows of what a node does."""

    entry: Mapping[str, Any] | FailedAwsCall | None
    simulated: IamSimulationResult | FailedAwsCall = field(default_factory=IamSimulationResult)


class ServiceQuotaFacts(Struct, frozen=True):
    """`limits` by the quota's name. `elsewhere`: what other clusters have, by instance type."""

    limits: Mapping[str, float] | FailedAwsCall = field(default_factory=dict)
    elsewhere: Mapping[str, int] | FailedAwsCall = field(default_factory=dict)


class CapacityFacts(Struct, frozen=True):
    """Training plans by ARN (None: there is none), and zone names by instance type."""

    plans: Mapping[str, Mapping[str, Any] | FailedAwsCall | None] = field(default_factory=dict)
    zones: Mapping[str, frozenset[str]] | FailedAwsCall = field(default_factory=dict)
    images: Listed = field(default_factory=dict)
    """EC2's own entries of the AMIs that groups name."""
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)


Entry = Mapping[str, Any] | None | FailedAwsCall
"""An answer, None where the thing is not there."""


class ExistingClusterFacts(Struct, frozen=True):
    """DescribeCluster by the wanted name, and the accounting database's secret."""

    cluster: Entry = None
    secret: Entry = None

    def count(self, group: str) -> int:
        """How many instances the living cluster has in a group."""
        return sum(
            int(entry.get("CurrentCount") or 0)
            for entry in self.groups
            if entry.get("InstanceGroupName") == group
        )

    @property
    def legacy(self) -> bool:
        """Whether a cluster lives that has its roles in provisioning_parameters.json."""
        return bool(self.groups) and not any("SlurmConfig" in group for group in self.groups)

    @property
    def groups(self) -> tuple[Mapping[str, Any], ...]:
        """The living cluster's instance groups."""
        if self.cluster is None or isinstance(self.cluster, FailedAwsCall):
            return ()
        return tuple(self.cluster.get("InstanceGroups") or ())


class SageMakerServiceModel(Protocol):
    """The service model that the installed AWS SDK carries. Nothing is asked of AWS."""

    def instance_types(self) -> frozenset[str]:
        """Every instance type that it knows for clusters."""

    def problems(self, request: Mapping[str, Any]) -> Sequence[tuple[Place, str]]:
        """Where a CreateCluster request departs from it: types, lengths, patterns, words."""


class ServiceModelFacts(Struct, frozen=True):
    """Empty where no model was given: nothing is concluded from that."""

    types: frozenset[str] = frozenset()
    problems: tuple[tuple[Place, str], ...] = ()


class SpecValidationFacts(Struct, frozen=True):
    """Everything that a judge may look at."""

    region: str = ""
    model: ServiceModelFacts = field(default_factory=ServiceModelFacts)
    scripts: LifecycleScriptFacts = field(default_factory=LifecycleScriptFacts)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    storage: Mapping[str, FileSystemFacts | FailedAwsCall | None] = field(default_factory=dict)
    """By file system id; None where there is none of that id."""
    bucket: Mapping[str, S3PrefixContents] = field(default_factory=dict)
    """By SourceS3Uri as given."""
    role: Mapping[str, ExecutionRole] = field(default_factory=dict)
    """By ARN."""
    quota: ServiceQuotaFacts = field(default_factory=ServiceQuotaFacts)
    capacity: CapacityFacts = field(default_factory=CapacityFacts)
    living: ExistingClusterFacts = field(default_factory=ExistingClusterFacts)

    def new_nodes(self, group: RequestedInstanceGroup) -> int:
        """How many instances of a group are not there yet."""
        return max(0, group.count - self.living.count(group.name))

    def has_efa(self, group: RequestedInstanceGroup) -> bool:
        """Whether the nodes of a group train over EFA."""
        return any(self.network.efa(kind) for kind in group.types)


Judge = Callable[[RequestedCluster, SpecValidationFacts], Iterable[SpecFinding]]


class SpecCheck(Struct, frozen=True):
    """One question. `asks` is its line in the documentation."""

    id: str
    asks: str
    judge: Judge


class SpecCheckFamily(Struct, frozen=True):
    """Checks that stand on the same facts. `needs` names the parts of `Facts` that they read."""

    name: str
    about: str
    needs: tuple[str, ...]
    checks: list[SpecCheck] = field(default_factory=list)

    def check(self, name: str) -> Callable[[Judge], Judge]:
        """Add a judge. The first paragraph of its docstring is its line in the documentation."""

        def add_spec_check(judge: Judge) -> Judge:
            asks = " ".join((judge.__doc__ or "").partition("\n\n")[0].split())
            self.checks.append(SpecCheck(name, asks, judge))
            return judge

        return add_spec_check

    @property
    def offline(self) -> bool:
        """Whether no credentials are needed."""
        return not set(self.needs) - {"model", "scripts"}

    def verdicts(
        self, wanted: RequestedCluster, facts: SpecValidationFacts
    ) -> Iterator[FindingWithCheck]:
        """What every check says, in the order of the checks."""
        for check in self.checks:
            for found in check.judge(wanted, facts):
                yield FindingWithCheck(
                    self.name, check.id, found.level, found.place, found.what, found.fix
                )


P = ParamSpec("P")
Answer = TypeVar("Answer")


def call_aws_or_return_none_if_missing(
    call: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs
) -> Answer | FailedAwsCall | None:
    """Return the answer; None where the subject does not exist; Unanswered where it is unknown."""
    try:
        return call(*args, **kwargs)
    except ResourceNotFound:
        return None
    except (ServiceCallRefused, ServiceUnavailable) as error:
        return FailedAwsCall(str(error), error.hint)


def read_aws_list_entries(
    service: AwsServiceClient, operation: str, key: str, **request: Any
) -> list[Any] | FailedAwsCall:
    """Every entry of a list; none where what it is about is not there."""
    found = call_aws_or_return_none_if_missing(
        lambda: list(service.pages(operation, key, **request))
    )
    return [] if found is None else found


def find_security_groups(ec2: AwsServiceClient, ids: Iterable[str]) -> Listed:
    """The security groups of these ids that there are."""
    return list_ec2_resources_by_id(ec2, _SECURITY_GROUPS, list(ids))


class Ec2ListOperation(Struct, frozen=True):
    """How EC2 lists things of one kind by their ids."""

    operation: str
    key: str
    """The member of the answer that has the entries."""
    id_key: str
    """The member of an entry that has its id."""
    filter_name: str


_SECURITY_GROUPS = Ec2ListOperation(
    "describe_security_groups", "SecurityGroups", "GroupId", "group-id"
)


def list_ec2_resources_by_id(ec2: AwsServiceClient, of: Ec2ListOperation, ids: list[str]) -> Listed:
    """Entries by a filter. EC2 refuses a list of ids that has one unknown; a filter it does not."""
    if not ids:
        return {}
    found = read_aws_list_entries(
        ec2, of.operation, of.key, Filters=[{"Name": of.filter_name, "Values": ids}]
    )
    if isinstance(found, FailedAwsCall):
        return found
    return {str(entry[of.id_key]): entry for entry in found}
