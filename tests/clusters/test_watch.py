"""Looks at a cluster over HTTP: statuses, events, what a failure means, and when a wait is over."""

import itertools
import time
from datetime import datetime, timedelta

import boto3
import pytest
from moto.server import ThreadedMotoServer
from msgspec.structs import replace

from hpctl.clusters import failures, progress
from hpctl.clusters.progress import (
    ClusterProgress,
    ClusterWaitState,
    InstanceGroupProgress,
    NodeProgress,
)
from hpctl.clusters.watch import watch_cluster
from hpctl.sagemaker.failure_causes import (
    InstancePlacement,
    NodeFailureKind,
    classify_failure_message,
    explain_node_failure,
)
from hpctl.sandbox.emulator.launch import NO_CAPACITY
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from tests.clusters.bed import CLUSTER, REGION, AwsBed
from tests.sagemaker.contract.beds import add

pytestmark = pytest.mark.integration

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that moves by what is slept, and by nothing else; the world moves a little."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        time.sleep(0.02)


def followed(bed: AwsBed, judge: progress.Until, **more) -> list[ClusterProgress]:
    clock = Clock()
    looks = watch_cluster(bed.aws, CLUSTER, judge, now=clock.now, sleep=clock.sleep, **more)
    return list(itertools.islice(looks, 400))


