"""SageMaker on paper: what a cluster's commands are told, held against the service model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from botocore import xform_name

from hpctl.core.compat import UTC
from hpctl.errors import Absent, Refused
from hpctl.sandbox.emulator import shapes
from tests.cli import worlds

NAMES = {xform_name(name): name for name in shapes.service_model().operation_names}
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/ab12cd34ef56"
NO_CAPACITY = (
    "We currently do not have sufficient capacity to launch new ml instances. Please try again."
)
GROUP = "worker-group-1"


def _later(seconds: float) -> datetime:
    return worlds.NOW - timedelta(seconds=seconds)


class PaperAws:
    """`hpctl.ports.Aws` with the services that the commands ask."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.sagemaker = PaperSageMaker()
        self.logs = PaperLogs()

    def service(self, name: str) -> Any:
        services = {"iam": PaperIam(), "ec2": PaperEc2(), "logs": self.logs}
        return self.sagemaker if name == "sagemaker" else services[name]


class PaperEc2:
    """Two subnets in two zones."""

    def read(self, operation: str, **_request: Any) -> Mapping[str, Any]:
        assert operation == "describe_subnets"
        zones = {"subnet-0a": "us-west-2a", "subnet-0b": "us-west-2b"}
        return {"Subnets": [{"SubnetId": s, "AvailabilityZone": z} for s, z in zones.items()]}


class PaperLogs:
    """CloudWatch Logs with the same lines in each stream, or without any stream."""

    def __init__(self) -> None:
        self.lines: list[str] | None = None
        self.streams: list[str] = []
        self.at = datetime.now(UTC)

    def read(self, _operation: str, **request: Any) -> Mapping[str, Any]:
        self.streams.append(f"{request['logGroupName']} {request['logStreamName']}")
        if self.lines is None:
            raise Absent("no such stream", code="ResourceNotFoundException")
        if request.get("startTime", 0) > self.at.timestamp() * 1000:
            return {"events": []}
        return {"events": [{"message": line} for line in self.lines]}


class PaperIam:
    """A role that lacks each statement's first action, and has conditions on the second."""

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        assert (operation, key) == ("simulate_principal_policy", "EvaluationResults")
        for at, action in enumerate(request["ActionNames"]):
            found = {
                "EvalActionName": action,
                "EvalDecision": "implicitDeny" if at < 2 else "allowed",
                "EvalResourceName": ARN,
            }
            yield {**found, "MissingContextValues": ["aws:SourceVpc"]} if at == 1 else found


