"""`hpctl cluster extension` over HTTP: convergent, refused in time, and shown as it is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.errors import Refused
from hpctl.sandbox.emulator.faults import validation
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.shell import Shell

NAME = "sagemaker-observability"
HERE = ("--cluster", CLUSTER)
ARN = "arn:aws:sagemaker:us-west-2:000000000000:extension/sagemaker-x/sagemaker-observability/1"
Body = dict[str, Any]


class Extensions:
    """SageMaker's: one extension at most, which moves for `looks` looks; `issues` degrade it."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed, self.looks = bed, 0
        self.one: Body = {}
        self.issues: list[Body] = []
        bed.emulator.handlers |= {
            "CreateClusterExtension": self.change,
            "UpdateClusterExtension": self.change,
            "DeleteClusterExtension": self.delete,
            "DescribeClusterExtension": self.describe,
            "ListClusterExtensions": self.list,
            "ListClusterExtensionVersions": lambda _: {
                "ExtensionVersions": [{"ExtensionVersion": v} for v in ("1.1.0", "1.0.0")]
            },
        }

    def change(self, request: Body) -> Body:
        version, old = request.get("ExtensionVersion"), self.one.get("ExtensionVersion", "1.1.0")
        if self.one and version and version < old:
            raise validation("ExtensionVersion is not one to go to.")
        kept = {k: v for k, v in request.items() if k == "ConfigurationValues"}
        self.one = {
            "ClusterArn": request["ClusterArn"],
            "ExtensionArn": ARN,
            "ExtensionName": NAME,
            "ExtensionVersion": version or old,
            "Status": "Updating" if self.one else "Creating",
            **kept,
        }
        return {"ExtensionArn": ARN}

    def delete(self, _request: Body) -> Body:
        self.one["Status"] = "Deleting"
        return {"ExtensionArn": ARN}

    def describe(self, _request: Body) -> Body:
        moving = self.one["Status"] in ("Creating", "Updating")
        ill = sum(issue["NodeCount"] for issue in self.issues)
        body = {
            "ExtensionDetails": dict(self.one),
            "NodeSummary": {"TotalCount": 5, "ActiveCount": 0 if moving else 5 - ill},
        }
        return {**body, "Health": {"Issues": self.issues}} if self.issues else body

    def list(self, _request: Body) -> Body:
        self.looks -= 1
        if self.one and self.looks < 1 and self.one["Status"] != "CreateFailed":
            gone = self.one["Status"] == "Deleting"
            self.one |= {"Status": "Degraded" if self.issues else "Active"}
            self.one = {} if gone else self.one
        keys = ("ExtensionArn", "ExtensionName", "ExtensionVersion", "Status")
        return {"Extensions": [{k: self.one[k] for k in keys}] if self.one else []}


@pytest.fixture
def there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr("hpctl.cli.cluster.extension.EVERY_S", 0.02)
    monkeypatch.setattr("hpctl.cli.cluster.at_hand.open_aws", lambda *_: shell.bed.aws)
    shell.bed.forget_calls()
    handlers = dict(shell.bed.emulator.handlers)
    yield shell
    shell.bed.emulator.handlers = handlers


@pytest.fixture
def service(there: Shell) -> Extensions:
    return Extensions(there.bed)


def orders(bed: AwsBed) -> list[str]:
    changing = ("CreateCluster", "UpdateCluster", "DeleteCluster")
    return [one for one in bed.operations() if one.startswith(changing)]


def test_it_is_installed_and_every_node_waited_for(there: Shell, service: Extensions) -> None:
    service.looks = 5
    result = there.run("extension", "add", NAME, *HERE)
    assert result.exit_code == 0, result.output
    assert "Creating, 0 of 5 nodes ..." in result.stderr
    assert result.stdout == f"{NAME} 1.1.0 on {CLUSTER}: Active, 5 of 5 nodes\n"
    assert "Nothing to do." in there.said("extension", "add", NAME, *HERE)
    assert orders(there.bed) == ["CreateClusterExtension"]
    assert f"{NAME} 1.1.0 on {CLUSTER}: Active\n" == there.said("extension", "list", *HERE)


