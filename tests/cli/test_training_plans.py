"""`hpctl capacity offers`, `plans`, `buy` and `cluster extension`, letter by letter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from hpctl.errors import Absent, Unavailable
from tests.cli import worlds
from tests.cli.conftest import Head
from tests.cli.paper_aws import ARN, PaperSageMaker
from tests.cli.test_golden import compare
from tests.cli.test_json_contract import documented, printed

START = worlds.NOW.replace(hour=11, minute=30, second=0, microsecond=0) + timedelta(days=1)
END = START + timedelta(days=7)
PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/gb200-in-may"
RESERVED = PLAN.replace("training-plan", "reserved-capacity")
EXTENSION = (
    "arn:aws:sagemaker:us-west-2:123456789012:extension/sagemaker-ab12cd34ef56/"
    "sagemaker-observability/ab12"
)
SEARCH = ("--type", "ml.p5.48xlarge", "--count", "16", "--duration", "7d")
OFFER = f"tpo-{'7' * 64}"
COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "training-plan-offers": (0, ("capacity", "offers", *SEARCH)),
    "training-plan-extensions": (0, ("capacity", "offers", "--plan", "gb200-in-may")),
    "training-plans": (0, ("capacity", "plans")),
    "training-plan": (0, ("capacity", "plans", "gb200-in-may")),
    "training-plan-buy": (0, ("capacity", "buy", "new", OFFER, *SEARCH, "--dry-run")),
    "training-plan-bought": (0, ("capacity", "extend", "gb200-in-may", "tpeo-1", "--yes")),
    "cluster-extension-list": (1, ("cluster", "extension", "list")),
    "cluster-extension": (1, ("cluster", "extension", "describe", "sagemaker-observability")),
}


class Sold(PaperSageMaker):
    """A plan of UltraServers that was extended, an offer, and an extension with problems."""

    lost = False

    def _part(self, **more: Any) -> dict[str, Any]:
        return {
            "ReservedCapacityArn": RESERVED,
            "ReservedCapacityType": "UltraServer",
            "InstanceType": "ml.p6e-gb200.36xlarge",
            "TotalInstanceCount": 18,
            "Status": "Active",
            "AvailabilityZone": "us-west-2b",
            **more,
        }

    def _plan(self, **more: Any) -> dict[str, Any]:
        return {
            "TrainingPlanArn": PLAN,
            "TrainingPlanName": "gb200-in-may",
            "Status": "Active",
            "TotalInstanceCount": 18,
            "InUseInstanceCount": 17,
            "StartTime": START,
            "EndTime": END,
            "UpfrontFee": "120960.00",
            "CurrencyCode": "USD",
            **more,
        }

    def _list_training_plans(self, _request: Any) -> dict[str, Any]:
        return {"TrainingPlanSummaries": [self._plan()]}

    def _describe_training_plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["TrainingPlanName"] != "gb200-in-may":
            raise Absent("sagemaker:DescribeTrainingPlan: no", code="ResourceNotFound")
        part = self._part(UltraServerType="ml.u-p6e-gb200x72", UltraServerCount=1)
        return self._plan(ReservedCapacitySummaries=[part])

    def _describe_reserved_capacity(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.lost:
            raise Unavailable("sagemaker:DescribeReservedCapacity: no answer")
        assert request["ReservedCapacityArn"] == RESERVED
        return self._part(InUseInstanceCount=17)

    def _list_ultra_servers_by_reserved_capacity(self, _request: Any) -> dict[str, Any]:
        server = {
            "UltraServerId": "us-0123456789abcdef0",
            "UltraServerType": "ml.u-p6e-gb200x72",
            "AvailabilityZone": "us-west-2b",
            "InstanceType": "ml.p6e-gb200.36xlarge",
            "TotalInstanceCount": 18,
            "UnhealthyInstanceCount": 1,
            "HealthStatus": "Impaired",
        }
        return {"UltraServers": [server]}

    def _describe_training_plan_extension_history(self, _request: Any) -> dict[str, Any]:
        done = self._extension("tpeo-1", END - timedelta(days=1), END)
        return {"TrainingPlanExtensions": [{**done, "Status": "Active", "PaymentStatus": "Paid"}]}

    def _extension(self, name: str, start: datetime, end: datetime) -> dict[str, Any]:
        fee = {"UpfrontFee": "17280.00", "CurrencyCode": "USD", "DurationHours": 24}
        times = {"StartDate": start, "EndDate": end}
        return {"TrainingPlanExtensionOfferingId": name, **times, **fee}

    def _search_training_plan_offerings(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "TrainingPlanArn" in request:
            assert request["TrainingPlanArn"] == PLAN
            offer = self._extension(f"tpeo-{'5' * 64}", END, END + timedelta(days=1))
            return {"TrainingPlanOfferings": [], "TrainingPlanExtensionOfferings": [offer]}
        parts = [
            {
                "InstanceType": request["InstanceType"],
                "InstanceCount": request["InstanceCount"],
                "AvailabilityZone": f"us-west-2{zone}",
                "StartTime": START + timedelta(days=day),
                "EndTime": START + timedelta(days=day + 4),
            }
            for zone, day in (("a", 0), ("c", 9))
        ]
        offer = {
            "TrainingPlanOfferingId": OFFER,
            "TargetResources": request["TargetResources"],
            "DurationHours": request["DurationHours"],
            "UpfrontFee": "107520.00",
            "CurrencyCode": "USD",
            "ReservedCapacityOfferings": parts,
        }
        return {"TrainingPlanOfferings": [offer]}

    def _of_cluster(self) -> dict[str, Any]:
        return {
            "ExtensionArn": EXTENSION,
            "ExtensionName": "sagemaker-observability",
            "ExtensionVersion": "1.1.0",
            "Status": "Degraded",
        }

    def _list_cluster_extensions(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert request["ClusterArn"] == ARN
        return {"Extensions": [self._of_cluster()]}

    def _describe_cluster_extension(self, _request: Any) -> dict[str, Any]:
        said = '{"metricsProvider":{"nodeMetrics":{"level":"ADVANCED"}}}'
        issue = {
            "Code": "AccessDenied",
            "Message": "the execution role lacks aps:RemoteWrite",
            "NodeCount": 2,
        }
        return {
            "ExtensionDetails": {
                **self._of_cluster(), "ClusterArn": ARN, "ConfigurationValues": said,
            },
            "NodeSummary": {"TotalCount": 9, "ActiveCount": 7},
            "Health": {"Issues": [issue]},
        }  # fmt: skip


@pytest.fixture
def sold(head: Head, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.delenv("HPCTL_CLUSTER", raising=False)
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", "/nonexistent")
    head.aws.sagemaker = Sold()
    return head


@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_json_are_as_before_and_as_documented(sold: Head, name: str) -> None:
    code, args = COMMANDS[name]
    result = sold.run(*args)
    assert result.exit_code == code, f"{result.output} {result.exception!r}"
    compare(f"{name}.txt", result.stdout)
    for line in result.stdout.splitlines():
        # The ARN is for copying into a file.
        assert len(line) <= 80 or line.startswith("training_plan: ")
        assert line == line.rstrip()
    text = sold.run(*args, "--json").stdout
    compare(f"{name}.json", text)
    told = json.loads(text)
    said = documented(told["schema"])
    objects = {path for path, kind in said.items() if "object" in kind}
    found = {
        p for p in printed(told, "", objects) if not p.startswith(("plans[].", "extensions[]."))
    }
    # An offer may be null.
    assert found == {path for path in said if path in found or not path.startswith("offer.")}
    assert sold.aws.sagemaker.ordered == []


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(sold: Head) -> None:
    assert isinstance(sold.aws.sagemaker, Sold)
    sold.aws.sagemaker.lost = True
    shown = sold.run("capacity", "plans", "gb200-in-may", width=200)
    assert shown.exit_code == 3
    assert f"Not known: {RESERVED}: sagemaker:DescribeReservedCapacity" in shown.stdout
    assert "Reserved in us-west-2b: 18 x" in shown.stdout
    assert "Extended" in shown.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("offers", "--type", "ml.p5.48xlarge"),
        ("offers", "--duration", "1d"),
        ("offers", *SEARCH, "--ultraserver-type", "ml.u-p6e-gb200x72"),
        ("offers", "--ultraserver-type", "ml.p5.48xlarge", "--duration", "1d"),
        ("buy", "-x", OFFER, *SEARCH),
        ("--cluster", "llm-prod", "plans"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(sold: Head, args: tuple[str, ...]) -> None:
    assert sold.run("capacity", *args).exit_code == 2
