"""A cluster as people write it: cluster.yaml."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from hpctl.clusters.spec.field_types import (
    AlarmName,
    ApiSection,
    ClusterName,
    CronExpression,
    DatabaseHost,
    DatabaseName,
    FileName,
    FsxDnsName,
    GroupName,
    ImageId,
    ImageReleaseVersion,
    InstanceCount,
    InstanceType,
    KmsKeyId,
    MountName,
    MountPath,
    PartitionName,
    Raw,
    RoleArn,
    S3Uri,
    SecretArn,
    SecurityGroupId,
    SpecSection,
    SubnetId,
    TagKey,
    TagValue,
    TrainingPlanArn,
    make_integer_bounds,
)
from hpctl.toolkit.bounds import parse_timestamp
from hpctl.toolkit.yaml_files import Reads

Role = Literal["controller", "login", "compute"]
Subnets = Annotated[tuple[SubnetId, ...], Meta(min_length=1, max_length=16)]
SecurityGroups = Annotated[tuple[SecurityGroupId, ...], Meta(min_length=1, max_length=5)]
DeepHealthCheck = Literal["InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation"]


class Lifecycle(ApiSection, frozen=True):
    """What runs on a node at birth. Without it the AMI alone sets Slurm up.

    `on_create`: your script does everything. `on_init_complete`: it runs after the AMI's own.
    """

    source_s3_uri: S3Uri
    """The S3 prefix that holds the scripts. The managed role policy reads `s3://sagemaker-*`."""
    on_create: FileName | None = None
    """The script under the prefix that sets the whole node up."""
    on_init_complete: FileName | None = None
    """The script under the prefix that runs once the AMI has set the node up."""


class Ebs(ApiSection, frozen=True):
    """An EBS volume of each instance: a second one at /opt/sagemaker, or the root's key."""

    API_NAMES: ClassVar[Mapping[str, str]] = {"volume_size_in_gb": "VolumeSizeInGB"}

    volume_size_in_gb: Annotated[int, make_integer_bounds(1, 16384)] | None = None
    """Size of the second volume in GB. The root volume's cannot be chosen."""
    volume_kms_key_id: KmsKeyId | None = None
    """The key that encrypts it."""
    root_volume: bool | None = None
    """Whether this is about the root volume: then the key is needed, and there is no size."""


class FsxLustre(ApiSection, frozen=True):
    """An FSx for Lustre file system, mounted when an instance is set up."""

    dns_name: FsxDnsName
    """The file system's DNS name."""
    mount_name: MountName
    """The file system's mount name."""
    mount_path: MountPath | None = None
    """Where it is mounted; /fsx where nothing is said."""


class FsxOpenZfs(ApiSection, frozen=True):
    """An FSx for OpenZFS file system, mounted when an instance is set up."""

    dns_name: FsxDnsName
    """The file system's DNS name."""
    mount_path: MountPath | None = None
    """Where it is mounted; /home where nothing is said."""


class Storage(ApiSection, frozen=True):
    """One of `ebs`, `fsx_lustre`, `fsx_openzfs`."""

    API_NAMES: ClassVar[Mapping[str, str]] = {
        "ebs": "EbsVolumeConfig",
        "fsx_lustre": "FsxLustreConfig",
        "fsx_openzfs": "FsxOpenZfsConfig",
    }

    ebs: Ebs | None = None
    """An EBS volume."""
    fsx_lustre: FsxLustre | None = None
    """An FSx for Lustre file system."""
    fsx_openzfs: FsxOpenZfs | None = None
    """An FSx for OpenZFS file system."""


class BatchSize(ApiSection, frozen=True):
    """How many instances of a group are updated at once."""

    type: Literal["INSTANCE_COUNT", "CAPACITY_PERCENTAGE"]
    """Whether `value` counts instances or per cent of the group."""
    value: Annotated[int, make_integer_bounds(1, 6758)]
    """How many, or how many per cent."""


class RollingUpdate(ApiSection, frozen=True):
    """An update in batches."""

    maximum_batch_size: BatchSize
    """How many at once."""
    rollback_maximum_batch_size: BatchSize | None = None
    """How many at once when it is rolled back."""


class Alarm(ApiSection, frozen=True):
    """A CloudWatch alarm."""

    alarm_name: AlarmName
    """Its name."""


class Deployment(ApiSection, frozen=True):
    """How a new AMI reaches the instances of a group."""

    rolling_update_policy: RollingUpdate | None = None
    """In batches; all at once where it is left out."""
    wait_interval_in_seconds: Annotated[int, make_integer_bounds(0, 3600)] | None = None
    """How long is waited after a batch."""
    auto_rollback_configuration: (
        Annotated[tuple[Alarm, ...], Meta(min_length=1, max_length=10)] | None
    ) = None
    """Alarms that roll the update back."""


