"""IAM policies of least privilege: for the daemon, for the nodes, for who operates clusters.

The daemon's and the operator's are made from the tables of calls, the nodes' from what HyperPod
needs of an execution role (SageMaker guide, "IAM for SageMaker HyperPod", and the managed policy
AmazonSageMakerClusterInstanceRolePolicy), narrowed to one cluster and one bucket.

The tables of AWS operations, by whom and on what, are the source of the policies. A test holds
them against the calls in the code, both ways: who adds a call adds its row.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, field

from hpctl.errors import HpctlError


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
    }
}
"""What the daemon calls, on a controller."""

AUTOSCALE: Table = {
    "sagemaker": {
        "batch_add_cluster_nodes": On.CLUSTER,
        "batch_delete_cluster_nodes": On.CLUSTER,
        # Where NodeProvisioningMode is not Continuous.
        "update_cluster": On.CLUSTER,
    }
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
    "iam": {"get_role": On.ROLE, "simulate_principal_policy": On.ROLE},
    "logs": {"get_log_events": On.LOG_STREAMS},
    "s3": {
        "delete_object": On.OBJECTS,
        "get_bucket_location": On.BUCKET,
        "get_object": On.OBJECTS,
        "list_objects_v2": On.BUCKET,
        "put_object": On.OBJECTS,
    },
    "secretsmanager": {"describe_secret": On.SECRET},
    "service-quotas": {"list_aws_default_service_quotas": On.ANY, "list_service_quotas": On.ANY},
    "ssm": {"start_session": On.SESSION},
}
"""What `hpctl cluster` and its siblings call, at the operator's desk or in CI."""

