"""What others do while a command looks, asks or waits: no node goes that nobody chose."""

import itertools
import signal

import pytest
from msgspec.structs import replace

from hpctl.clusters import apply, order_cloud
from hpctl.clusters.apply import describe_existing_cluster
from hpctl.clusters.order_progress import NodeOrderPhase
from hpctl.clusters.order_terms import NodeAction
from hpctl.toolkit.errors import HpctlError
from tests.clusters.bed import CLUSTER
from tests.clusters.shell import FAST
from tests.clusters.test_apply import PATIENCE, change

pytestmark = pytest.mark.integration


def test_ctrl_c_in_the_middle_of_the_order_gives_no_node_back(desk, monkeypatch):
    """The service may have taken it: a node given back would get jobs, and then go under them."""
    idle, busy = desk.workers[:2]
    desk.slurm.run(7, busy)
    run = desk.begin(desk.plan(NodeAction.DELETE, idle, busy))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(order_cloud, "call_batch_node_operation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(run.iter_progress())
    left = {one.node: one for one in run.let_go()}
    assert (left[idle].phase, left[busy].phase) == (NodeOrderPhase.IN_DOUBT, NodeOrderPhase.LET_GO)
    assert left[idle].left_drained == desk.slurm.nodes[idle].reason
    assert desk.slurm.nodes[idle].drained
    assert not desk.slurm.nodes[busy].drained


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_while_jobs_are_waited_for_gives_the_nodes_back(shell, number, request):
    slurm = shell.head_node()
    slurm.run(7, "ip-127-0-1-3", "ip-127-0-1-4", "ip-127-0-1-5")

    def interrupt() -> None:
        # A shell's background jobs, as these tests may be, ignore Ctrl-C.
        if number is signal.SIGINT:
            raise KeyboardInterrupt
        signal.raise_signal(number)

    if number is signal.SIGHUP:  # under nohup it would be ignored, as is right
        before = signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(number, before))
    # The idle node goes at the first look; the other waits for job 7 until somebody is tired of it.
    slurm.at_look += [lambda: None] * 4 + [interrupt]
    text = shell.said("scale", "workers", "2", "--yes", *FAST, code=130)
    assert "1 node(s) go; 1 were not ordered and are given back" in " ".join(text.split())
    assert "hpctl cluster wait llm" in text
    assert "interrupted; given back" in " ".join(text.split())
    assert "refused" not in text
    assert not any(node.drained for name, node in slurm.nodes.items() if name != "ip-127-0-1-2")
    assert len(shell.bed.instances()) == 3


def test_a_node_that_came_up_meanwhile_proves_no_order(desk):
    """It was Pending when it was looked at; the order to delete it got lost on its way."""
    desk.bed.emulator.faults.add(
        "internal_error", calls=1, operations=["BatchDeleteClusterNodes"], accepted=False
    )
    name = desk.workers[0]
    order = desk.plan(NodeAction.DELETE, name)
    row = replace(order.targets[0].row, status="Pending")
    order = replace(order, targets=(replace(order.targets[0], row=row),))
    (one,) = desk.carry_out(order)
    assert one.phase is NodeOrderPhase.DONE
    assert desk.bed.operations().count("BatchDeleteClusterNodes") == 2


def test_a_node_is_not_given_back_because_a_second_sending_was_refused(desk):
    """The first may have been taken: that may be what speaks against the second."""
    faults, only = desk.bed.emulator.faults, ["BatchDeleteClusterNodes"]
    faults.add("internal_error", calls=1, operations=only, accepted=False)
    looks = desk.begin(desk.plan(NodeAction.DELETE, desk.workers[0])).iter_progress()
    assert next(looks)[0].phase is NodeOrderPhase.ORDERED
    faults.add("access_denied", operations=only)
    (one,) = [*itertools.islice(looks, 50)][-1]
    assert (one.phase, one.code) == (NodeOrderPhase.IN_DOUBT, "AccessDeniedException")
    assert one.left_drained
    assert desk.slurm.nodes[desk.workers[0]].drained


def test_an_update_of_something_else_than_counts_is_not_taken_for_done(bed):
    """The first sending was lost on its way: the counts, which it leaves alone, prove nothing."""
    checks = ["InstanceStress"]
    bed.emulator.faults.add("internal_error", operations=["UpdateCluster"], calls=1, accepted=False)
    apply.apply_cluster_update(bed.aws, change(bed, OnStartDeepHealthChecks=checks), PATIENCE)
    assert bed.operations().count("UpdateCluster") == 2
    workers = describe_existing_cluster(bed.aws, CLUSTER)["InstanceGroups"][1]
    assert workers["OnStartDeepHealthChecks"] == checks


def test_an_update_that_is_refused_changes_no_tag(bed):
    bed.emulator.faults.add("access_denied", operations=["UpdateCluster"])
    planned = replace(change(bed, InstanceCount=6), tags_set={"team": "a"}, tags_gone=("old",))
    with pytest.raises(HpctlError):
        apply.apply_cluster_update(bed.aws, planned, PATIENCE)
    assert not {"AddTags", "DeleteTags"} & set(bed.operations())


def test_an_update_does_not_restate_a_count_that_has_changed_since(bed):
    """Somebody added nodes while the question was open: their count would end others at random."""
    planned = change(bed, OnStartDeepHealthChecks=["InstanceStress"])
    apply.grow_instance_group(bed.aws, CLUSTER, "workers", 6, PATIENCE)
    bed.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    with pytest.raises(HpctlError, match=r"workers had a target of 4, and has 6") as caught:
        apply.apply_cluster_update(bed.aws, planned, PATIENCE)
    assert "again" in caught.value.hint
    assert "UpdateCluster" not in bed.operations()
    assert len(bed.instances()) == 6


def test_a_group_that_got_a_node_meanwhile_is_not_deleted_with_it(bed):
    emptied = bed.instances()
    apply.grow_instance_group(bed.aws, CLUSTER, "workers", 5, PATIENCE)
    bed.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    with pytest.raises(
        HpctlError, match=r"workers was not deleted: another user or program added node ip-"
    ):
        apply.delete_instance_groups(bed.aws, CLUSTER, ("workers",), PATIENCE, emptied)
    assert "UpdateCluster" not in bed.operations()
