"""SageMaker's services that the emulator has no play of: one extension, and plans for money."""

from datetime import datetime, timedelta
from typing import Any

from hpctl.sandbox.emulator.faults import validation
from hpctl.toolkit.compat import UTC
from tests.clusters.bed import REGION, AwsBed

ARN = f"arn:aws:sagemaker:{REGION}:000000000000"
START = datetime(2100, 1, 1, 11, 30, tzinfo=UTC)
Body = dict[str, Any]


class Extensions:
    """One extension at most, which moves for `looks` looks; `issues` degrade it."""

    def __init__(self, bed: AwsBed) -> None:
        self.looks = 0
        self.one: Body = {}
        self.issues: list[Body] = []
        versions = [{"ExtensionVersion": version} for version in ("1.1.0", "1.0.0")]
        bed.emulator.handlers |= {
            "CreateClusterExtension": self.change,
            "UpdateClusterExtension": self.change,
            "DeleteClusterExtension": self.delete,
            "DescribeClusterExtension": self.describe,
            "ListClusterExtensions": self.list,
            "ListClusterExtensionVersions": lambda _: {"ExtensionVersions": versions},
        }

    def change(self, request) -> Body:
        version, old = request.get("ExtensionVersion"), self.one.get("ExtensionVersion", "1.1.0")
        if self.one and version and version < old:
            raise validation("ExtensionVersion is not one to go to.")
        kept = {k: v for k, v in request.items() if k == "ConfigurationValues"}
        self.one = {
            "ClusterArn": request["ClusterArn"],
            "ExtensionArn": f"{ARN}:extension/sagemaker-x/sagemaker-observability/1",
            "ExtensionName": "sagemaker-observability",
            "ExtensionVersion": version or old,
            "Status": "Updating" if self.one else "Creating",
            **kept,
        }
        return {"ExtensionArn": self.one["ExtensionArn"]}

    def delete(self, _request: Body) -> Body:
        self.one["Status"] = "Deleting"
        return {"ExtensionArn": self.one["ExtensionArn"]}

    def describe(self, _request: Body) -> Body:
        moving = self.one["Status"] in ("Creating", "Updating")
        ill = sum(issue["NodeCount"] for issue in self.issues)
        active = 0 if moving else 5 - ill
        body = {"NodeSummary": {"TotalCount": 5, "ActiveCount": active}}
        health = {"Health": {"Issues": self.issues}} if self.issues else {}
        return {"ExtensionDetails": dict(self.one), **body, **health}

    def list(self, _request: Body) -> Body:
        self.looks -= 1
        if self.one and self.looks < 1 and self.one["Status"] != "CreateFailed":
            gone = self.one["Status"] == "Deleting"
            self.one["Status"] = "Degraded" if self.issues else "Active"
            self.one = {} if gone else self.one
        keys = ("ExtensionArn", "ExtensionName", "ExtensionVersion", "Status")
        return {"Extensions": [{k: self.one[k] for k in keys}] if self.one else []}


class Plans:
    """Offers, and plans: a payment ends after `looks` looks, well if `pays`."""

    def __init__(self, bed: AwsBed) -> None:
        self.capacity, self.looks, self.pays = bed.emulator.capacity, 0, True
        self.extensions: list[Body] = []
        bed.emulator.handlers |= {
            "SearchTrainingPlanOfferings": self.search,
            "CreateTrainingPlan": self.create,
            "ExtendTrainingPlan": self.extend,
            "ListTrainingPlans": lambda _: {"TrainingPlanSummaries": []},
            "DescribeTrainingPlan": self.describe,
            "DescribeTrainingPlanExtensionHistory": self.history,
        }

    @property
    def names(self) -> list[str]:
        return [plan["TrainingPlanName"] for plan in self.capacity.plans.values()]

    def search(self, request) -> Body:
        if "TrainingPlanArn" in request:
            price = {"UpfrontFee": "15360.00", "CurrencyCode": "USD", "DurationHours": 24}
            offers = [{"TrainingPlanExtensionOfferingId": f"tpeo-{n}", **price} for n in "12"]
            return {"TrainingPlanOfferings": [], "TrainingPlanExtensionOfferings": offers}
        return {"TrainingPlanOfferings": [self.offer(n, request["InstanceCount"]) for n in (1, 8)]}

    def offer(self, days: int, count: int) -> Body:
        start = START + timedelta(days)
        part = {
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": count,
            "AvailabilityZone": "us-west-2a",
            "StartTime": start,
            "EndTime": start + timedelta(days=7),
        }
        return {
            "TrainingPlanOfferingId": f"tpo-{days}", "TargetResources": ["hyperpod-cluster"],
            "UpfrontFee": "107520.00", "CurrencyCode": "USD", "DurationHours": 168,
            "ReservedCapacityOfferings": [part],
        }  # fmt: skip

    def create(self, request) -> Body:
        days = int(request["TrainingPlanOfferingId"].removeprefix("tpo-"))
        part = self.offer(days, 16)["ReservedCapacityOfferings"][0]
        part["TotalInstanceCount"] = part.pop("InstanceCount")
        part |= {"ReservedCapacityArn": f"{ARN}:reserved-capacity/p5", "Status": "Pending"}
        name, start = request["TrainingPlanName"], part["StartTime"]
        parts = {"ReservedCapacitySummaries": [part]}
        arn = self.capacity.add_plan(name, Status="Pending", StartTime=start, **parts)
        return {"TrainingPlanArn": arn}

    def extend(self, request) -> Body:
        offer = request["TrainingPlanExtensionOfferingId"]
        states = {"Status": "Pending", "PaymentStatus": "Pending"}
        self.extensions.append({"TrainingPlanExtensionOfferingId": offer, **states})
        return {"TrainingPlanExtensions": self.extensions}

    def describe(self, request) -> Body:
        answer = self.capacity.describe_plan(request)
        self.look(self.capacity.plans[answer["TrainingPlanArn"]])
        return answer

    def history(self, _request: Body) -> Body:
        answer = [dict(one) for one in self.extensions]
        for one in self.extensions:
            self.look(one)
        return {"TrainingPlanExtensions": answer}

    def look(self, order: Body) -> None:
        self.looks -= 1
        if self.looks < 1 and order["Status"] == "Pending":
            order["Status"] = "Scheduled" if self.pays else "Failed"
            if "PaymentStatus" in order:
                order["PaymentStatus"] = "Completed" if self.pays else "Failed"
