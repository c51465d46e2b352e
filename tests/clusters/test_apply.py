"""Create, update, grow and delete over HTTP: each error code, and no order sent blindly twice."""

import copy
import time

import pytest

from hpctl.clusters import apply
from hpctl.clusters.apply import PollSchedule, describe_existing_cluster
from hpctl.clusters.diff import diff_request_with_cluster
from hpctl.clusters.migration import require_no_jobs_for_slurm_config_strategy
from hpctl.sandbox.emulator.faults import ApiError
from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown
from tests.clusters.bed import CLUSTER, AwsBed
from tests.waiting import until

pytestmark = pytest.mark.integration

PATIENCE = PollSchedule(time.sleep, looks=2, every_s=0.01)
QUICK = PollSchedule(lambda _: None, looks=2, every_s=0.0)


def request(bed, name="fresh"):
    return {**copy.deepcopy(bed.spec), "ClusterName": name}


def change(bed: AwsBed, **of_workers) -> apply.ClusterUpdatePlan:
    wanted = copy.deepcopy(bed.spec)
    wanted["InstanceGroups"][1] |= of_workers
    found = describe_existing_cluster(bed.aws, CLUSTER)
    return apply.plan_cluster_update(wanted, found, diff_request_with_cluster(wanted, found))


def test_a_cluster_of_that_name_that_differs_is_left_alone(bed):
    other = request(bed, CLUSTER)
    other["InstanceGroups"][1]["InstanceCount"] = 7
    with pytest.raises(HpctlError, match=r"workers\.InstanceCount") as caught:
        apply.create_cluster(bed.aws, other, PATIENCE)
    assert "cluster update" in caught.value.hint
    assert "CreateCluster" not in bed.operations()


@pytest.mark.parametrize(("status", "fix"), [("Failed", "delete"), ("Deleting", "--deleted")])
def test_a_cluster_that_failed_or_goes_is_not_adopted(bed, monkeypatch, status, fix):
    handlers, more = (
        bed.emulator.handlers,
        {"ClusterStatus": status, "FailureMessage": "no capacity"},
    )
    before = handlers["DescribeCluster"]
    monkeypatch.setitem(handlers, "DescribeCluster", lambda body: {**before(body), **more})
    message = "failed: no capacity" if status == "Failed" else "being deleted"
    with pytest.raises(HpctlError, match=message) as caught:
        apply.create_cluster(bed.aws, request(bed, CLUSTER), PATIENCE)
    assert fix in caught.value.hint


def test_a_create_that_was_not_taken_is_sent_once_more_after_looking(bed):
    bed.emulator.faults.add("internal_error", operations=["CreateCluster"], calls=1)
    apply.create_cluster(bed.aws, request(bed), PATIENCE)
    operations = bed.operations()
    first, second = (i for i, name in enumerate(operations) if name == "CreateCluster")
    assert "DescribeCluster" in operations[first + 1 : second]


def test_a_create_that_stays_in_doubt_says_so(bed):
    bed.emulator.faults.add("internal_error", operations=["CreateCluster"])
    with pytest.raises(OrderOutcomeUnknown, match="sent it twice") as caught:
        apply.create_cluster(bed.aws, request(bed), PATIENCE)
    assert "continues from" in caught.value.hint
    assert bed.operations().count("CreateCluster") == 2


def test_groups_that_are_going_already_are_not_ordered_away_again(bed):
    gone = bed.instances()
    apply.delete_instance_groups(bed.aws, CLUSTER, ("workers",), PATIENCE, gone)
    apply.delete_instance_groups(bed.aws, CLUSTER, ("workers",), PATIENCE, gone)
    assert bed.operations().count("UpdateCluster") <= 2
    assert bed.emulator.wait_until(
        lambda: "workers" not in bed.emulator.world.cluster(CLUSTER).groups, 10
    )


@pytest.mark.parametrize("strategy", ["Managed", "Overwrite"])
def test_jobs_are_in_the_way_of_a_migration_that_rewrites_slurm_conf(strategy):
    """The migration guide, "Before you begin", running jobs."""
    require_no_jobs_for_slurm_config_strategy("Merge", [1])
    require_no_jobs_for_slurm_config_strategy(strategy, [])
    for running in ([1], None):
        with pytest.raises(HpctlError, match="rewrites slurm"):
            require_no_jobs_for_slurm_config_strategy(strategy, running)


def added(bed):
    return [c.request for c in bed.emulator.calls.all() if c.operation == "BatchAddClusterNodes"]