@pytest.mark.usefixtures("service")
def test_an_answer_that_is_lost_makes_no_second_one(there: Shell) -> None:
    there.bed.emulator.faults.add("internal_error", operations=["CreateClusterExtension"], calls=1)
    there.said("extension", "add", NAME, *HERE)
    first, second = there.bed.emulator.calls.all("CreateClusterExtension")
    assert first.request["ClientToken"] == second.request["ClientToken"]


@pytest.mark.usefixtures("service")
def test_settings_and_version_are_brought_to_what_is_wanted(there: Shell) -> None:
    file = there.file.with_name("settings.json")
    file.write_text('{"metricsProvider": {"nodeMetrics": {"level": "ADVANCED"}}}')
    there.said("extension", "add", NAME, "--version", "1.0.0", *HERE)
    output = there.said("extension", "add", NAME, "--settings", str(file), *HERE)
    assert '{"metricsProvider":{"nodeMetrics":{"level":"ADVANCED"}}}' in output
    assert f"{NAME} 1.1.0" in there.said("extension", "add", NAME, "--version", "1.1.0", *HERE)
    back = there.run("extension", "add", NAME, "--version", "1.0.0", *HERE)
    assert isinstance(back.exception, Refused)
    assert back.exception.hint == "its versions: 1.1.0, 1.0.0"


@pytest.mark.parametrize(
    "text", ["{", "[]", '"' + "x" * 11000 + '"', '{"a": "' + "x" * 11000 + '"}']
)
def test_settings_that_are_none_are_refused_before_the_call(there: Shell, text: str) -> None:
    file = there.file.with_name("settings.json")
    file.write_text(text)
    refused = there.run("extension", "add", NAME, "--settings", str(file), *HERE)
    assert str(file) in str(refused.exception)
    assert there.bed.operations() == []


def test_what_fails_on_nodes_is_told_and_tried_again(there: Shell, service: Extensions) -> None:
    """UpdateClusterExtension: a request that changes nothing retries where it failed."""
    issue = {"Code": "AccessDenied", "Message": "aps:RemoteWrite is denied", "NodeCount": 2}
    service.issues = [issue]
    output = there.said("extension", "add", NAME, *HERE, code=1)
    assert "Degraded, 3 of 5 nodes" in output
    assert "2 nodes: AccessDenied: aps:RemoteWrite is denied" in output
    there.said("extension", "describe", NAME, *HERE, code=1)
    service.issues = []
    service.one["Status"] = "CreateFailed"
    there.said("extension", "add", NAME, *HERE)
    assert orders(there.bed) == ["CreateClusterExtension", "UpdateClusterExtension"]


@pytest.mark.usefixtures("service")
def test_it_is_removed_after_a_question(there: Shell) -> None:
    there.said("extension", "add", NAME, *HERE)
    there.said("extension", "remove", NAME, *HERE, code=1, stdin="n\n")
    there.bed.emulator.faults.add("drop_reply", operations=["DeleteClusterExtension"], calls=1)
    output = there.said("extension", "remove", NAME, *HERE, "--yes", "--json")
    answer = json.loads(output)
    assert (answer["outcome"], answer["extensions"]) == ("done", [])
    assert there.said("extension", "list", *HERE) == f"{CLUSTER}: It has no extension.\n"
    gone = there.run("extension", "remove", NAME, *HERE, "--yes")
    assert "has no extension" in str(gone.exception)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"NodeProvisioningMode": ""}, "no continuous provisioning", "node_provisioning_mode"),
        ({"Orchestrator": {"Eks": {"ClusterArn": "x"}}}, "orchestrated by EKS", "add-on"),
    ],
)
def test_a_cluster_that_takes_none_is_refused_before_the_call(
    there: Shell, change: dict[str, object], message: str, hint: str
) -> None:
    """CreateClusterExtension: Slurm with NodeProvisioningMode Continuous alone."""
    from hpctl.clusters.extensions import fit

    description = there.bed.aws.service("sagemaker").read("describe_cluster", ClusterName=CLUSTER)
    with pytest.raises(Refused, match=message) as refused:
        fit({**description, **change})
    assert hint in refused.value.hint
    fit(description)