BUYER: Table = {
    "sagemaker": {"create_training_plan": On.RESERVED, "extend_training_plan": On.RESERVED}
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


SERVICE = "sagemaker.amazonaws.com"
"""The principal that a role of a cluster's instances trusts."""

DOCUMENTS = ("SSM-SessionManagerRunShell", "AWS-StartNonInteractiveCommand")
"""What `hpctl cluster ssh` starts a session with: a shell, or one command."""

_CLUSTER_ARN = re.compile(
    r"arn:(aws[a-z-]*):sagemaker:([a-z0-9-]+):(\d{12}):cluster/([a-z0-9]{12})"
)
_CLUSTER_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


class Scope(Struct, frozen=True):
    """What a policy is narrowed to. `*` is anything."""

    region: str = "*"
    account: str = "*"
    cluster: str = "*"
    """Name: it stands in the ARNs of the log groups."""
    cluster_id: str = "*"
    """It, and not the name, stands in the cluster's ARN."""
    bucket: str = "*"
    role: str = "*"
    """Name, or path and name, of the execution role."""
    partition: str = "aws"
    secret: str = ""
    """ARN of the secret of an accounting database of one's own."""
    alarm: str = ""
    """Name of the alarms that roll an update back, `*` for any; "" for none."""


class Statement(Struct, frozen=True):
    """One statement, in IAM's words."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": list(self.actions),
            "Resource": self.resources[0] if len(self.resources) == 1 else list(self.resources),
            **({"Condition": self.condition} if self.condition else {}),
        }


def scope(
    *,
    cluster: str = "",
    account: str = "",
    region: str = "",
    bucket: str = "",
    role: str = "",
    secret: str = "",
    alarm: str = "",
) -> Scope:
    """A scope from what a person says; a cluster's ARN says region and account as well.

    Raises HpctlError for what is no name, and for names that contradict each other.
    """
    partition, cluster_id = _partition(region), "*"
    if found := _CLUSTER_ARN.fullmatch(cluster):
        for said, of_arn, what in ((region, found[2], "region"), (account, found[3], "account")):
            if said not in ("", of_arn):
                raise HpctlError(
                    f"the cluster's ARN has {what} {of_arn}, not {said}",
                    f"leave --{what} out: the ARN says it",
                )
        partition, region, account, cluster_id = found.groups()
        cluster = ""
    elif cluster and not _CLUSTER_NAME.fullmatch(cluster):
        raise HpctlError(f"{cluster!r} is no cluster's name or ARN", "see `hpctl cluster list`")
    if account and not re.fullmatch(r"\d{12}", account):
        raise HpctlError(f"{account!r} is no account", "an account's id has 12 digits")
    return Scope(
        region or "*",
        account or "*",
        cluster or "*",
        cluster_id,
        bucket.removeprefix("s3://").partition("/")[0] or "*",
        role.rpartition(":role/")[2] or "*",
        partition,
        secret,
        alarm,
    )


def head_node(to: Scope) -> tuple[Statement, ...]:
    """What a controller needs beside the nodes' policy: the daemon, and the accounting's secret."""
    return (*_from(HEAD_NODE, to), *accounting_secret(to.secret))


def autoscale(to: Scope) -> tuple[Statement, ...]:
    """What a controller needs where autoscaling is on."""
    return (*_from(_both(HEAD_NODE, AUTOSCALE), to), *accounting_secret(to.secret))


def accounting_secret(arn: str) -> tuple[Statement, ...]:
    """What slurmdbd's set-up on a controller needs; nothing without a secret."""
    if not arn:
        return ()
    return (Statement("AccountingSecret", ("secretsmanager:GetSecretValue",), (arn,)),)


def operator(to: Scope) -> tuple[Statement, ...]:
    """What `hpctl cluster`, `lifecycle`, `storage` and `capacity` need."""
    return _from(OPERATOR, to)


def rollback_alarms(to: Scope) -> tuple[Statement, ...]:
    """What an execution role needs where alarms roll an update back; nothing without an alarm.

    SageMaker guide, "Update your AMI version in your SageMaker HyperPod cluster".
    """
    if not to.alarm:
        return ()
    alarm = f"arn:{to.partition}:cloudwatch:{to.region}:{to.account}:alarm:{to.alarm}"
    return (Statement("RollbackAlarms", ("cloudwatch:DescribeAlarms",), (alarm,)),)


def buyer(to: Scope) -> tuple[Statement, ...]:
    """What `hpctl capacity buy` and `extend` need beside the operator's."""
    return _from(BUYER, to)


def execution_role(to: Scope) -> tuple[Statement, ...]:
    """What HyperPod's own agents need on every node, with interfaces in a VPC of yours."""
    return (
        *rollback_alarms(to),
        Statement("LogGroups", ("logs:CreateLogGroup",), (_log_group(to),)),
        Statement(
            "LogStreams",
            ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
            (f"{_log_group(to)}:log-stream:*",),
        ),
        Statement(
            "Metrics",
            ("cloudwatch:PutMetricData",),
            ("*",),
            {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}},
        ),
        Statement("LifecycleScripts", ("s3:GetObject",), _RESOURCES[On.OBJECTS](to)),
        Statement("LifecyclePrefix", ("s3:ListBucket",), _RESOURCES[On.BUCKET](to)),
        Statement(
            "Sessions",
            (
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ),
            ("*",),
        ),
        Statement(
            "Interfaces",
            (
                "ec2:CreateNetworkInterface",
                "ec2:CreateNetworkInterfacePermission",
                "ec2:DeleteNetworkInterface",
                "ec2:DeleteNetworkInterfacePermission",
                "ec2:DescribeDhcpOptions",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
                "ec2:DetachNetworkInterface",
            ),
            ("*",),
        ),
        Statement(
            "InterfaceTags",
            ("ec2:CreateTags",),
            (f"arn:{to.partition}:ec2:{to.region}:{to.account}:network-interface/*",),
        ),
    )


PERSONAS: Mapping[str, Callable[[Scope], tuple[Statement, ...]]] = {
    "head-node": head_node,
    "autoscale": autoscale,
    "execution-role": execution_role,
    "operator": operator,
    "buyer": buyer,
}


def document(statements: tuple[Statement, ...]) -> dict[str, Any]:
    """A policy document."""
    return {"Version": "2012-10-17", "Statement": [one.document() for one in statements]}