@pytest.fixture(scope="module")
def logs():
    """CloudWatch Logs and EC2, for boto3 clients that are made while it stands."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", f"http://{host}:{port}")
        patch.setenv("AWS_ENDPOINT_URL_EC2", f"http://{host}:{port}")
        yield boto3.client("logs", region_name=REGION)
    server.stop()


def write(logs, group: str, stream: str, *lines: str) -> None:
    at = int(time.time() * 1000)
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName=stream)
    events = [{"timestamp": at + n, "message": line} for n, line in enumerate(lines)]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def test_a_deletion_that_was_not_ordered_is_not_waited_for(bed):
    last = followed(bed, progress.evaluate_cluster_deletion_progress, every_s=30.0)[-1]
    assert (last.verdict, last.waited_s) == (ClusterWaitState.FAILED, progress.LAG_S)
    assert "its deletion was not ordered" in last.why


def test_a_failed_script_is_reported_by_node_step_and_line(logs):
    bed = AwsBed(workers=2)
    try:
        bed.machines.fail_boot.add("workers-3")
        add(bed.emulator, CLUSTER)
        first = followed(bed, progress.build_in_service_wait_condition(patience_s=30.0))[-1]
        [node] = first.failed_nodes
        assert first.verdict is ClusterWaitState.FAILED
        assert node.trouble.unread == "the log has not reached CloudWatch Logs (yet)"
        group, _, stream = node.trouble.log.partition(" ")
        assert group == f"/aws/sagemaker/Clusters/{CLUSTER}/{first.arn.rpartition('/')[2]}"
        assert stream == f"LifecycleConfig/workers/{node.instance_id}"
        write(
            logs,
            group,
            stream,
            "2026-01-01T00:00:00Z node=ip-127-0-1-4 step=mount_fsx: try 3 failed: No route to host",
            "hpctl lifecycle: FAILED step=mount_fsx node=ip-127-0-1-4 after 3 tries: No route",
            "[SageMaker] Lifecycle script failed with exit code 1",
        )
        answer = (
            followed(bed, progress.build_in_service_wait_condition(patience_s=30.0))[-1]
            .failed_nodes[0]
            .trouble
        )
        assert (answer.cause, answer.step) == (NodeFailureKind.LIFECYCLE, "mount_fsx")
        assert answer.line.endswith("after 3 tries: No route")
    finally:
        bed.close()


@pytest.fixture
def subnet(logs) -> str:
    """A subnet that EC2 knows, in us-west-2b."""
    ec2 = boto3.client("ec2", region_name=REGION)
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-west-2b")
    return str(made["Subnet"]["SubnetId"])


def starved(bed: AwsBed, subnet: str, **more) -> str:
    """Add a group for which there is nothing to be had; the last line on its node."""
    group = {
        "InstanceGroupName": "cheap",
        "InstanceCount": 1,
        "ExecutionRole": bed.spec["InstanceGroups"][0]["ExecutionRole"],
        "OverrideVpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": [subnet]},
        "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["cheap"]},
        **more,
    }
    bed.emulator.handle("UpdateCluster", {"ClusterName": CLUSTER, "InstanceGroups": [group]})
    last = followed(bed, progress.build_in_service_wait_condition(patience_s=60.0))[-1]
    [node] = last.failures
    assert last.verdict is ClusterWaitState.FAILED
    assert node.trouble.cause is NodeFailureKind.CAPACITY
    return f"{node.trouble.meaning}. {node.trouble.fix}"


def test_no_capacity_with_a_plan_in_another_zone_says_just_that(bed, subnet):
    held = {
        "ReservedCapacityArn": "arn:aws:sagemaker:us-west-2:000000000000:reserved-capacity/r",
        "InstanceType": "ml.p5.48xlarge",
        "TotalInstanceCount": 0,
        "Status": "Active",
        "AvailabilityZone": "us-west-2a",
    }
    plan = bed.emulator.capacity.add_training_plan("p5-november", ReservedCapacitySummaries=[held])
    text = starved(bed, subnet, InstanceType="ml.p5.48xlarge", TrainingPlanArn=plan)
    assert "from training plan p5-november" in text
    assert "the plan's capacity is in us-west-2a, the group's subnets are in us-west-2b" in text


@pytest.mark.usefixtures("logs")
def test_a_node_that_is_tried_forever_does_not_keep_a_wait_forever():
    bed = AwsBed(workers=1)
    launches = bed.emulator.launches
    launches.timings = replace(launches.timings, retry_s=0.01)
    try:
        bed.machines.fail_boot.add("workers-2")
        add(bed.emulator, CLUSTER)
        looks = followed(bed, progress.build_in_service_wait_condition(patience_s=60.0))
        assert looks[-1].verdict is ClusterWaitState.FAILED
        assert looks[-1].waited_s < 200.0
    finally:
        bed.close()


def test_a_deadline_ends_a_wait_and_is_kept_to_the_second(bed):
    last = followed(bed, lambda _: progress.WAITING, timeout_s=25.0, every_s=10.0)
    assert [look.waited_s for look in last] == [0.0, 10.0, 20.0, 25.0]
    assert last[-1].verdict is ClusterWaitState.DEADLINE


def look(status: str = "InService", current: int = 2, target: int = 2, **more) -> ClusterProgress:
    made = [
        NodeProgress("workers", f"i-{n}", "", f"ip-{n}", state, "", START)
        for n, state in enumerate(more.pop("nodes", ["Running"] * current))
    ]
    again = more.pop("again", ())
    return ClusterProgress(
        cluster=CLUSTER, status=status, at=START,
        groups=(InstanceGroupProgress("workers", ("ml.p5.48xlarge",), status, current, target),),
        nodes=tuple(made),
        failures=tuple(node for node in made if node.has_failed or node.instance_id in again),
        seen=frozenset({status, *more.pop("seen", ())}), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (look(), ClusterWaitState.REACHED),
        (look(current=1), ClusterWaitState.WAITING),
        (look(nodes=["Running", "DeepHealthCheckInProgress"]), ClusterWaitState.WAITING),
        (look("Creating", 0), ClusterWaitState.WAITING),
        (look("Updating"), ClusterWaitState.WAITING),
        (look("Failed", failure="why"), ClusterWaitState.FAILED),
        (look("Deleting"), ClusterWaitState.FAILED),
        (look("Deleted", 0, 0), ClusterWaitState.WAITING),
        (look("Deleted", 0, 0, seen=["InService"]), ClusterWaitState.FAILED),
        (look("Deleted", 0, 0, waited_s=200.0), ClusterWaitState.FAILED),
        (look(seen=["Updating", "RollingBack"], failure="why"), ClusterWaitState.FAILED),
        (look(target=3, current=3), ClusterWaitState.WAITING),
        (look(target=3, current=3, waited_s=200.0), ClusterWaitState.FAILED),
        (look(current=1, nodes=["Running", "Failure"]), ClusterWaitState.WAITING),
        (look(current=1, nodes=["Running", "Failure"], still_s=1000.0), ClusterWaitState.FAILED),
        (look(current=1, nodes=["Pending", "Failure"], still_s=1000.0), ClusterWaitState.WAITING),
        (
            look(current=1, nodes=["Running", "Pending"], again=["i-1"], still_s=1000.0),
            ClusterWaitState.FAILED,
        ),
    ],
)
def test_when_a_cluster_is_in_service(seen, verdict):
    assert progress.build_in_service_wait_condition({"workers": 2})(seen)[0] is verdict


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (NO_CAPACITY, NodeFailureKind.CAPACITY),
        ("Lifecycle scripts did not run successfully.", NodeFailureKind.LIFECYCLE),
        (
            "EFA health checks did not run successfully. Ensure that your VPC",
            NodeFailureKind.NETWORK,
        ),
        ("ResourceLimitExceeded: account-level service limit", NodeFailureKind.QUOTA),
        ("Something else.", NodeFailureKind.OTHER),
    ],
)
def test_the_services_words_have_a_meaning_and_a_fix(message, cause):
    assert classify_failure_message(message) is cause
    answer = explain_node_failure(message, InstancePlacement(("ml.p5.48xlarge",), {"subnet-1": ""}))
    assert answer.meaning
    assert answer.fix


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (InstancePlacement(plan="p", plan_status="Pending"), "the plan is Pending"),
        (
            InstancePlacement(plan="p", plan_zones=("a",), zones={"s": "a"}),
            "capacity in a is taken",
        ),
        (InstancePlacement(types=("ml.p5.48xlarge",)), "instance_types"),
        (InstancePlacement(types=("g6", "g5"), zones={"s": "b"}), "g6 then g5"),
    ],
)
def test_a_shortage_is_reported_by_where_the_instances_should_come_from(where, text):
    answer = explain_node_failure(NO_CAPACITY, where)
    assert text in f"{answer.meaning}. {answer.fix}"


@pytest.mark.parametrize(
    ("lines", "step", "line"),
    [
        (
            ["step=users: done", "step=slurm: try 1 failed", "x"],
            "slurm",
            "step=slurm: try 1 failed",
        ),
        (["Traceback (most recent call last):", "KeyError: 'a'", "exit 1"], "", "KeyError: 'a'"),
        (["+ mount -t lustre", "mount: cannot find device"], "", "mount: cannot find device"),
        (["one", "two"], "", "two"),
        ([], "", ""),
    ],
)
def test_the_line_that_tells_most_is_picked(lines, step, line):
    found = failures.find_lifecycle_failure_log_line(lines)
    assert (found.step, found.line) == (step, line)
    assert (found.unread == "the log is empty") is (not lines)


def test_a_look_that_fails_is_reported_and_the_wait_continues(bed, monkeypatch):
    sagemaker, asked = bed.aws.service("sagemaker"), itertools.count(1)
    read = sagemaker.read

    def second_fails(operation: str, **request):
        if next(asked) == 2:
            raise ServiceUnavailable("no answer")
        return read(operation, **request)

    monkeypatch.setattr(
        type(sagemaker), "read", lambda _self, *args, **kw: second_fails(*args, **kw)
    )
    verdicts = iter([(ClusterWaitState.WAITING, ""), (ClusterWaitState.REACHED, "")])
    looks = followed(bed, lambda _: next(verdicts))
    assert [look.unread for look in looks] == ["", "no answer", ""]
    assert looks[1].nodes == looks[0].nodes
