"""SageMaker on paper: what a cluster's commands are told, held against the service model."""

import copy
import functools
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from botocore import xform_name

from hpctl.sandbox.emulator import shapes
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ResourceNotFound
from tests.cli import worlds
from tests.tables import table

NAMES = {xform_name(name): name for name in shapes.load_botocore_service_model().operation_names}
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/ab12cd34ef56"
GROUP = "worker-group-1"


@functools.cache
def _file(name: str) -> dict[str, Any]:
    return table(Path(__file__).parent / "paper" / name)


class PaperAws:
    """`hpctl.vocabulary.ports.AwsClientFactory` with the services that the commands ask."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.sagemaker = PaperSageMaker()
        self.logs = PaperLogs()

    def service(self, name: str):
        services = {"iam": PaperIam(), "ec2": PaperEc2(), "logs": self.logs}
        return self.sagemaker if name == "sagemaker" else services[name]


class PaperEc2:
    """Two subnets in two zones."""

    def read(self, operation: str, **_request) -> Mapping[str, Any]:
        assert operation == "describe_subnets"
        zones = {f"subnet-0{zone}": f"us-west-2{zone}" for zone in "ab"}
        return {"Subnets": [{"SubnetId": s, "AvailabilityZone": z} for s, z in zones.items()]}


class PaperLogs:
    """CloudWatch Logs with the same lines in each stream, or without any stream."""

    def __init__(self) -> None:
        self.lines: list[str] | None = None
        self.streams: list[str] = []
        self.at = datetime.now(UTC)

    def read(self, _operation: str, **request) -> Mapping[str, Any]:
        self.streams.append(f"{request['logGroupName']} {request['logStreamName']}")
        if self.lines is None:
            raise ResourceNotFound("no such stream", code="ResourceNotFoundException")
        if request.get("startTime", 0) > self.at.timestamp() * 1000:
            return {"events": []}
        return {"events": [{"message": line} for line in self.lines]}


class PaperIam:
    """A role that lacks each statement's first action, and has conditions on the second."""

    def pages(self, operation: str, key: str, **request) -> Iterator[Any]:
        assert (operation, key) == ("simulate_principal_policy", "EvaluationResults")
        for at, action in enumerate(request["ActionNames"]):
            found = {
                "EvalActionName": action,
                "EvalDecision": "implicitDeny" if at < 2 else "allowed",
                "EvalResourceName": ARN,
            }
            yield {**found, "MissingContextValues": ["aws:SourceVpc"]} if at == 1 else found


class PaperSageMaker:
    """A controller, a group with a node in each state, and a spare group that lacks capacity.

    Answers are those of the `files`; a method `_operation` makes its own.
    """

    def __init__(self, *files: str) -> None:
        self.answers: dict[str, Any] = {}
        for name in ("cluster.yaml", *files):
            self.answers |= copy.deepcopy(_file(name))
        self.ordered: list[tuple[str, Mapping[str, Any]]] = []
        self.status = "InService"
        self.failure: str = _file("nodes.yaml")["failed"]["InstanceStatus"]["Message"]
        self.checks = 0

    def read(self, operation: str, **request) -> Mapping[str, Any]:
        model = shapes.load_operation_model(NAMES[operation])
        assert model is not None
        own = getattr(self, f"_{operation}", None)
        answer = own(request) if own else self.answers[operation]
        if isinstance(answer, Exception):
            raise answer
        wrong = [
            *shapes.find_request_errors(model, dict(request)),
            *shapes.find_response_errors(model, answer),
        ]
        # One id of the worlds on paper tells a reader more than the service's pattern allows.
        assert not [line for line in wrong if "i-0fresh" not in line]
        return answer

    def pages(self, operation: str, key: str, **request) -> Iterator[Any]:
        yield from self.read(operation, **request).get(key, ())

    def order(self, operation: str, **request) -> Mapping[str, Any]:
        self.ordered.append((operation, request))
        return self.read(operation, **request)

    def _describe_cluster(self, request):
        if request["ClusterName"] != "llm-prod":
            return ResourceNotFound("sagemaker:DescribeCluster: not found", code="ResourceNotFound")
        return {**self.answers["describe_cluster"], "ClusterStatus": self.status}

    def _describe_training_plan(self, request):
        answer = self.answers["describe_training_plan"]
        if (
            isinstance(answer, Exception)
            or answer["TrainingPlanName"] == request["TrainingPlanName"]
        ):
            return answer
        return ResourceNotFound("sagemaker:DescribeTrainingPlan: no", code="ResourceNotFound")

    def _list_cluster_nodes(self, _request):
        listed = [_summary(node) for node in nodes()]
        for node in listed:
            if "Message" in node["InstanceStatus"]:
                node["InstanceStatus"] = {**node["InstanceStatus"], "Message": self.failure}
        return {"ClusterNodeSummaries": listed}

    def _describe_cluster_node(self, request):
        node = next(n for n in nodes() if n["InstanceId"] == request["NodeId"])
        zone = "us-west-2b" if node["InstanceGroupName"] == GROUP else "us-west-2a"
        details = {
            "PrivatePrimaryIp": str(node["host"]).removeprefix("ip-").replace("-", "."),
            "Placement": {"AvailabilityZone": zone},
            "CapacityType": "OnDemand",
        }
        return {"NodeDetails": {**_summary(node), **details}}

    def _describe_cluster_event(self, request):
        events = self.answers["list_cluster_events"]["Events"]
        event = next(e for e in events if e["EventId"] == request["EventId"])
        failed = self.answers["describe_cluster_event"]
        return failed if event["EventLevel"] == "Error" else {"EventDetails": event}

    def _batch_replace_cluster_nodes(self, request):
        first, *rest = request["NodeIds"]
        text = "Another operation is in progress for this node."
        failed = [{"NodeId": n, "ErrorCode": "InstanceIdInUse", "Message": text} for n in rest]
        return {"Successful": [first], **({"Failed": failed} if failed else {})}

    def _start_cluster_health_check(self, _request):
        self.checks = 1
        return {"ClusterArn": ARN}

    def _list_cluster_operations(self, _request):
        """The checks are under way for one look, and then done."""
        self.checks, under_way = 0, self.checks
        one = {"Type": "DeepHealthCheck", "Status": "InProgress", "ClusterArn": ARN}
        return {"ClusterOperationSummaries": [one] * under_way}


def nodes() -> list[dict[str, Any]]:
    """The summaries, with the host name apart: as `worlds.cloud` has them, and two more."""
    made = _file("nodes.yaml")
    workers = [
        {
            **made["worker"],
            "InstanceId": str(instance.id),
            "NodeLogicalId": str(instance.logical_id),
            "host": str(instance.node),
        }
        for instance in worlds.cloud().instances.values()
    ]
    return [*workers, {**workers[0], **made["failed"]}, made["head"]]


def _summary(node: Mapping[str, Any]) -> dict[str, Any]:
    body = {key: value for key, value in node.items() if key != "host"}
    dns = f"{node['host']}.us-west-2.compute.internal"
    return {**body, "PrivateDnsHostname": dns, "LaunchTime": worlds.NOW - timedelta(days=1)}
