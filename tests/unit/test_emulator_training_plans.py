"""Training plans and extensions as the emulator plays them, each with AWS's own word for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.contract.provider.beds import Client, cluster
from tests.unit.emulator_calls import code, settled

WANTED = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "DurationHours": 24}
TARGET = {"TargetResources": ["hyperpod-cluster"]}
NAME = "sagemaker-observability"


@pytest.fixture
def api() -> Iterator[Client]:
    emulator = Emulator(NullMachines(), boot_time_s=0.0)
    emulator.start()
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


def searched(api: Client, **more: Any) -> list[dict[str, Any]]:
    answer = api("SearchTrainingPlanOfferings", **{**WANTED, **TARGET, **more})
    found: list[dict[str, Any]] = answer["TrainingPlanOfferings"]
    return found


def bought(api: Client, name: str = "p5") -> str:
    offer = searched(api)[0]["TrainingPlanOfferingId"]
    answer = api("CreateTrainingPlan", TrainingPlanName=name, TrainingPlanOfferingId=offer)
    return str(answer["TrainingPlanArn"])


def extensions(api: Client, arn: str, **more: Any) -> list[dict[str, Any]]:
    answer = api("SearchTrainingPlanOfferings", TrainingPlanArn=arn, **more)
    assert answer["TrainingPlanOfferings"] == []
    found: list[dict[str, Any]] = answer["TrainingPlanExtensionOfferings"]
    return found


def extended(api: Client, offer: dict[str, Any]) -> dict[str, Any]:
    name = offer["TrainingPlanExtensionOfferingId"]
    return api("ExtendTrainingPlan", TrainingPlanExtensionOfferingId=name)


def test_an_extension_moves_the_end_and_stands_in_the_history(api: Client) -> None:
    """Guide, "Training plans extension": the plan reflects the new end date; no extension while
    another one's payment is pending; only an Active or Scheduled plan.
    """
    plans, arn = api.emulator.training_plans, bought(api)
    before = api("DescribeTrainingPlan", TrainingPlanName="p5")["EndTime"]
    day, two, _ = extensions(api, arn)
    assert (day["StartDate"], day["EndDate"]) == (before, before + 86400)
    plans.pay_s = 0.2
    [told] = extended(api, day)["TrainingPlanExtensions"]
    assert (told["Status"], told["PaymentStatus"]) == ("Pending", "Pending")
    assert code(extended(api, two)) == "ValidationException"
    api.emulator.wait_until(lambda: False, 0.4)
    history = api("DescribeTrainingPlanExtensionHistory", TrainingPlanArn=arn)
    assert history["TrainingPlanExtensions"][0]["PaymentStatus"] == "Completed"
    assert api("DescribeTrainingPlan", TrainingPlanName="p5")["EndTime"] == day["EndDate"]
    [week] = extensions(api, arn, DurationHours=168)
    assert week["StartDate"] == day["EndDate"]
    plans.capacity.plans[arn]["Status"] = "Expired"
    assert code(extended(api, week)) == "ValidationException"


# --- extensions -----------------------------------------------------------------------------------


@pytest.fixture
def arn(api: Client) -> str:
    found = api.emulator.create(cluster("demo"))
    settled(api)
    return found


def created(api: Client, arn: str, **more: Any) -> dict[str, Any]:
    return api("CreateClusterExtension", ClusterArn=arn, ExtensionName=NAME, **more)


def shown(api: Client, arn: str, extension: str) -> dict[str, Any]:
    return api("DescribeClusterExtension", ClusterArn=arn, ExtensionArn=extension)


def test_an_extension_reaches_every_node(api: Client, arn: str) -> None:
    """CreateClusterExtension: "If you don't specify a version, HyperPod installs the latest";
    DescribeClusterExtension: NodeSummary, "every running node".
    """
    api.emulator.extensions.install_s = 0.2
    extension = created(api, arn)["ExtensionArn"]
    told = shown(api, arn, extension)
    assert told["ExtensionDetails"]["Status"] == "Creating"
    assert told["NodeSummary"] == {"TotalCount": 5, "ActiveCount": 0}
    api.emulator.wait_until(lambda: False, 0.25)
    told = shown(api, arn, extension)
    assert (told["ExtensionDetails"]["Status"], told["NodeSummary"]["ActiveCount"]) == ("Active", 5)
    versions = api("ListClusterExtensionVersions", ExtensionName=NAME)["ExtensionVersions"]
    assert told["ExtensionDetails"]["ExtensionVersion"] == versions[0]["ExtensionVersion"]
    assert api("ListClusterExtensionVersions", ExtensionName="x") == {"ExtensionVersions": []}


def test_a_client_token_makes_one_extension(api: Client, arn: str) -> None:
    """CreateClusterExtension's ClientToken: the same ARN again; one of a name (ResourceInUse)."""
    first = created(api, arn, ClientToken="one")
    assert created(api, arn, ClientToken="one") == first
    assert code(created(api, arn, ClientToken="two")) == "ResourceInUse"
    assert len(api("ListClusterExtensions", ClusterArn=arn)["Extensions"]) == 1


def test_an_update_keeps_what_it_does_not_say(api: Client, arn: str) -> None:
    """UpdateClusterExtension: omitted settings keep their values, null takes one back, and no
    earlier version can be gone to.
    """
    extension = created(api, arn, ConfigurationValues='{"a": 1, "b": 2}')["ExtensionArn"]
    which = {"ClusterArn": arn, "ExtensionArn": extension}
    api("UpdateClusterExtension", **which, ConfigurationValues='{"b": null, "c": 3}')
    assert shown(api, arn, extension)["ExtensionDetails"]["ConfigurationValues"] == (
        '{"a": 1, "c": 3}'
    )
    back = api("UpdateClusterExtension", **which, ExtensionVersion="1.0.0")
    assert code(back) == "ValidationException"
    assert code(api("UpdateClusterExtension", **which, ConfigurationValues="[7]")) != ""


def test_problems_degrade_it_and_say_on_how_many_nodes(api: Client, arn: str) -> None:
    """DescribeClusterExtension: Degraded, and Health's issues with the nodes of each."""
    extension = created(api, arn)["ExtensionArn"]
    issue = {"Code": "AccessDenied", "Message": "aps:RemoteWrite is denied", "NodeCount": 2}
    api.emulator.extensions.issues = [issue]
    told = shown(api, arn, extension)
    assert told["ExtensionDetails"]["Status"] == "Degraded"
    assert (told["NodeSummary"]["ActiveCount"], told["Health"]["Issues"]) == (3, [issue])
