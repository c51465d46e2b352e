"""IAM policies of least privilege: for the daemon, for the nodes, for who operates clusters.

The daemon's and the operator's are made from the tables of calls, the nodes' from what HyperPod
needs of an execution role (SageMaker guide, "IAM for SageMaker HyperPod", and the managed policy
AmazonSageMakerClusterInstanceRolePolicy), narrowed to one cluster and one bucket.

The tables of AWS operations, by whom and on what, are the source of the policies. A test holds
them against the calls in the code, both ways: who adds a call adds its row.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import Any

from msgspec import Struct, field

from hpctl.toolkit.errors import HpctlError


class IamActionResource(Enum):
    """What an action is allowed on. Which actions know which: the Service Authorization Reference.

    ANY: AWS knows no resource for it.
    """

    ANY = "*"
    CLUSTER = "cluster"
    NEW_CLUSTER = "new-cluster"
    TRAINING_PLAN = "training-plan"
    RESERVED = "reserved"
    BUCKET = "bucket"
    OBJECTS = "objects"
    ROLE = "role"
    FILE_SYSTEM = "file-system"
    DATA_LINK = "data-link"
    LOGS = "logs"
    LOG_STREAMS = "log-streams"
    SECRET = "secret"  # noqa: S105 -- a word, not a secret
    SESSION = "session"
    INTERFACE = "interface"
    FSX_ROLE = "fsx-role"


Table = Mapping[str, Mapping[IamActionResource, str]]
"""By boto3's service, and by what they are allowed on: operations, divided by blanks."""

HEAD_NODE: Table = {
    "sagemaker": {
        # describe_cluster_node: where the host names of a list do not spell Slurm's addresses.
        IamActionResource.CLUSTER: "describe_cluster list_cluster_nodes describe_cluster_node"
        " batch_reboot_cluster_nodes batch_replace_cluster_nodes"
    }
}
"""What the daemon calls, on a controller."""

AUTOSCALE: Table = {
    "sagemaker": {
        # update_cluster: where NodeProvisioningMode is not Continuous.
        IamActionResource.CLUSTER: "batch_add_cluster_nodes batch_delete_cluster_nodes"
        " update_cluster"
    }
}
"""What it calls besides where autoscaling is on."""

OPERATOR: Table = {
    "sagemaker": {
        IamActionResource.CLUSTER: "add_tags batch_add_cluster_nodes batch_delete_cluster_nodes"
        " batch_reboot_cluster_nodes batch_replace_cluster_nodes delete_cluster delete_tags"
        " describe_cluster describe_cluster_event describe_cluster_node list_cluster_events"
        " list_cluster_nodes list_cluster_operations list_tags start_cluster_health_check"
        " update_cluster update_cluster_software",
        IamActionResource.NEW_CLUSTER: "create_cluster",
        IamActionResource.RESERVED: "describe_reserved_capacity "
        "list_ultra_servers_by_reserved_capacity",
        IamActionResource.TRAINING_PLAN: "describe_training_plan "
        "describe_training_plan_extension_history",
        IamActionResource.ANY: "list_clusters list_training_plans",
    },
    "ec2": {
        IamActionResource.ANY: "describe_images describe_instance_type_offerings "
        "describe_instance_types"
        " describe_network_interfaces describe_route_tables describe_security_groups"
        " describe_subnets describe_vpc_attribute describe_vpc_endpoints"
    },
    "fsx": {
        IamActionResource.DATA_LINK: "create_data_repository_association "
        "describe_data_repository_associations",
        IamActionResource.FILE_SYSTEM: "describe_file_caches describe_file_systems",
    },
    "iam": {IamActionResource.ROLE: "get_role simulate_principal_policy"},
    "logs": {IamActionResource.LOG_STREAMS: "get_log_events"},
    "s3": {
        IamActionResource.OBJECTS: "delete_object get_object put_object",
        IamActionResource.BUCKET: "get_bucket_location list_objects_v2",
    },
    "secretsmanager": {IamActionResource.SECRET: "describe_secret"},
    "service-quotas": {
        IamActionResource.ANY: "list_aws_default_service_quotas list_service_quotas"
    },
    "ssm": {IamActionResource.SESSION: "start_session"},
}
"""What `hpctl cluster` and its siblings call, at an operator's workstation or in CI."""