def trust() -> dict[str, Any]:
    """The trust policy of a role that instances of a cluster have."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": SERVICE}, "Action": "sts:AssumeRole"}
        ],
    }


def _from(table: Table, to: Scope) -> tuple[Statement, ...]:
    """One statement for each service and kind of resource."""
    grouped: dict[tuple[str, On], set[str]] = defaultdict(set)
    for service, operations in table.items():
        for operation, on in operations.items():
            grouped[service, on].update(actions(service, operation))
    found = [
        Statement(_sid(service, on), tuple(sorted(names)), _RESOURCES[on](to))
        for (service, on), names in grouped.items()
    ]
    return (*found, *_beside(table, to))


def _beside(table: Table, to: Scope) -> Iterator[Statement]:
    """What a caller needs besides the operation's own action."""
    if PASSES_ROLES & table.get("sagemaker", {}).keys():
        condition = {"StringEquals": {"iam:PassedToService": SERVICE}}
        yield Statement("PassRoles", ("iam:PassRole",), _RESOURCES[On.ROLE](to), condition)
    if LINKS_DATA & table.get("fsx", {}).keys():
        # FSx for Lustre User Guide, "Adding permissions to use data repositories in Amazon S3".
        yield Statement(
            "FsxRoleForS3",
            ("iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy"),
            (
                f"arn:{to.partition}:iam::{to.account}:role/aws-service-role/"
                "s3.data-source.lustre.fsx.amazonaws.com/*",
            ),
        )


def _both(one: Table, other: Table) -> Table:
    services = {**one, **other}
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in services}


def _log_group(to: Scope) -> str:
    """HyperPod's log group of a cluster is `/aws/sagemaker/Clusters/<name>/<id>`."""
    arn = f"arn:{to.partition}:logs:{to.region}:{to.account}:log-group:/aws/sagemaker/Clusters"
    anything = (to.cluster, to.cluster_id) == ("*", "*")
    return f"{arn}/*" if anything else f"{arn}/{to.cluster}/{to.cluster_id}"


def _sid(service: str, on: On) -> str:
    words = f"{service}-{on.name.lower() if on is not On.ANY else 'look'}"
    return "".join(word.capitalize() for word in re.split("[-_]", words))


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _at(service: str, what: str) -> Callable[[Scope], tuple[str, ...]]:
    return lambda to: (
        f"arn:{to.partition}:{service}:{to.region}:{to.account}:" + what.format(to=to),
    )


_RESOURCES: Mapping[On, Callable[[Scope], tuple[str, ...]]] = {
    On.ANY: lambda _: ("*",),
    On.CLUSTER: _at("sagemaker", "cluster/{to.cluster_id}"),
    On.NEW_CLUSTER: _at("sagemaker", "cluster/*"),
    On.TRAINING_PLAN: _at("sagemaker", "training-plan/*"),
    On.RESERVED: lambda to: tuple(
        f"arn:{to.partition}:sagemaker:{to.region}:{to.account}:{kind}/*"
        for kind in ("training-plan", "reserved-capacity")
    ),
    On.EXTENSION: lambda to: tuple(
        f"arn:{to.partition}:sagemaker:{to.region}:{to.account}:{what}"
        for what in (f"cluster/{to.cluster_id}", f"extension/sagemaker-{to.cluster_id}/*")
    ),
    On.BUCKET: lambda to: (f"arn:{to.partition}:s3:::{to.bucket}",),
    On.OBJECTS: lambda to: (f"arn:{to.partition}:s3:::{to.bucket}/*",),
    On.ROLE: lambda to: (f"arn:{to.partition}:iam::{to.account}:role/{to.role}",),
    On.FILE_SYSTEM: lambda to: (
        f"arn:{to.partition}:fsx:{to.region}:{to.account}:file-system/*",
        f"arn:{to.partition}:fsx:{to.region}:{to.account}:file-cache/*",
    ),
    On.DATA_LINK: lambda to: (
        f"arn:{to.partition}:fsx:{to.region}:{to.account}:file-system/*",
        f"arn:{to.partition}:fsx:{to.region}:{to.account}:association/*",
    ),
    On.LOGS: lambda to: (_log_group(to),),
    On.LOG_STREAMS: lambda to: (f"{_log_group(to)}:log-stream:*",),
    On.SECRET: _at("secretsmanager", "secret:*"),
    On.SESSION: lambda to: (
        f"arn:{to.partition}:sagemaker:{to.region}:{to.account}:cluster/{to.cluster_id}",
        *(f"arn:{to.partition}:ssm:{to.region}:*:document/{name}" for name in DOCUMENTS),
    ),
}
