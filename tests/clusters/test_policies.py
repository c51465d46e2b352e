"""The IAM policies are what the code calls: no action less, and none that nobody needs."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name

from hpctl.clusters import policies
from hpctl.clusters.policies import AUTOSCALE, BUYER, HEAD_NODE, OPERATOR, On, Table, actions
from hpctl.errors import HpctlError

CODE = Path(policies.__file__).parents[1]
DAEMON = policies._both(HEAD_NODE, AUTOSCALE)
TABLES = {
    # The daemon's own calls; what an operator runs on a head node has the operator's rights.
    "head node": (DAEMON, [CODE / "cloud" / "sagemaker.py"]),
    # Who buys has the operator's rights as well.
    "operator": (policies._both(OPERATOR, BUYER), [CODE / "clusters", CODE / "cli"]),
}
NOT_CALLS = {"policies.py"}
ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcd1234efgh"


@cache
def known(service: str) -> frozenset[str]:
    """The operations of a service, in boto3's spelling."""
    model = botocore.session.get_session().get_service_model(service)
    return frozenset(map(xform_name, model.operation_names))


def words(path: Path) -> set[str]:
    """Every text of a module, and in the Provider every attribute: calls name operations so.

    A dash stands for an underscore where the AWS CLI is run.
    """
    tree = ast.parse(path.read_text())
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    found = {text.replace("-", "_") for text in texts if isinstance(text, str)}
    if path.parent.name == "cloud":
        found |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return found


def called(places: list[Path]) -> dict[str, str]:
    """Each operation that is called below these places, with the module that calls it."""
    services = {"sagemaker", "ec2", "s3", "iam", "fsx", "logs", "ssm", "cloudwatch", "sts"}
    services |= {"service-quotas", "secretsmanager"}
    every = {name for service in services for name in known(service) if "_" in name}
    files = [f for place in places for f in ([place] if place.is_file() else place.rglob("*.py"))]
    return {
        name: str(path.relative_to(CODE))
        for path in files
        if path.name not in NOT_CALLS
        for name in words(path) & every
    }


@pytest.mark.parametrize("who", TABLES)
def test_every_operation_that_is_called_has_a_row(who: str) -> None:
    table, places = TABLES[who]
    rows = {operation for ops in table.values() for operation in ops}
    lacking = {name: where for name, where in called(places).items() if name not in rows}
    assert not lacking, f"add rows to clusters/policies.py ({who}): {lacking}"


@pytest.mark.parametrize("who", TABLES)
def test_no_row_is_for_what_nobody_calls(who: str) -> None:
    table, places = TABLES[who]
    rows = {operation for ops in table.values() for operation in ops}
    assert rows <= called(places).keys()


@pytest.mark.parametrize("table", [DAEMON, OPERATOR])
def test_every_row_is_an_operation_of_its_service(table: Table) -> None:
    for service, rows in table.items():
        assert rows.keys() <= known(service), service


def test_actions_are_spelled_as_the_api_spells_them() -> None:
    """Where no table says otherwise an action is its operation, capitals included."""
    session = botocore.session.get_session()
    for service, rows in OPERATOR.items():
        names = {xform_name(n): n for n in session.get_service_model(service).operation_names}
        for operation in rows:
            if f"{service}.{operation}" in policies.ACTIONS:
                continue
            assert actions(service, operation)[0].partition(":")[2] == names[operation]


def granted(statements: tuple[policies.Statement, ...]) -> dict[str, tuple[str, ...]]:
    return {action: one.resources for one in statements for action in one.actions}


def test_a_policy_is_narrowed_to_what_is_named() -> None:
    to = policies.scope(cluster=ARN, bucket="s3://sagemaker-ours/scripts", role="hyperpod")
    found = granted(policies.operator(to))
    assert found["sagemaker:UpdateCluster"] == (ARN,)
    assert found["sagemaker:CreateCluster"] == (ARN.replace("abcd1234efgh", "*"),)
    assert found["s3:PutObject"] == ("arn:aws:s3:::sagemaker-ours/*",)
    assert found["s3:ListBucket"] == ("arn:aws:s3:::sagemaker-ours",)
    assert found["iam:PassRole"] == ("arn:aws:iam::111122223333:role/hyperpod",)
    assert found["ec2:DescribeSubnets"] == ("*",)
    assert found["logs:GetLogEvents"] == (
        "arn:aws:logs:us-east-1:111122223333:log-group:/aws/sagemaker/Clusters/*/abcd1234efgh"
        ":log-stream:*",
    )


def test_the_daemon_may_do_nothing_but_to_its_cluster() -> None:
    found = granted(policies.head_node(policies.scope(cluster=ARN)))
    assert set(found.values()) == {(ARN,)}
    assert all(action.startswith("sagemaker:") for action in found)