ACTIONS: Mapping[str, tuple[str, ...]] = {
    # Whose IAM action has another name than the operation (Service Authorization Reference).
    "s3.list_objects_v2": ("s3:ListBucket",),
    "service-quotas.list_aws_default_service_quotas": (
        "servicequotas:ListAWSDefaultServiceQuotas",
    ),
    # Tags in a request need an action of their own.
    "sagemaker.create_cluster": ("sagemaker:CreateCluster", "sagemaker:AddTags"),
}
"""Actions of the operations whose action is not `<service>:<Operation>`."""

PREFIXES: Mapping[str, str] = {"service-quotas": "servicequotas"}
"""IAM's name of a service where it is not boto3's."""

PASSES_ROLES = frozenset({"create_cluster", "update_cluster"})
"""Operations whose caller needs iam:PassRole for the roles in the request."""

LINKS_DATA = frozenset({"create_data_repository_association"})
"""Operations for which FSx creates a separate role, in the caller's name."""


def list_required_iam_actions(service: str, operation: str) -> tuple[str, ...]:
    """Return the IAM actions that an operation needs: `("ec2:DescribeSubnets",)`."""
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


class IamPolicyScope(Struct, frozen=True):
    """What a policy is narrowed to. `*` is anything."""

    region: str = "*"
    account: str = "*"
    cluster: str = "*"
    """Name: it is part of the ARNs of the log groups."""
    cluster_id: str = "*"
    """It, and not the name, stands in the cluster's ARN."""
    bucket: str = "*"
    role: str = "*"
    """Name, or path and name, of the execution role."""
    partition: str = "aws"
    secret: str = ""
    """ARN of the secret of an accounting database of one's own."""
    alarms: tuple[str, ...] = ()
    """Names of the CloudWatch alarms that roll an update back."""
    autoscale: bool = False
    """Whether the daemon scales groups."""
    evidence: str = ""
    """`BUCKET` or `BUCKET/PREFIX` where evidence of nodes is kept in S3."""

    @property
    def log_group(self) -> str:
        """HyperPod's log group of a cluster is `/aws/sagemaker/Clusters/<name>/<id>`."""
        anything = (self.cluster, self.cluster_id) == ("*", "*")
        which = "*" if anything else f"{self.cluster}/{self.cluster_id}"
        return f"/aws/sagemaker/Clusters/{which}"


class IamPolicyStatement(Struct, frozen=True):
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


def make_iam_policy_scope(  # noqa: PLR0913 -- each a name that a policy may be narrowed to, by keyword
    *,
    cluster: str = "",
    account: str = "",
    region: str = "",
    bucket: str = "",
    role: str = "",
    secret: str = "",
    alarms: tuple[str, ...] = (),
    autoscale: bool = False,
    evidence: str = "",
) -> IamPolicyScope:
    """Make a scope of names and of settings; a cluster's ARN gives region and account as well.

    Raises HpctlError for what is no name, and for names that contradict each other.
    """
    partition, cluster_id = _get_aws_partition_of_region(region), "*"
    found = _CLUSTER_ARN.fullmatch(cluster)
    if found:
        for text, of_arn, what in ((region, found[2], "region"), (account, found[3], "account")):
            if text not in ("", of_arn):
                raise HpctlError(
                    f"--{what} {text} contradicts the cluster's ARN, which has {what} {of_arn}",
                    f"remove --{what}: the ARN has the value",
                )
        partition, region, account, cluster_id = found.groups()
        cluster = ""
    elif cluster and not _CLUSTER_NAME.fullmatch(cluster):
        raise HpctlError(
            f"{cluster!r} is not a valid name or ARN of a cluster",
            "list the clusters: hpctl cluster list",
        )
    if account and not re.fullmatch(r"\d{12}", account):
        raise HpctlError(f"{account!r} is not an AWS account id", "write the account's 12 digits")
    return IamPolicyScope(
        region or "*",
        account or "*",
        cluster or "*",
        cluster_id,
        bucket.removeprefix("s3://").partition("/")[0] or "*",
        role.rpartition(":role/")[2] or "*",
        partition,
        secret,
        alarms,
        autoscale,
        evidence.removeprefix("s3://").strip("/") if evidence.startswith("s3://") else "",
    )


def list_head_node_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what a controller needs beside the nodes' policy: the daemon, and the accounting's
    secret."""
    operations = HEAD_NODE["sagemaker"][IamActionResource.CLUSTER]
    if to.autoscale:
        operations = f"{operations} {AUTOSCALE['sagemaker'][IamActionResource.CLUSTER]}"
    daemon = _make_statements_from_table({"sagemaker": {IamActionResource.CLUSTER: operations}}, to)
    return (*daemon, *list_evidence_read_statements(to), *list_secret_access_statements(to.secret))


def list_evidence_read_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what a head node needs to check, copy and delete evidence in S3; nothing where it is
    in a directory."""
    if not to.evidence:
        return ()
    bucket = f"arn:{to.partition}:s3:::{to.evidence.partition('/')[0]}"
    objects = f"arn:{to.partition}:s3:::{to.evidence}/*"
    return (
        IamPolicyStatement("EvidenceObjects", ("s3:DeleteObject", "s3:GetObject"), (objects,)),
        IamPolicyStatement("EvidenceBucket", ("s3:ListBucket",), (bucket,)),
    )