def test_a_lost_reply_to_add_is_repeated_with_its_token_and_adds_nothing_twice(bed):
    bed.emulator.faults.add("drop_reply", operations=["BatchAddClusterNodes"], calls=1)
    apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, PATIENCE)
    tokens = [sent["ClientToken"] for sent in added(bed)]
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    bed.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    assert len(bed.instances()) == 6


def test_two_commands_that_have_seen_the_same_add_once(bed, monkeypatch):
    other: list[int] = []

    def overtaken(aws, cluster):
        found = describe_existing_cluster(aws, cluster)
        if not other:
            other.append(0)
            other.append(apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, PATIENCE))
        return found

    monkeypatch.setattr(apply, "describe_existing_cluster", overtaken)
    apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, PATIENCE)
    assert other == [0, 2]
    assert len(added(bed)) == 2
    until(lambda: len(bed.instances()) == 6 and "None" not in bed.instances())
    # The same count again later is another order.
    gone = bed.instances()[-1]
    bed.aws.service("sagemaker").order(
        "batch_delete_cluster_nodes", ClusterName=CLUSTER, NodeIds=[gone]
    )
    until(lambda: len(bed.instances()) == 5)
    assert apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, PATIENCE) == 1
    until(lambda: len(bed.instances()) == 6)


def test_a_second_controller_is_refused_where_the_api_sets_slurm_up(bed):
    found = copy.deepcopy(describe_existing_cluster(bed.aws, CLUSTER))
    found["InstanceGroups"][0]["SlurmConfig"] = {"NodeType": "Controller"}
    assert apply.plan_group_growth_api_calls(found, "controller", 1) == ()
    with pytest.raises(HpctlError, match="only one"):
        apply.plan_group_growth_api_calls(found, "controller", 2)


ORDERS = {
    "CreateCluster": lambda bed: apply.create_cluster(bed.aws, request(bed), QUICK),
    "UpdateCluster": lambda bed: apply.apply_cluster_update(
        bed.aws, change(bed, InstanceCount=6), QUICK
    ),
    "BatchAddClusterNodes": lambda bed: apply.grow_instance_group(
        bed.aws, CLUSTER, "workers", 6, QUICK
    ),
    "DeleteCluster": lambda bed: apply.delete_cluster(bed.aws, CLUSTER, QUICK),
}


@pytest.mark.parametrize("operation", ["CreateCluster", "UpdateCluster", "DeleteCluster"])
def test_a_lost_reply_is_looked_for_and_the_order_not_repeated(bed, operation):
    bed.emulator.faults.add("drop_reply", operations=[operation], calls=1)
    ORDERS[operation](bed)
    assert bed.operations().count(operation) == 1
    assert bed.emulator.wait_until(
        lambda: all(c.status == "InService" for c in bed.emulator.world.clusters.values()), 10
    )
    if operation == "DeleteCluster":
        assert not apply.delete_cluster(bed.aws, CLUSTER, PATIENCE)


@pytest.mark.parametrize(
    ("operation", "code", "fix"),
    [
        ("CreateCluster", "ResourceLimitExceeded", "Service Quotas"),
        ("CreateCluster", "ResourceInUse", "cluster describe"),
        ("UpdateCluster", "ConflictException", "cluster wait"),
        ("UpdateCluster", "ValidationException", "cluster validate"),
        ("BatchAddClusterNodes", "ResourceNotFound", "cluster list"),
        ("DeleteCluster", "AccessDeniedException", "sagemaker:DeleteCluster"),
    ],
)
def test_each_refusal_has_a_fix(bed, monkeypatch, operation, code, fix):
    def refuse(_):
        raise ApiError(code, f"the service says {code}.")

    monkeypatch.setitem(bed.emulator.handlers, operation, refuse)
    with pytest.raises(HpctlError) as caught:
        ORDERS[operation](bed)
    assert fix in caught.value.hint
    assert ("0 of 2 were added" in str(caught.value)) is (operation == "BatchAddClusterNodes")
    assert bed.operations().count(operation) == 1


def test_what_add_refuses_is_counted_by_its_code(bed, monkeypatch):
    code = "IncompatibleInstanceTypes"
    refused = {
        "InstanceGroupName": "workers", "ErrorCode": code, "FailedCount": 2, "Message": "no.",
    }  # fmt: skip
    answer = {"Successful": [], "Failed": [refused]}
    monkeypatch.setitem(bed.emulator.handlers, "BatchAddClusterNodes", lambda _: answer)
    with pytest.raises(HpctlError, match=rf"refused 2 node\(s\): no\. \({code}\)") as caught:
        apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, QUICK)
    assert "0 of 2 were added" in str(caught.value)
