"""Software updates, deep health checks and events, over HTTP against the emulator."""

import time

import pytest

from hpctl.clusters import maintenance, maintenance_orders
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.maintenance import ClusterMaintenanceProgress
from hpctl.clusters.maintenance_following import MaintenanceFollower
from hpctl.clusters.watch import ClusterEventsUnsupportedError, read_cluster_events
from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown
from tests.clusters.bed import CLUSTER, AwsBed

pytestmark = pytest.mark.integration

SLEPT: list[float] = []


@pytest.fixture(autouse=True)
def _awake() -> None:
    SLEPT.clear()


def sleep(seconds: float) -> None:
    SLEPT.append(seconds)
    time.sleep(min(seconds, 0.02))


def follow(bed: AwsBed, *groups: str, **more) -> MaintenanceFollower:
    return MaintenanceFollower(bed.aws, CLUSTER, groups, time.monotonic, sleep, 0.02, **more)


def software(bed, **how):
    request = maintenance_orders.make_software_update_request(
        CLUSTER, maintenance_orders.SoftwareUpdateOptions(**how)
    )
    maintenance_orders.send_maintenance_order(
        bed.aws,
        "update_cluster_software",
        request,
        lambda: maintenance_orders.is_software_updating(bed.aws, CLUSTER),
        sleep,
    )  # fmt: skip
    return request


def check(bed: AwsBed, **how) -> None:
    rows = [row for row in read_node_rows(bed.aws, CLUSTER) if row.role == "compute"]
    request = maintenance_orders.make_health_check_request(
        CLUSTER, rows[:2], (), maintenance.CHECKS[:1]
    )
    maintenance_orders.send_maintenance_order(
        bed.aws, "start_cluster_health_check", request,
        lambda: maintenance_orders.is_health_check_running(bed.aws, CLUSTER), sleep,
    )  # fmt: skip


def test_an_update_is_followed_to_its_end(bed):
    bed.emulator.publish("9.9.9")
    before = bed.aws.service("sagemaker").read("describe_cluster", ClusterName=CLUSTER)
    software(bed, groups=["workers"], batch="50%", interval_s=0)
    *_, last = follow(bed, "workers", before=before).software()
    assert (last.done, last.failed) == (True, "")
    (group,) = last.groups
    assert (group.status, group.desired, group.updated, group.total) == ("Succeeded", "9.9.9", 4, 4)


def test_an_update_that_rolls_back_is_a_failure(bed):
    bed.emulator.publish("9.9.10")
    before = bed.aws.service("sagemaker").read("describe_cluster", ClusterName=CLUSTER)
    bed.machines.fail_boot.add("workers-1")
    try:
        software(bed, groups=["workers"])
        *_, last = follow(bed, "workers", before=before).software()
    finally:
        bed.machines.fail_boot.clear()
    assert last.done
    assert "group workers: " in last.failed


@pytest.mark.parametrize(
    ("order", "operation"),
    [(software, "UpdateClusterSoftware"), (check, "StartClusterHealthCheck")],
)
@pytest.mark.parametrize("fault", ["drop_reply", "internal_error"])
def test_an_order_in_doubt_is_looked_for_before_it_is_repeated(bed, order, operation, fault):
    """On paper an update may end before any look sees it: a repeat changes nothing then."""
    accepted = {"accepted": True} if fault == "internal_error" else {}
    bed.emulator.launches.timings = type(bed.emulator.launches.timings)(health_check_s=1.0)
    bed.emulator.faults.add(fault, calls=1, operations=[operation], **accepted)
    order(bed)
    assert 1 <= bed.operations().count(operation) <= (2 if order is software else 1)
    assert SLEPT


def test_an_order_that_was_lost_is_sent_once_more_only(bed):
    bed.emulator.faults.add(
        "internal_error", calls=2, operations=["StartClusterHealthCheck"], accepted=False
    )
    with pytest.raises(OrderOutcomeUnknown):
        check(bed)
    assert bed.operations().count("StartClusterHealthCheck") == 2


def test_checks_are_followed_to_their_end_and_a_bad_node_is_replaced(bed):
    bad = bed.worker()
    bed.emulator.faults.add("fail_health_check", calls=1, nodes=[bad], code="replace")
    check(bed)
    looks: list[ClusterMaintenanceProgress] = list(follow(bed, "workers").health())
    assert looks[-1].done
    assert bad not in bed.instances()
    assert len(bed.instances()) == 4


def test_a_follower_gives_up_and_says_that_the_change_continues(bed):
    bed.emulator.launches.timings = type(bed.emulator.launches.timings)(health_check_s=2.0)
    check(bed)
    with pytest.raises(HpctlError, match="SageMaker has not finished, and continues"):
        list(follow(bed, "workers", timeout_s=0.1).health())


def test_events_come_oldest_first_with_the_reason_of_a_failure(bed):
    bed.emulator.faults.add("no_capacity", calls=1)
    request = {"ClusterName": CLUSTER, "NodeIds": [bed.worker()]}
    bed.emulator.handle("BatchReplaceClusterNodes", request)
    nodes = bed.emulator.world.cluster(CLUSTER).nodes
    assert bed.emulator.wait_until(
        lambda: any(n.state.status == "Failure" for n in nodes.values()), 5
    )
    found = read_cluster_events(bed.aws, CLUSTER)
    assert [e.at for e in found] == sorted(e.at for e in found)
    errors = read_cluster_events(bed.aws, CLUSTER, levels=("Error",))
    assert errors
    assert any("sufficient capacity" in e.failure for e in errors)
    assert {e.level for e in errors} == {"Error"}
    assert len(errors) < len(found)
    assert len(read_cluster_events(bed.aws, CLUSTER, after=found[-1].at)) < len(found)


def test_a_cluster_that_has_no_events_says_why_and_what_there_is_instead():
    bed = AwsBed(workers=1, NodeProvisioningMode=None)
    try:
        with pytest.raises(ClusterEventsUnsupportedError, match="not Continuous") as caught:
            read_cluster_events(bed.aws, CLUSTER)
        assert "hpctl cluster instances" in caught.value.hint
    finally:
        bed.close()
