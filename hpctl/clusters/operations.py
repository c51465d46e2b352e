"""Which AWS operations hpctl calls, by whom, and on what: the source of the IAM policies.

A test holds the tables against the calls in the code, both ways: who adds a call adds its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class On(Enum):
    """What an action is allowed on. Which actions know which: the Service Authorization Reference.

    ANY: AWS knows no resource for it.
    """

    ANY = "*"
    CLUSTER = "cluster"
    NEW_CLUSTER = "new-cluster"
    TRAINING_PLAN = "training-plan"
    RESERVED = "reserved"
    EXTENSION = "extension"
    BUCKET = "bucket"
    OBJECTS = "objects"
    ROLE = "role"
    FILE_SYSTEM = "file-system"
    DATA_LINK = "data-link"
    LOGS = "logs"
    LOG_STREAMS = "log-streams"
    SECRET = "secret"  # noqa: S105 -- a word, not a secret
    SESSION = "session"


Table = Mapping[str, Mapping[str, On]]
"""By boto3's service and operation: what the operation is allowed on."""

HEAD_NODE: Table = {
    "sagemaker": {
        "describe_cluster": On.CLUSTER,
        "list_cluster_nodes": On.CLUSTER,
        # Where the host names of a list do not spell the addresses that Slurm has.
        "describe_cluster_node": On.CLUSTER,
        "batch_reboot_cluster_nodes": On.CLUSTER,
        "batch_replace_cluster_nodes": On.CLUSTER,
    },
}
"""What the daemon calls, on a controller."""

AUTOSCALE: Table = {
    "sagemaker": {
        "batch_add_cluster_nodes": On.CLUSTER,
        "batch_delete_cluster_nodes": On.CLUSTER,
        # Where NodeProvisioningMode is not Continuous.
        "update_cluster": On.CLUSTER,
    },
}
"""What it calls besides where autoscaling is on."""

OPERATOR: Table = {
    "sagemaker": {
        "add_tags": On.CLUSTER,
        "batch_add_cluster_nodes": On.CLUSTER,
        "batch_delete_cluster_nodes": On.CLUSTER,
        "batch_reboot_cluster_nodes": On.CLUSTER,
        "batch_replace_cluster_nodes": On.CLUSTER,
        "create_cluster": On.NEW_CLUSTER,
        "create_cluster_extension": On.EXTENSION,
        "delete_cluster": On.CLUSTER,
        "delete_cluster_extension": On.EXTENSION,
        "delete_tags": On.CLUSTER,
        "describe_cluster": On.CLUSTER,
        "describe_cluster_event": On.CLUSTER,
        "describe_cluster_extension": On.EXTENSION,
        "describe_cluster_node": On.CLUSTER,
        "describe_reserved_capacity": On.RESERVED,
        "describe_training_plan": On.TRAINING_PLAN,
        "describe_training_plan_extension_history": On.TRAINING_PLAN,
        "list_cluster_events": On.CLUSTER,
        "list_cluster_extension_versions": On.ANY,
        "list_cluster_extensions": On.EXTENSION,
        "list_cluster_nodes": On.CLUSTER,
        "list_cluster_operations": On.CLUSTER,
        "list_clusters": On.ANY,
        "list_tags": On.CLUSTER,
        "list_training_plans": On.ANY,
        "list_ultra_servers_by_reserved_capacity": On.RESERVED,
        "search_training_plan_offerings": On.ANY,
        "start_cluster_health_check": On.CLUSTER,
        "update_cluster": On.CLUSTER,
        "update_cluster_extension": On.EXTENSION,
        "update_cluster_software": On.CLUSTER,
    },
    "ec2": {
        "describe_images": On.ANY,
        "describe_instance_type_offerings": On.ANY,
        "describe_instance_types": On.ANY,
        "describe_network_interfaces": On.ANY,
        "describe_route_tables": On.ANY,
        "describe_security_groups": On.ANY,
        "describe_subnets": On.ANY,
        "describe_vpc_attribute": On.ANY,
        "describe_vpc_endpoints": On.ANY,
    },
    "fsx": {
        "create_data_repository_association": On.DATA_LINK,
        "describe_data_repository_associations": On.DATA_LINK,
        "describe_file_caches": On.FILE_SYSTEM,
        "describe_file_systems": On.FILE_SYSTEM,
    },
    "iam": {
        "get_role": On.ROLE,
        "simulate_principal_policy": On.ROLE,
    },
    "logs": {"get_log_events": On.LOG_STREAMS},
    "s3": {
        "delete_object": On.OBJECTS,
        "get_bucket_location": On.BUCKET,
        "get_object": On.OBJECTS,
        "list_objects_v2": On.BUCKET,
        "put_object": On.OBJECTS,
    },
    "secretsmanager": {"describe_secret": On.SECRET},
    "service-quotas": {
        "list_aws_default_service_quotas": On.ANY,
        "list_service_quotas": On.ANY,
    },
    "ssm": {"start_session": On.SESSION},
}
"""What `hpctl cluster` and its siblings call, at the operator's desk or in CI."""

BUYER: Table = {
    "sagemaker": {
        "create_training_plan": On.RESERVED,
        "extend_training_plan": On.RESERVED,
    },
}
"""What costs money up front: apart, so that an operator need not have it."""

ACTIONS: Mapping[str, tuple[str, ...]] = {
    # Whose IAM action has another name than the operation (Service Authorization Reference).
    "s3.list_objects_v2": ("s3:ListBucket",),
    "s3.head_bucket": ("s3:ListBucket",),
    "s3.head_object": ("s3:GetObject",),
    "service-quotas.list_aws_default_service_quotas": (
        "servicequotas:ListAWSDefaultServiceQuotas",
    ),
    # Tags in a request need an action of their own.
    "sagemaker.create_training_plan": (
        "sagemaker:CreateTrainingPlan",
        "sagemaker:CreateReservedCapacity",
    ),
    "sagemaker.create_cluster": ("sagemaker:CreateCluster", "sagemaker:AddTags"),
}
"""Actions of the operations whose action is not `<service>:<Operation>`."""

PREFIXES: Mapping[str, str] = {"service-quotas": "servicequotas"}
"""IAM's name of a service where it is not boto3's."""

PASSES_ROLES = frozenset({"create_cluster", "update_cluster"})
"""Operations whose caller needs iam:PassRole for the roles in the request."""

LINKS_DATA = frozenset({"create_data_repository_association"})
"""Operations for which FSx makes a role of its own, in the caller's name."""


def actions(service: str, operation: str) -> tuple[str, ...]:
    """The IAM actions that an operation needs: `("ec2:DescribeSubnets",)`."""
    own = ACTIONS.get(f"{service}.{operation}")
    name = "".join(part.capitalize() for part in operation.split("_"))
    return own or (f"{PREFIXES.get(service, service)}:{name}",)