def list_evidence_write_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what each node needs to keep evidence in S3; nothing where it is in a directory."""
    if not to.evidence:
        return ()
    objects = f"arn:{to.partition}:s3:::{to.evidence}/*"
    return (IamPolicyStatement("Evidence", ("s3:PutObject",), (objects,)),)


def list_secret_access_statements(arn: str) -> tuple[IamPolicyStatement, ...]:
    """Return what slurmdbd's set-up on a controller needs; nothing without a secret."""
    if not arn:
        return ()
    return (IamPolicyStatement("AccountingSecret", ("secretsmanager:GetSecretValue",), (arn,)),)


def list_operator_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what `hpctl cluster` needs."""
    return _make_statements_from_table(OPERATOR, to)


def list_alarm_rollback_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what an execution role needs where alarms roll an update back; nothing without one.

    SageMaker guide, "Update your AMI version in your SageMaker HyperPod cluster".
    """
    if not to.alarms:
        return ()
    at = f"arn:{to.partition}:cloudwatch:{to.region}:{to.account}:alarm:"
    resources = tuple(at + name for name in to.alarms)
    return (IamPolicyStatement("RollbackAlarms", ("cloudwatch:DescribeAlarms",), resources),)


def list_execution_role_statements(to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return what HyperPod's own agents need on every node, with interfaces in a VPC of yours."""
    namespace = {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}}
    return (
        *list_alarm_rollback_statements(to),
        *list_evidence_write_statements(to),
        _make_iam_policy_statement("LogGroups", "logs:CreateLogGroup", IamActionResource.LOGS, to),
        _make_iam_policy_statement(
            "LogStreams",
            "logs:CreateLogStream DescribeLogStreams PutLogEvents",
            IamActionResource.LOG_STREAMS,
            to,
        ),
        _make_iam_policy_statement(
            "Metrics", "cloudwatch:PutMetricData", IamActionResource.ANY, to, namespace
        ),
        _make_iam_policy_statement(
            "LifecycleScripts", "s3:GetObject", IamActionResource.OBJECTS, to
        ),
        _make_iam_policy_statement(
            "LifecyclePrefix", "s3:ListBucket", IamActionResource.BUCKET, to
        ),
        _make_iam_policy_statement(
            "Sessions",
            "ssmmessages:CreateControlChannel CreateDataChannel OpenControlChannel OpenDataChannel",
            IamActionResource.ANY,
            to,
        ),
        _make_iam_policy_statement(
            "Interfaces",
            "ec2:CreateNetworkInterface CreateNetworkInterfacePermission DeleteNetworkInterface"
            " DeleteNetworkInterfacePermission DescribeDhcpOptions DescribeNetworkInterfaces"
            " DescribeSecurityGroups DescribeSubnets DescribeVpcs DetachNetworkInterface",
            IamActionResource.ANY,
            to,
        ),
        _make_iam_policy_statement(
            "InterfaceTags", "ec2:CreateTags", IamActionResource.INTERFACE, to
        ),
    )


def _make_iam_policy_statement(
    sid: str,
    text: str,
    on: IamActionResource,
    to: IamPolicyScope,
    condition: Mapping[str, Mapping[str, str]] = {},
) -> IamPolicyStatement:
    """Return a statement of `service:Action Action ...`."""
    service, _, names = text.partition(":")
    return IamPolicyStatement(
        sid,
        tuple(f"{service}:{name}" for name in names.split()),
        _list_resource_arns(on, to),
        condition,
    )


PERSONAS: Mapping[str, Callable[[IamPolicyScope], tuple[IamPolicyStatement, ...]]] = {
    "head-node": list_head_node_statements,
    "execution-role": list_execution_role_statements,
    "operator": list_operator_statements,
}


def make_iam_policy_document(statements: tuple[IamPolicyStatement, ...]) -> dict[str, Any]:
    """Return a policy document."""
    return {"Version": "2012-10-17", "Statement": [one.document() for one in statements]}