class ScheduledUpdate(ApiSection, frozen=True):
    """A calendar by which the service updates the AMI automatically."""

    schedule_expression: CronExpression
    """When: `cron(minutes hours day-of-month month day-of-week year)`, in UTC."""
    deployment_config: Deployment | None = None
    """How."""


def _parse_request_timestamp(value: Any) -> Any:
    """A request's JSON may have a time in seconds since 1970. Raises ValueError."""
    if type(value) not in (int, float):
        return value
    moment = parse_timestamp(value)
    if moment is None:
        raise ValueError("should be a date and time")
    return moment


class PatchSchedule(ApiSection, frozen=True):
    """When the next patch comes."""

    READS: ClassVar[Reads] = {"next_patch_date": _parse_request_timestamp}

    next_patch_date: Annotated[datetime, Meta(tz=True)] | None = None
    """Moves the next patch to this date and time. The service sets it when a patch is found."""


class Drain(ApiSection, frozen=True):
    """How an instance is emptied before it is patched."""

    drain_timeout_in_seconds: Annotated[int, make_integer_bounds(0, 5400)] | None = None
    """How long; 3600 where nothing is said."""
    on_drain_timeout: Literal["Force", "Skip"] | None = None
    """What happens then: `Force` patches, `Skip` (the default) does not."""


class AutoPatch(ApiSection, frozen=True):
    """Patches of the AMI that the service applies automatically."""

    patching_strategy: Literal["WhenIdle", "WhenAllIdle", "DrainFirst"]
    """`WhenIdle` patches each instance as it becomes idle, `WhenAllIdle` waits for all of them."""
    patch_schedule: PatchSchedule | None = None
    """When the next one comes."""
    deployment_config: Deployment | None = None
    """How, where it comes in batches."""
    idle_wait_window_in_seconds: Annotated[int, make_integer_bounds(3600, 2_160_000)] | None = None
    """How long is waited for idle instances; 86400 where nothing is said."""
    drain_policy: Drain | None = None
    """For `DrainFirst` alone."""


class GroupSpec(SpecSection, frozen=True, kw_only=True):
    """Instances of one kind, with one role."""

    name: GroupName
    """The group's name. It cannot be changed: another name is another group."""
    instance_type: InstanceType | None = None
    """The type of every instance. Either this or `instance_types`."""
    instance_types: (
        Annotated[tuple[InstanceType, ...], Meta(min_length=1, max_length=20)] | None
    ) = None
    """Types in order of preference: a flexible group takes what there is."""
    count: InstanceCount
    """How many instances there shall be."""
    min_count: InstanceCount | None = None
    """How many must be there for the group to come into service, within 3 hours."""
    max_count: InstanceCount | None = None
    """How far hpctl's autoscaling may grow the group; it never shrinks it under `min_count`."""
    role: Role | None = None
    """What its nodes are in Slurm. It cannot be changed."""
    partition: PartitionName | None = None
    """The Slurm partition of a compute group. Every node is in `dev` as well."""
    lifecycle: Lifecycle | None = None
    """What runs on a node at birth; left out, the AMI alone sets Slurm up."""
    execution_role: RoleArn
    """The role that the instances have."""
    threads_per_core: Annotated[int, make_integer_bounds(1, 2)] | None = None
    """1 turns multithreading off, 2 on."""
    storage: Annotated[tuple[Storage, ...], Meta(max_length=4)] = ()
    """Volumes and file systems."""
    deep_health_checks: (
        Annotated[tuple[DeepHealthCheck, ...], Meta(min_length=1, max_length=3)] | None
    ) = None
    """Checks that an instance passes before it is put into service. They take an hour or two."""
    training_plan: TrainingPlanArn | None = None
    """The training plan (reserved capacity) that the instances come from."""
    subnets: Subnets | None = None
    """Subnets of this group; left out, the cluster's."""
    security_groups: SecurityGroups | None = None
    """Security groups of this group; left out, the cluster's."""
    scheduled_update: ScheduledUpdate | None = None
    """Updates of the AMI by a calendar."""
    image_id: ImageId | None = None
    """The AMI: an id, or `default` for the latest of the service."""
    image_release_version: ImageReleaseVersion | None = None
    """The release of the service's own AMI; the latest where it is left out."""
    auto_patch: AutoPatch | None = None
    """Patches of the AMI that the service applies automatically."""
    capacity: Literal["spot", "on_demand"] | None = None
    """Spot instances, which may be taken away, or on demand."""
    network_interface: Literal["efa", "efa-only"] | None = None
    """`efa` has an ENA device beside the EFA device, `efa-only` has not."""
    raw: Raw = field(default_factory=dict)
    """Merged into the group's request unchanged, for what hpctl does not know yet."""

    @property
    def types(self) -> tuple[str, ...]:
        """Every type that an instance of the group may have, the preferred first."""
        return self.instance_types or ((self.instance_type,) if self.instance_type else ())


class Vpc(SpecSection, frozen=True):
    """Where the nodes are in the network. It cannot be changed once the cluster is there."""

    subnets: Subnets
    """The subnets; with reserved capacity those of its availability zone."""
    security_groups: SecurityGroups
    """The security groups. For EFA each must allow all traffic from and to itself."""


