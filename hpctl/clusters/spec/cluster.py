"""A cluster as people write it: cluster.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hpctl.clusters.spec.group import GroupSpec, SecurityGroups, Subnets
from hpctl.clusters.spec.words import (
    ApiSection,
    ClusterName,
    DatabaseHost,
    DatabaseName,
    FsxDnsName,
    GroupName,
    MountName,
    Raw,
    RoleArn,
    SecretArn,
    Section,
    TagKey,
    TagValue,
    between,
)


class Vpc(Section):
    """Where the nodes are in the network. It cannot be changed once the cluster is there."""

    subnets: Subnets
    """The subnets; with reserved capacity those of its availability zone."""
    security_groups: SecurityGroups
    """The security groups. For EFA each must allow all traffic from and to itself."""


class TieredStorage(ApiSection):
    """Managed tiered checkpointing."""

    mode: Literal["Enable", "Disable"]
    """Whether it is there."""
    instance_memory_allocation_percentage: Annotated[int, between(0, 100)] | None = None
    """Per cent of each instance's memory that it may have."""


class AccountingDatabase(ApiSection):
    """A database of your own for Slurm's accounting. Needs `node_provisioning_mode: Continuous`."""

    endpoint: DatabaseHost
    """Its host."""
    port: Annotated[int, between(1, 65535)] | None = None
    """Its port; 3306 where nothing is said."""
    name: DatabaseName | None = None
    """Its schema; `slurm_acct_db_<cluster id>` where nothing is said."""
    secret_arn: SecretArn
    """The secret with the user's name and password."""


class LegacyLustre(Section):
    """The FSx for Lustre file system that the lifecycle scripts mount."""

    dns_name: FsxDnsName
    """The file system's DNS name."""
    mount_name: MountName
    """The file system's mount name."""


class LegacyOpenZfs(Section):
    """The FSx for OpenZFS file system that the lifecycle scripts mount."""

    dns_name: FsxDnsName
    """The file system's DNS name."""


class HeadNodes(Section):
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
    """The SNS topic that is told when another head node takes over."""


class ProvisioningParameters(Section):
    """What provisioning_parameters.json says beside the groups."""

    fsx_lustre: LegacyLustre | None = None
    """The FSx for Lustre file system."""
    fsx_openzfs: LegacyOpenZfs | None = None
    """The FSx for OpenZFS file system."""
    head_nodes: HeadNodes | None = None
    """What several head nodes share. Needed where the controller group has more than one."""
    raw: Raw = Field(default_factory=dict)
    """Merged into the file as it stands."""


class Settings(Section):
    """hpctl's own settings: nothing of it reaches the service."""

    mode: Literal["observe", "assist", "own"] = "observe"
    """What hpctl's daemon may do: look, drain and requeue, or replace nodes as well."""
    spares: Mapping[GroupName, Annotated[int, between(0, 6758)]] = Field(default_factory=dict)
    """How many idle healthy nodes are kept back in each group for the victims of a fault."""


class ClusterSpec(Section):
    """A HyperPod cluster with Slurm."""

    name: ClusterName
    """The cluster's name. It cannot be changed."""
    instance_groups: Annotated[tuple[GroupSpec, ...], Field(min_length=1, max_length=100)]
    """The instance groups, exactly one of them with role controller."""
    vpc: Vpc | None = None
    """Where the nodes are in the network. Left out, they are in a VPC of the service."""
    tags: Annotated[Mapping[TagKey, TagValue], Field(max_length=50)] = Field(default_factory=dict)
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
    """Whether the service replaces faulty nodes by itself; it does where nothing is said."""
    node_provisioning_mode: Literal["Continuous"] | None = None
    """`Continuous`: groups scale side by side, partial capacity is taken, failures are retried."""
    cluster_role: RoleArn | None = None
    """The role with which the service scales the cluster."""
    tiered_storage: TieredStorage | None = None
    """Managed tiered checkpointing."""
    hpctl: Settings = Settings()
    """hpctl's own settings."""
    raw: Raw = Field(default_factory=dict)
    """Merged into the cluster's request as it stands, for what hpctl does not know yet."""

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The instance groups, in the file's order."""
        return self.instance_groups

    def group(self, name: str) -> GroupSpec | None:
        """The group of that name."""
        return next((group for group in self.instance_groups if group.name == name), None)
