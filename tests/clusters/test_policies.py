"""The IAM policies are what the code calls: no action less, and none that nobody needs."""

import ast
import json
from functools import cache
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name

from hpctl.clusters import iam_policies
from hpctl.clusters.iam_policies import AUTOSCALE, HEAD_NODE, OPERATOR

pytestmark = pytest.mark.integration

CODE = Path(iam_policies.__file__).parents[1]
TABLES = {
    # The daemon's own calls; what an operator runs on a head node has the operator's rights.
    "head node": ((HEAD_NODE, AUTOSCALE), [CODE / "sagemaker" / "provider.py"]),
    "operator": ((OPERATOR,), [CODE / "clusters", CODE / "cli"]),
}
NOT_CALLS = {"iam_policies.py"}
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
    if path.parent.name == "sagemaker":
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
def test_every_operation_that_is_called_has_a_row_and_no_other(who: str) -> None:
    tables, places = TABLES[who]
    kinds = [kind for table in tables for kind in table.values()]
    rows = {name for kind in kinds for names in kind.values() for name in names.split()}
    calls = called(places)
    lacking = {name: where for name, where in calls.items() if name not in rows}
    assert not lacking, f"add rows to clusters/iam_policies.py ({who}): {lacking}"
    assert rows <= calls.keys()


def granted(statements: tuple[iam_policies.IamPolicyStatement, ...]) -> dict[str, tuple[str, ...]]:
    return {action: one.resources for one in statements for action in one.actions}


def test_a_policy_is_narrowed_to_what_is_named() -> None:
    to = iam_policies.make_iam_policy_scope(
        cluster=ARN, bucket="s3://sagemaker-ours/scripts", role="hyperpod"
    )
    found = granted(iam_policies.list_operator_statements(to))
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
    found = granted(
        iam_policies.list_head_node_statements(iam_policies.make_iam_policy_scope(cluster=ARN))
    )
    assert set(found.values()) == {(ARN,)}
    assert all(action.startswith("sagemaker:") for action in found)


def test_evidence_in_s3_is_written_by_nodes_and_read_by_heads() -> None:
    to = iam_policies.make_iam_policy_scope(cluster=ARN, evidence="s3://ours/hpctl/evidence/")
    objects = ("arn:aws:s3:::ours/hpctl/evidence/*",)
    head, node = (
        granted(iam_policies.list_head_node_statements(to)),
        granted(iam_policies.list_execution_role_statements(to)),
    )
    assert (head["s3:GetObject"], head["s3:DeleteObject"]) == (objects, objects)
    assert head["s3:ListBucket"] == ("arn:aws:s3:::ours",)
    assert node["s3:PutObject"] == objects
    to = iam_policies.make_iam_policy_scope(cluster=ARN, evidence="/fsx/hpctl/evidence")
    both = (
        *iam_policies.list_head_node_statements(to),
        *iam_policies.list_execution_role_statements(to),
    )
    assert not {"s3:PutObject", "s3:DeleteObject"} & granted(both).keys()


def test_roles_are_passed_to_sagemaker_alone() -> None:
    passing = [
        s
        for s in iam_policies.list_operator_statements(iam_policies.IamPolicyScope())
        if "iam:PassRole" in s.actions
    ]
    assert [s.condition for s in passing] == [
        {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    ]


@pytest.mark.parametrize("who", iam_policies.PERSONAS)
def test_a_policy_is_one_that_iam_takes(who: str) -> None:
    text = json.dumps(
        iam_policies.make_iam_policy_document(
            iam_policies.PERSONAS[who](iam_policies.IamPolicyScope())
        )
    )
    document = json.loads(text)
    assert document["Version"] == "2012-10-17"
    sids = [one["Sid"] for one in document["Statement"]]
    assert len(sids) == len(set(sids))
    assert all(sid.isalnum() for sid in sids)
    # A role's inline policies have 10240 characters without blanks, a managed one 6144.
    assert len(text.replace(" ", "")) < 6144


def test_the_operator_may_start_the_sessions_that_ssh_starts() -> None:
    from hpctl.clusters.commands.ssh import DOCUMENT

    allowed = granted(
        iam_policies.list_operator_statements(iam_policies.make_iam_policy_scope(cluster=ARN))
    )["ssm:StartSession"]
    assert ARN in allowed
    assert any(arn.endswith(f"document/{DOCUMENT}") for arn in allowed)