class PaperSageMaker:
    """A controller, a group with a node in each state, and a spare group that lacks capacity."""

    def __init__(self) -> None:
        self.ordered: list[tuple[str, Mapping[str, Any]]] = []
        self.continuous = True
        self.status = "InService"
        self.failure = NO_CAPACITY
        self.checks = 0

    # --- ports.Service ------------------------------------------------------------------------

    def read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        return self._checked(operation, request)

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        yield from self._checked(operation, request).get(key, ())

    def order(self, operation: str, **request: Any) -> Mapping[str, Any]:
        self.ordered.append((operation, request))
        return self._checked(operation, request)

    def _checked(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        model = shapes.operation_model(NAMES[operation])
        assert model is not None
        answer: dict[str, Any] = getattr(self, f"_{operation}")(request)
        wrong = [
            *shapes.request_errors(model, dict(request)),
            *shapes.response_errors(model, answer),
        ]
        # One id of the worlds on paper tells a reader more than the service's pattern allows.
        assert not [line for line in wrong if "i-0fresh" not in line]
        return answer

    # --- answers ------------------------------------------------------------------------------

    def _list_clusters(self, _request: Any) -> dict[str, Any]:
        more = {"ClusterArn": ARN.replace("ab12", "0000"), "CreationTime": _later(90)}
        return {
            "ClusterSummaries": [
                {
                    "ClusterName": "llm-prod",
                    "ClusterArn": ARN,
                    "ClusterStatus": self.status,
                    "CreationTime": _later(86400 * 40),
                },
                {"ClusterName": "llm-test", "ClusterStatus": "Failed", **more},
            ]
        }

    def _describe_cluster(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["ClusterName"] != "llm-prod":
            raise Absent("sagemaker:DescribeCluster: not found", code="ResourceNotFound")
        mode = {"NodeProvisioningMode": "Continuous"} if self.continuous else {}
        return {
            "ClusterName": "llm-prod",
            "ClusterArn": ARN,
            "ClusterStatus": self.status,
            "CreationTime": _later(86400 * 40),
            "NodeRecovery": "None",
            "VpcConfig": {"SecurityGroupIds": ["sg-0a"], "Subnets": ["subnet-0a", "subnet-0b"]},
            "InstanceGroups": [
                _group("head", "Controller", "ml.m5.4xlarge", 1, 1),
                {
                    **_group(GROUP, "Compute", "ml.p5.48xlarge", 7, 8),
                    "Status": "Degraded",
                    "MinCount": 4,
                    "CurrentImageReleaseVersion": "1.4.2",
                    "DesiredImageReleaseVersion": "1.4.2",
                    "ImageVersionStatus": "UpdateAvailable",
                    "SoftwareUpdateStatus": "Succeeded",
                },
            ],
            **mode,
        }

    def _list_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("IncludeNodeLogicalIds") and not self.continuous:
            raise Refused("not for this cluster", code="ValidationException")
        listed = [_summary(node) for node in nodes()]
        for node in listed:
            if "Message" in node["InstanceStatus"]:
                node["InstanceStatus"] = {**node["InstanceStatus"], "Message": self.failure}
        return {"ClusterNodeSummaries": listed}

    def _describe_cluster_node(self, request: Mapping[str, Any]) -> dict[str, Any]:
        node = next(n for n in nodes() if n["InstanceId"] == request["NodeId"])
        zone = "us-west-2b" if node["InstanceGroupName"] == GROUP else "us-west-2a"
        return {
            "NodeDetails": {
                **_summary(node),
                "PrivatePrimaryIp": str(node["host"]).removeprefix("ip-").replace("-", "."),
                "Placement": {"AvailabilityZone": zone},
                "CapacityType": "OnDemand",
            }
        }

    def _list_cluster_events(self, _request: Any) -> dict[str, Any]:
        if not self.continuous:
            raise Refused("Continuous only", code="ValidationException")
        return {"Events": [_event(number) for number in (3, 2, 1)]}

    def _describe_cluster_event(self, request: Mapping[str, Any]) -> dict[str, Any]:
        number = int(request["EventId"][-1])
        metadata = {
            "Instance": {
                "FailureMessage": "Lifecycle scripts did not run successfully. on_create.sh: 1",
                "LcsExecutionState": "Failed",
                "NodeLogicalId": "worker-group-1-1",
            }
        }
        inner = {"EventDetails": {"EventMetadata": metadata}} if number == 3 else {}
        return {"EventDetails": {**_event(number), **inner}}

    def _batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        first, *rest = request["NodeIds"]
        failed = [
            {
                "NodeId": one,
                "ErrorCode": "InstanceIdInUse",
                "Message": "Another operation is in progress for this node.",
            }
            for one in rest
        ]
        return {"Successful": [first], **({"Failed": failed} if failed else {})}

    def _update_cluster_software(self, _request: Any) -> dict[str, Any]:
        return {"ClusterArn": ARN}

    def _start_cluster_health_check(self, _request: Any) -> dict[str, Any]:
        self.checks = 1
        return {"ClusterArn": ARN}

    def _list_cluster_operations(self, _request: Any) -> dict[str, Any]:
        """The checks are under way for one look, and then done."""
        self.checks, under_way = 0, self.checks
        one = {"Type": "DeepHealthCheck", "Status": "InProgress", "ClusterArn": ARN}
        return {"ClusterOperationSummaries": [one] * under_way}


def _group(name: str, role: str, kind: str, current: int, target: int) -> dict[str, Any]:
    partition = {"PartitionNames": ["gpu"]} if role == "Compute" else {}
    return {
        "InstanceGroupName": name,
        "InstanceType": kind,
        "CurrentCount": current,
        "TargetCount": target,
        "Status": "InService",
        "SlurmConfig": {"NodeType": role, **partition},
    }


def nodes() -> list[dict[str, Any]]:
    """The summaries, with the host name apart: as `worlds.cloud` has them, and two more."""
    workers = [
        {
            "InstanceGroupName": GROUP,
            "InstanceId": str(instance.id),
            "NodeLogicalId": str(instance.logical_id),
            "InstanceType": "ml.p5.48xlarge",
            "InstanceStatus": {"Status": "Running"},
            "CurrentImageReleaseVersion": "1.4.2",
            "host": str(instance.node),
        }
        for instance in worlds.cloud().instances.values()
    ]
    workers.append(
        {
            **workers[0],
            "InstanceId": "i-0fa11ed0000000010",
            "NodeLogicalId": "worker-group-1-10",
            "InstanceStatus": {"Status": "Failure", "Message": NO_CAPACITY},
            "host": "ip-10-1-0-10",
        }
    )
    head = {
        "InstanceGroupName": "head",
        "InstanceId": "i-0bead000000000001",
        "NodeLogicalId": "head-1",
        "InstanceType": "ml.m5.4xlarge",
        "InstanceStatus": {"Status": "Running"},
        "host": "ip-10-1-0-250",
    }
    return [*workers, head]


def _summary(node: Mapping[str, Any]) -> dict[str, Any]:
    body = {key: value for key, value in node.items() if key != "host"}
    dns = f"{node['host']}.us-west-2.compute.internal"
    return {**body, "PrivateDnsHostname": dns, "LaunchTime": _later(86400)}


def _event(number: int) -> dict[str, Any]:
    level, text = (("Info", "Replacement began."), ("Warn", "Retrying."), ("Error", "Failed."))[
        number - 1
    ]
    return {
        "EventId": f"0e0e0e0e-0000-4000-8000-{number:012}",
        "ClusterArn": ARN,
        "ClusterName": "llm-prod",
        "InstanceGroupName": GROUP,
        "InstanceId": "i-00000000000000003" if number != 2 else "i-0dead000000000009",
        "ResourceType": "Instance",
        "EventTime": _later(60 - 10 * number),
        "Description": f"Instance: {text}",
        "EventLevel": level,
    }
