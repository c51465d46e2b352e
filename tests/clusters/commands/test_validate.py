"""`hpctl cluster validate` and `hpctl cluster iam`: exit codes and what decides them."""

import json
import re
from pathlib import Path

import pytest

from hpctl.clusters import spec
from hpctl.clusters.commands.validate import FAMILIES, validate_spec_or_exit
from hpctl.clusters.validate import FAMILIES as KNOWN
from hpctl.toolkit.errors import HpctlError, ResourceNotFound
from tests.clusters.validate import world
from tests.clusters.validate.world import ROLE
from tests.fakes.command_line import run, simulated

pytestmark = pytest.mark.integration

WRONG = "cluster.yaml"
FILES = Path(world.__file__).parents[1] / "files"


@pytest.fixture
def good(tmp_path, account):
    """A small file with which the account agrees."""
    groups = world.ACCOUNT["network"]["security_groups"]
    account["ec2"]["describe_security_groups"] = [*groups.values()]
    account["iam"]["simulate_principal_policy"] = simulated()
    account["ec2"]["describe_instance_type_offerings"] = [
        {"InstanceType": "m5.4xlarge", "Location": "us-east-1a"}
    ]
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: small\n"
        "vpc: {subnets: [subnet-a], security_groups: [sg-nodes]}\n"
        "instance_groups:\n"
        f"  - {{name: ctl, instance_type: ml.m5.4xlarge, count: 1, role: controller, "
        f"execution_role: '{ROLE}'}}\n"
    )
    return path


def test_nothing_wrong_is_0_and_stops_no_create(good, account, capsys):
    result = run("cluster", "validate", good)
    assert result.exit_code == 0, result.output
    assert "WARN" not in result.stdout
    validate_spec_or_exit(str(good), spec.read_cluster_spec(good), account)
    assert capsys.readouterr().err == ""


def test_calls_that_failed_are_3_and_one_reason_is_reported_once(good, account):
    del account["iam"]["simulate_principal_policy"]
    result = run("cluster", "validate", good)
    assert result.exit_code == 3, result.output
    assert "iam:simulate_principal_policy: no answer" in result.stdout
    for answers in account.values():
        answers.clear()
    result = run("cluster", "validate", good)
    assert result.exit_code == 3
    assert result.stdout.count("no answer") == 1
    assert result.stdout.count("for the same reason as above") > 4
    verdicts = json.loads(run("cluster", "validate", good, "--json").stdout)["verdicts"]
    assert sum("no answer" in v["what"] for v in verdicts) > 5


def test_a_warning_is_1_only_with_strict(good, account):
    (table,) = world.ACCOUNT["network"]["route_tables"].values()
    account["ec2"]["describe_route_tables"] = [{**table, "Routes": table["Routes"][:1]}]
    assert run("cluster", "validate", good).exit_code == 0
    assert run("cluster", "validate", good, "--strict").exit_code == 1


def test_only_one_family_asks_only_for_that(good, account):
    account["ec2"].clear()
    account["iam"].clear()
    result = run("cluster", "validate", good, "--only", "quotas", "--json")
    assert result.exit_code == 0, result.output
    assert {v["family"] for v in json.loads(result.stdout)["verdicts"]} == {"quotas"}
    assert tuple(family.name for family in KNOWN) == FAMILIES


def test_one_wrong_field_hides_nothing_else(good, account, tmp_path):
    account["ec2"]["describe_subnets"] = []
    file = tmp_path / "partly.yaml"
    file.write_text(re.sub(r"count: [1-9]\d*", "count: many", good.read_text()))
    answer = json.loads(run("cluster", "validate", file, "--json").stdout)
    assert answer["partial"] is True
    found = {(v["family"], v["place"]) for v in answer["verdicts"] if v["level"] == "FAIL"}
    counts = {place for family, place in found if family == "spec"}
    assert counts
    assert all(place.endswith(".count") for place in counts)
    whole = json.loads(run("cluster", "validate", good, "--json").stdout)["verdicts"]
    failed = {(v["family"], v["place"]) for v in whole if v["level"] == "FAIL"}
    assert {p for p in found if p[0] != "spec"} == failed
    assert failed


def test_create_stops_before_it_spends(account, capsys):
    with pytest.raises(
        HpctlError, match=r"checks of the cluster file .* failed, so nothing was created"
    ):
        validate_spec_or_exit(WRONG, spec.read_cluster_spec(WRONG), account)
    text = capsys.readouterr().err
    assert "ml.p5.48xlarge" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_role_that_allows_everything_is_0_an_absent_one_1_an_unknown_one_3(account):
    account["iam"]["simulate_principal_policy"] = simulated()
    for who in ("head-node", "execution-role", "operator"):
        result = run("cluster", "iam", "check", ROLE, "--as", who)
        assert (result.exit_code, result.stdout.count("\n")) == (0, 1), result.output
    account["iam"]["simulate_principal_policy"] = None
    result = run("cluster", "iam", "check", ROLE, "--as", "operator")
    assert (result.exit_code, str(result.exception)) == (1, f"there is no role {ROLE}")
    assert isinstance(result.exception, ResourceNotFound)
    account["iam"].clear()
    assert run("cluster", "iam", "check", ROLE, "--as", "head-node").exit_code == 3


def test_the_trust_policy_is_printed_alone_and_what_is_left_open_beside_a_policy():
    for who in ("head-node", "execution-role"):
        printed = json.loads(run("cluster", "iam", "policy", who, "--trust").stdout)
        assert printed["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    account = ("--region", "us-east-1", "--account", "111122223333")
    result = run("cluster", "iam", "policy", "operator", *account)
    assert json.loads(result.stdout)["Version"] == "2012-10-17"
    assert result.stderr == (
        "hpctl: --cluster NAME, --cluster ARN, --bucket, --role would narrow it\n"
    )


def test_the_policy_is_for_what_the_configuration_uses(tmp_path):
    config = tmp_path / "hpctl.yaml"
    config.write_text(
        "cluster: {provider: sagemaker, name: llm}\n"
        "autoscale: {enabled: true, groups: {gpu: {min_count: 0, max_count: 4}}}"
    )

    def actions(who: str, *options: str) -> dict[str, object]:
        document = json.loads(run("cluster", "iam", "policy", who, *options).stdout)
        return {a: one["Resource"] for one in document["Statement"] for a in one["Action"]}

    plain, scaled = actions("head-node"), actions("head-node", "--config", str(config))
    assert "sagemaker:BatchAddClusterNodes" not in plain
    assert {"sagemaker:BatchAddClusterNodes", "iam:PassRole"} <= scaled.keys()
    secret = "secretsmanager:GetSecretValue"
    assert secret not in plain
    assert secret in actions("head-node", "--file", str(FILES / "continuous.yaml"))
    assert "cloudwatch:DescribeAlarms" not in actions("execution-role")
    found = actions("execution-role", "--file", str(FILES / "full.yaml"))
    alarms = [str(arn).rpartition(":")[2] for arn in found["cloudwatch:DescribeAlarms"]]
    assert alarms == ["jobs-lost", "nodes-down"]
    assert found["s3:GetObject"] == "arn:aws:s3:::sagemaker-scripts/*"
    operator = actions("operator", "--file", str(FILES / "full.yaml"))
    assert operator["iam:PassRole"] == "arn:aws:iam::*:role/hyperpod"