def make_iam_trust_policy() -> dict[str, Any]:
    """The trust policy of a role that instances of a cluster have."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": SERVICE}, "Action": "sts:AssumeRole"}
        ],
    }


def _make_statements_from_table(table: Table, to: IamPolicyScope) -> tuple[IamPolicyStatement, ...]:
    """Return one statement for each service and kind of resource."""
    found = []
    for service, kinds in table.items():
        for on, names in kinds.items():
            actions = _list_sorted_iam_actions(service, names)
            found.append(
                IamPolicyStatement(
                    _make_statement_id(service, on), actions, _list_resource_arns(on, to)
                )
            )
    return (*found, *_list_dependent_action_statements(table, to))


def _list_sorted_iam_actions(service: str, names: str) -> tuple[str, ...]:
    actions = chain.from_iterable(
        list_required_iam_actions(service, name) for name in names.split()
    )
    return tuple(sorted(actions))


def _list_dependent_action_statements(
    table: Table, to: IamPolicyScope
) -> Iterator[IamPolicyStatement]:
    """Yield what a caller needs besides the operation's own action."""
    called: set[str] = set()
    for kinds in table.values():
        for names in kinds.values():
            called.update(names.split())
    if PASSES_ROLES & called:
        condition = {"StringEquals": {"iam:PassedToService": SERVICE}}
        yield _make_iam_policy_statement(
            "PassRoles", "iam:PassRole", IamActionResource.ROLE, to, condition
        )
    if LINKS_DATA & called:
        # FSx for Lustre User Guide, "Adding permissions to use data repositories in Amazon S3".
        needed = "iam:AttachRolePolicy CreateServiceLinkedRole PutRolePolicy"
        yield _make_iam_policy_statement("FsxRoleForS3", needed, IamActionResource.FSX_ROLE, to)


def _make_statement_id(service: str, on: IamActionResource) -> str:
    text = f"{service}-{on.name.lower() if on is not IamActionResource.ANY else 'look'}"
    return "".join(word.capitalize() for word in re.split("[-_]", text))


def _get_aws_partition_of_region(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _make_arn_template(service: str, what: str) -> str:
    return "arn:{to.partition}:" + service + ":{to.region}:{to.account}:" + what


_RESOURCES: Mapping[IamActionResource, tuple[str, ...]] = {
    IamActionResource.ANY: ("*",),
    IamActionResource.CLUSTER: (_make_arn_template("sagemaker", "cluster/{to.cluster_id}"),),
    IamActionResource.NEW_CLUSTER: (_make_arn_template("sagemaker", "cluster/*"),),
    IamActionResource.TRAINING_PLAN: (_make_arn_template("sagemaker", "training-plan/*"),),
    IamActionResource.RESERVED: (
        _make_arn_template("sagemaker", "training-plan/*"),
        _make_arn_template("sagemaker", "reserved-capacity/*"),
    ),
    IamActionResource.BUCKET: ("arn:{to.partition}:s3:::{to.bucket}",),
    IamActionResource.OBJECTS: ("arn:{to.partition}:s3:::{to.bucket}/*",),
    IamActionResource.ROLE: ("arn:{to.partition}:iam::{to.account}:role/{to.role}",),
    IamActionResource.FILE_SYSTEM: (
        _make_arn_template("fsx", "file-system/*"),
        _make_arn_template("fsx", "file-cache/*"),
    ),
    IamActionResource.DATA_LINK: (
        _make_arn_template("fsx", "file-system/*"),
        _make_arn_template("fsx", "association/*"),
    ),
    IamActionResource.LOGS: (_make_arn_template("logs", "log-group:{to.log_group}"),),
    IamActionResource.LOG_STREAMS: (
        _make_arn_template("logs", "log-group:{to.log_group}:log-stream:*"),
    ),
    IamActionResource.SECRET: (_make_arn_template("secretsmanager", "secret:*"),),
    IamActionResource.SESSION: (
        _make_arn_template("sagemaker", "cluster/{to.cluster_id}"),
        *("arn:{to.partition}:ssm:{to.region}:*:document/" + name for name in DOCUMENTS),
    ),
    IamActionResource.INTERFACE: (_make_arn_template("ec2", "network-interface/*"),),
    IamActionResource.FSX_ROLE: (
        "arn:{to.partition}:iam::{to.account}:role/aws-service-role/"
        "s3.data-source.lustre.fsx.amazonaws.com/*",
    ),
}


def _list_resource_arns(on: IamActionResource, to: IamPolicyScope) -> tuple[str, ...]:
    return tuple(one.format(to=to) for one in _RESOURCES[on])
