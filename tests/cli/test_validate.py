"""`hpctl cluster validate` and `hpctl iam`: text letter by letter, exit codes, and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.errors import Absent, Unavailable
from tests.cli.test_golden import compare
from tests.clusters.validate import world
from tests.clusters.validate.world import ROLE

HERE = Path(__file__).parent / "validate"
WRONG, UNREADABLE = HERE / "cluster.yaml", HERE / "unreadable.yaml"


class PaperService:
    """Answers from a table, in the shapes of AWS; of the rest nobody answers."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        self.name, self.answers = name, answers

    def read(self, operation: str, **request: Any) -> Any:
        if operation not in self.answers:
            raise Unavailable(f"{self.name}:{operation}: no answer", "check the network")
        found = self.answers[operation]
        if found is None:
            raise Absent(f"{self.name}:{operation}: not found", code="ResourceNotFound")
        return found(request) if callable(found) else found

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        yield from self.read(operation, **request)


class PaperAws:
    region = "us-east-1"

    def __init__(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        self.answers = answers

    def service(self, name: str) -> PaperService:
        return PaperService(name, self.answers.get(name, {}))


def simulated(*denied: str) -> Any:
    def results(request: Any) -> list[dict[str, Any]]:
        return [
            {
                "EvalActionName": action,
                "EvalDecision": "implicitDeny" if action in denied else "allowed",
                "EvalResourceName": request["ResourceArns"][0],
            }
            for action in request["ActionNames"]
        ]

    return results


def answers() -> dict[str, dict[str, Any]]:
    """An account that fits the good world; test by test something is taken out."""
    network = world.network()
    quotas = world.facts().quota.limits
    assert isinstance(quotas, dict)
    listed = [{"QuotaName": name, "Value": value} for name, value in quotas.items()]
    role = {"Role": {"Arn": ROLE, "AssumeRolePolicyDocument": world.trust()}}
    return {
        "sagemaker": {"describe_cluster": None, "list_clusters": []},
        "ec2": {
            "describe_subnets": list(network.subnets.values()),  # type: ignore[union-attr]
            "describe_security_groups": [
                world.group("sg-nodes", IpPermissions=[], IpPermissionsEgress=world.anywhere())
            ],
            "describe_route_tables": list(network.route_tables.values()),  # type: ignore[union-attr]
            "describe_vpc_endpoints": [],
            "describe_vpc_attribute": {
                "EnableDnsSupport": {"Value": True},
                "EnableDnsHostnames": {"Value": True},
            },
            "describe_instance_types": [],
            "describe_instance_type_offerings": [],
        },
        "iam": {"get_role": role, "simulate_principal_policy": simulated("s3:GetObject")},
        "fsx": {"describe_file_systems": []},
        "service-quotas": {"list_aws_default_service_quotas": [], "list_service_quotas": listed},
    }


def run(*words: str, width: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(cli, list(words), prog_name="hpctl")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    found = answers()
    monkeypatch.setattr("hpctl.wiring.open_aws", lambda *_: PaperAws(found))
    monkeypatch.chdir(HERE)
    return found


COMMANDS = {
    "validate": ("cluster", "validate", WRONG.name),
    "validate-verbose": ("cluster", "validate", WRONG.name, "--verbose", "--only", "network"),
    "validate-offline": ("cluster", "validate", WRONG.name, "--offline"),
    "validate-unreadable": ("cluster", "validate", UNREADABLE.name),
    "iam-check": ("iam", "check", ROLE, "--as", "execution-role"),
    "iam-head-node": ("iam", "head-node", "--account", "111122223333"),
}


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_json_are_as_before(name: str) -> None:
    result = run(*COMMANDS[name])
    assert isinstance(result.exception, SystemExit | None), result.output
    assert [line for line in result.stdout.splitlines() if len(line) > 80 or line[-1:] == " "] == []
    compare(f"{name}.txt", result.stdout)
    compare(f"{name}.json", run(*COMMANDS[name], "--json").stdout)


@pytest.fixture
def good(tmp_path: Path, account: dict[str, dict[str, Any]]) -> Path:
    """A small file with which the account agrees."""
    account["ec2"]["describe_security_groups"] = [world.group("sg-nodes")]
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


def test_nothing_wrong_is_0(good: Path) -> None:
    result = run("cluster", "validate", str(good))
    assert result.exit_code == 0, result.output
    assert "WARN" not in result.stdout


def test_a_failed_check_is_1_whatever_else_cannot_be_told(account: Any) -> None:
    account["iam"].clear()
    result = run("cluster", "validate", WRONG.name)
    assert result.exit_code == 1
    assert "CANNOT TELL" in result.stdout
    assert "FAIL" in result.stdout


def test_a_call_that_failed_is_3(good: Path, account: Any) -> None:
    del account["iam"]["simulate_principal_policy"]
    result = run("cluster", "validate", str(good))
    assert result.exit_code == 3, result.output
    assert "iam:simulate_principal_policy: no answer" in result.stdout


def test_one_reason_is_told_once(good: Path, account: Any) -> None:
    account.clear()
    result = run("cluster", "validate", str(good))
    assert result.exit_code == 3
    assert result.stdout.count("no answer") == 1
    assert result.stdout.count("for the same reason as above") > 4
    verdicts = json.loads(run("cluster", "validate", str(good), "--json").stdout)["verdicts"]
    assert sum("no answer" in v["what"] for v in verdicts) > 5


def test_a_warning_is_1_only_with_strict(good: Path, account: Any) -> None:
    account["ec2"]["describe_route_tables"] = [world.routes("subnet-a")]
    assert run("cluster", "validate", str(good)).exit_code == 0
    assert run("cluster", "validate", str(good), "--strict").exit_code == 1


@pytest.mark.usefixtures("account")
def test_only_one_family_asks_only_for_that(good: Path, account: Any) -> None:
    account["ec2"].clear()
    account["iam"].clear()
    result = run("cluster", "validate", str(good), "--only", "quotas", "--json")
    assert result.exit_code == 0, result.output
    assert {v["family"] for v in json.loads(result.stdout)["verdicts"]} == {"quotas"}


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "validate", WRONG.name, "--only", "netwrk"), "'netwrk' is not one of"),
        (("iam", "check", ROLE), "--as"),
        (("iam", "operator", "--trust"), "No such option"),
    ],
)
def test_usage_is_2(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_one_wrong_field_hides_nothing_else(
    good: Path, account: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    text = good.read_text()
    account["ec2"]["describe_subnets"] = []
    file = tmp_path / "partly.yaml"
    file.write_text(re.sub(r"count: [1-9]\d*", "count: many", text))
    said = json.loads(run("cluster", "validate", str(file), "--json").stdout)
    assert said["partial"] is True
    found = {(v["family"], v["place"]) for v in said["verdicts"] if v["level"] == "FAIL"}
    counts = {place for family, place in found if family == "spec"}
    assert counts
    assert all(place.endswith(".count") for place in counts)
    whole = json.loads(run("cluster", "validate", str(good), "--json").stdout)["verdicts"]
    assert {p for p in found if p[0] != "spec"} == {
        (v["family"], v["place"]) for v in whole if v["level"] == "FAIL"
    }
    assert len(found) > len(counts)


def test_create_stops_before_it_spends(account: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from hpctl.cli.cluster.validate import before_spending
    from hpctl.clusters import spec
    from hpctl.errors import HpctlError

    with pytest.raises(HpctlError, match="checks failed; nothing was ordered"):
        before_spending(WRONG.name, spec.read(WRONG), PaperAws(account))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "ml.p5.48xlarge" in said
    assert all(line == line.rstrip() for line in said.splitlines())


def test_what_is_left_open_is_said_beside_the_policy() -> None:
    result = run("iam", "operator", "--region", "us-east-1", "--account", "111122223333")
    assert json.loads(result.stdout)["Version"] == "2012-10-17"
    assert result.stderr == (
        "hpctl: --cluster NAME, --cluster ARN, --bucket, --role would narrow it\n"
    )


def test_the_rights_of_a_role_decide_the_exit_code(account: Any) -> None:
    def check(who: str) -> Result:
        return run("iam", "check", ROLE, "--as", who)

    account["iam"]["simulate_principal_policy"] = simulated()
    for who in ("head-node", "execution-role", "operator"):
        assert (check(who).exit_code, check(who).stdout.count("\n")) == (0, 1)
    account["iam"]["simulate_principal_policy"] = None
    assert (check("operator").exit_code, str(check("operator").exception)) == (
        1, f"there is no role {ROLE}",
    )  # fmt: skip
    account["iam"].clear()
    assert check("head-node").exit_code == 3