def test_autoscaling_needs_more_and_says_so_apart() -> None:
    to = policies.scope(cluster=ARN, role="hyperpod")
    more = granted(policies.autoscale(to)).keys() - granted(policies.head_node(to)).keys()
    assert more == {
        "iam:PassRole",
        "sagemaker:BatchAddClusterNodes",
        "sagemaker:BatchDeleteClusterNodes",
        "sagemaker:UpdateCluster",
    }


def test_a_controller_may_read_the_secret_of_its_database() -> None:
    secret = "arn:aws:secretsmanager:us-east-1:111122223333:secret:slurmdb-AbCdEf"
    to = policies.scope(cluster=ARN, secret=secret)
    for who in ("head-node", "autoscale"):
        found = granted(policies.PERSONAS[who](to))
        assert found["secretsmanager:GetSecretValue"] == (secret,)
    assert "secretsmanager:GetSecretValue" not in granted(policies.execution_role(to))


def test_an_execution_role_reads_alarms_where_some_roll_back() -> None:
    """HyperPod guide, "Update your AMI version in your SageMaker HyperPod cluster": automatic
    rollback needs cloudwatch:DescribeAlarms on the execution role.
    """
    to = policies.scope(account="111122223333", region="us-east-1", alarm="down")
    found = granted(policies.execution_role(to))
    arn = "arn:aws:cloudwatch:us-east-1:111122223333:alarm:down"
    assert found["cloudwatch:DescribeAlarms"] == (arn,)
    assert "cloudwatch:DescribeAlarms" not in granted(policies.execution_role(policies.Scope()))


def test_buying_is_a_right_of_its_own() -> None:
    """SageMaker guide, "IAM for SageMaker training plans": CreateTrainingPlan is administrative,
    and needs CreateReservedCapacity and both resource types.
    """
    to = policies.scope(account="111122223333", region="us-east-1")
    found, operator = granted(policies.buyer(to)), granted(policies.operator(to))
    assert "sagemaker:CreateTrainingPlan" not in operator
    assert "sagemaker:SearchTrainingPlanOfferings" in operator
    kinds = ("training-plan", "reserved-capacity")
    for action in ("CreateTrainingPlan", "CreateReservedCapacity", "ExtendTrainingPlan"):
        assert found[f"sagemaker:{action}"] == tuple(
            f"arn:aws:sagemaker:us-east-1:111122223333:{kind}/*" for kind in kinds
        )


def test_roles_are_passed_to_sagemaker_alone() -> None:
    passing = [s for s in policies.operator(policies.Scope()) if "iam:PassRole" in s.actions]
    assert [s.condition for s in passing] == [
        {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    ]


@pytest.mark.parametrize("who", policies.PERSONAS)
def test_a_policy_is_one_that_iam_takes(who: str) -> None:
    text = json.dumps(policies.document(policies.PERSONAS[who](policies.Scope())))
    document = json.loads(text)
    assert document["Version"] == "2012-10-17"
    sids = [one["Sid"] for one in document["Statement"]]
    assert len(sids) == len(set(sids))
    assert all(sid.isalnum() for sid in sids)
    # A role's inline policies have 10240 characters without blanks, a managed one 6144.
    assert len(text.replace(" ", "")) < 6144


@pytest.mark.parametrize("on", On)
def test_every_kind_of_resource_has_arns(on: On) -> None:
    assert all(
        arn == "*" or arn.startswith("arn:") for arn in policies._RESOURCES[on](policies.Scope())
    )


@pytest.mark.parametrize(
    ("region", "partition"),
    [("us-east-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")],
)
def test_the_region_says_the_partition(region: str, partition: str) -> None:
    (statement,) = policies.head_node(policies.scope(region=region))
    assert statement.resources == (f"arn:{partition}:sagemaker:{region}:*:cluster/*",)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"cluster": ARN, "region": "eu-west-1"}, "has region us-east-1, not eu-west-1"),
        ({"cluster": ARN, "account": "000000000000"}, "has account 111122223333"),
        ({"cluster": "not a name"}, "is no cluster's name or ARN"),
        ({"account": "12"}, "is no account"),
    ],
)
def test_what_contradicts_itself_is_refused(said: dict[str, str], words: str) -> None:
    with pytest.raises(HpctlError, match=words):
        policies.scope(**said)


def test_the_operator_may_start_the_sessions_that_ssh_starts() -> None:
    from hpctl.cli.cluster.ssh import DOCUMENT

    allowed = granted(policies.operator(policies.scope(cluster=ARN)))["ssm:StartSession"]
    assert ARN in allowed
    assert any(arn.endswith(f"document/{DOCUMENT}") for arn in allowed)