class TieredStorage(ApiSection, frozen=True):
    """Managed tiered checkpointing."""

    mode: Literal["Enable", "Disable"]
    """Whether it is there."""
    instance_memory_allocation_percentage: Annotated[int, make_integer_bounds(0, 100)] | None = None
    """Per cent of each instance's memory that it may have."""


class AccountingDatabase(ApiSection, frozen=True, kw_only=True):
    """A database of your own for Slurm's accounting. Needs `node_provisioning_mode: Continuous`."""

    endpoint: DatabaseHost
    """Its host."""
    port: Annotated[int, make_integer_bounds(1, 65535)] | None = None
    """Its port; 3306 where nothing is said."""
    name: DatabaseName | None = None
    """Its schema; `slurm_acct_db_<cluster id>` where nothing is said."""
    secret_arn: SecretArn
    """The secret with the user's name and password."""


class LegacyLustre(SpecSection, frozen=True):
    """The FSx for Lustre file system that the lifecycle scripts mount."""

    dns_name: FsxDnsName
    """The file system's DNS name."""
    mount_name: MountName
    """The file system's mount name."""


class LegacyOpenZfs(SpecSection, frozen=True):
    """The FSx for OpenZFS file system that the lifecycle scripts mount."""

    dns_name: FsxDnsName
    """The file system's DNS name."""


class HeadNodes(SpecSection, frozen=True, kw_only=True):
    """What several head nodes share: `slurm_configurations` of provisioning_parameters.json."""

    database_secret_arn: SecretArn
    """The secret with the accounting database's user and password."""
    database_endpoint: DatabaseHost
    """The accounting database's host."""
    database_user: str | None = None
    """Its user; `admin` where nothing is said."""
    shared_directory: str
    """The directory on a shared file system that holds Slurm's state."""
    sns_arn: str | None = None
    """The SNS topic that is notified when another head node takes over."""


class ProvisioningParameters(SpecSection, frozen=True):
    """What provisioning_parameters.json says beside the groups."""

    fsx_lustre: LegacyLustre | None = None
    """The FSx for Lustre file system."""
    fsx_openzfs: LegacyOpenZfs | None = None
    """The FSx for OpenZFS file system."""
    head_nodes: HeadNodes | None = None
    """What several head nodes share. Needed where the controller group has more than one."""
    raw: Raw = field(default_factory=dict)
    """Merged into the file unchanged."""


class Settings(SpecSection, frozen=True):
    """hpctl's own settings: nothing of it reaches the service."""

    mode: Literal["observe", "assist", "own"] = "observe"
    """What hpctl's daemon may do: look, drain and requeue, or replace nodes as well."""
    spares: Mapping[GroupName, Annotated[int, make_integer_bounds(0, 6758)]] = field(
        default_factory=dict
    )
    """How many idle healthy nodes are kept back in each group for the victims of a fault."""


class ClusterSpec(SpecSection, frozen=True):
    """A HyperPod cluster with Slurm."""

    name: ClusterName
    """The cluster's name. It cannot be changed."""
    instance_groups: Annotated[tuple[GroupSpec, ...], Meta(min_length=1, max_length=100)]
    """The instance groups, exactly one of them with role controller."""
    vpc: Vpc | None = None
    """Where the nodes are in the network. Left out, they are in a VPC of the service."""
    tags: Annotated[Mapping[TagKey, TagValue], Meta(max_length=50)] = field(default_factory=dict)
    """Tags of the cluster: these and no others. Left out, an update leaves them as they are."""
    slurm_config: Literal["api", "provisioning_parameters"] = "api"
    """Who tells Slurm its groups and partitions: the API, or a file beside the scripts."""
    slurm_config_strategy: Literal["Managed", "Overwrite", "Merge"] | None = None
    """What an update does with slurm.conf edited by hand: refuse, overwrite or keep."""
    accounting_database: AccountingDatabase | None = None
    """A database of your own for Slurm's accounting; left out, one on the controller."""
    provisioning_parameters: ProvisioningParameters | None = None
    """For `slurm_config: provisioning_parameters` alone."""
    node_recovery: Literal["Automatic", "None"] | None = None
    """Whether the service replaces faulty nodes automatically; it does where nothing is said."""
    node_provisioning_mode: Literal["Continuous"] | None = None
    """`Continuous`: groups scale side by side, partial capacity is taken, failures are retried."""
    cluster_role: RoleArn | None = None
    """The role with which the service scales the cluster."""
    tiered_storage: TieredStorage | None = None
    """Managed tiered checkpointing."""
    hpctl: Settings = field(default_factory=Settings)
    """hpctl's own settings."""
    raw: Raw = field(default_factory=dict)
    """Merged into the cluster's request unchanged, for what hpctl does not know yet."""

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Return the instance groups, in the file's order."""
        return self.instance_groups
