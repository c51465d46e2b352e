"""Orders for named nodes over HTTP: drained, ordered by instance id, waited for, given back."""

import itertools
import time

import pytest

from hpctl.clusters import failures, node_orders
from hpctl.clusters.names import NodeRow, node_rows
from hpctl.clusters.node_orders import Verb, plan
from hpctl.clusters.order_walk import Phase
from hpctl.core.model import NodeName
from hpctl.errors import Refused
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.desk import Desk


def nothing() -> None:
    """One look at Slurm at which nothing happens."""


def ordered(bed: AwsBed) -> list[tuple[str, tuple[str, ...]]]:
    return [(c.operation, c.node_ids) for c in bed.emulator.calls.all() if c.node_ids]


# --- a replacement ----------------------------------------------------------------------------


def test_a_replacement_waits_for_the_job_and_gives_the_node_back(desk: Desk) -> None:
    name, old = desk.workers[0], desk.bed.worker()
    desk.slurm.run(7, name)
    order = desk.plan(Verb.REPLACE, name)
    seen: list[tuple[Phase, str, list[str]]] = []

    def look() -> None:
        node = desk.slurm.nodes[NodeName(name)]
        batches = [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]
        seen.append((Phase.JOBS, node.reason, batches))

    desk.later(look, look, lambda: desk.slurm.end(7), nothing, nothing, desk.rejoin(name))
    (one,) = desk.carry_out(order)
    assert one.phase is Phase.DONE
    assert seen == [(Phase.JOBS, f"operator:replace:{old}@20260101T000000 by ana", [])] * 2
    assert ("BatchReplaceClusterNodes", (old,)) in ordered(desk.bed)
    assert one.new_instance_id == desk.bed.worker() != old
    node = desk.slurm.nodes[NodeName(name)]
    assert (node.state, node.flags, node.reason) == ("IDLE", frozenset(), "")


def test_a_node_is_not_given_back_before_the_new_slurmd_has_registered(desk: Desk) -> None:
    name = desk.workers[0]
    looks = desk.walk(desk.plan(Verb.REPLACE, name)).looks()
    coming = (Phase.ORDERED, Phase.COMING)
    first = next(one for (one,) in itertools.islice(looks, 500) if one.phase not in coming)
    assert first.phase is Phase.JOINING
    assert {one.phase for (one,) in itertools.islice(looks, 20)} == {Phase.JOINING}
    assert desk.slurm.nodes[NodeName(name)].drained
    desk.slurm.registers(name)
    assert next(looks)[0].phase is Phase.DONE
    assert not desk.slurm.nodes[NodeName(name)].drained


def test_now_waits_for_nobody_and_tells_slurm_that_the_node_is_down(desk: Desk) -> None:
    name = desk.workers[0]
    desk.slurm.run(7, name)
    order = desk.plan(Verb.REPLACE, name)
    desk.later(nothing, lambda: desk.slurm.end(7), desk.rejoin(name))
    (one,) = desk.carry_out(order, now=True)
    assert one.phase is Phase.DONE
    assert desk.slurm.downed == [name]
    assert desk.slurm.nodes[NodeName(name)].state == "IDLE"


def test_the_same_command_picks_up_an_order_that_nobody_waits_for(desk: Desk) -> None:
    name = desk.workers[0]
    desk.carry_out(desk.plan(Verb.REPLACE, name), wait=False)
    desk.bed.emulator.wait_in_service(CLUSTER)
    desk.bed.forget_calls()
    order = desk.plan(Verb.REPLACE, name)
    assert [t.under_way for t in order.targets] == [True]
    desk.later(nothing, desk.rejoin(name))
    (one,) = desk.carry_out(order)
    assert one.phase is Phase.DONE
    assert "BatchReplaceClusterNodes" not in desk.bed.operations()
    assert not desk.slurm.nodes[NodeName(name)].drained


def test_a_drain_of_somebody_else_is_left_as_it_is(desk: Desk) -> None:
    name = desk.workers[0]
    desk.slurm.change(name, "IDLE", "bad GPU, ana", "DRAIN")
    order = desk.plan(Verb.REPLACE, name)
    assert "bad GPU, ana" in order.targets[0].warning
    desk.later(nothing, nothing, desk.rejoin(name))
    (one,) = desk.carry_out(order)
    assert one.phase is Phase.DONE
    assert "bad GPU, ana" in one.text
    assert desk.slurm.nodes[NodeName(name)].reason == "bad GPU, ana"


def test_a_node_that_somebody_gives_back_meanwhile_is_not_ordered(desk: Desk) -> None:
    name = desk.workers[0]
    desk.slurm.run(7, name)
    order = desk.plan(Verb.REPLACE, name)
    desk.later(nothing, lambda: desk.slurm.change(name, "ALLOCATED"))
    (one,) = desk.carry_out(order)
    assert (one.phase, one.code) == (Phase.REFUSED, "given_back")
    assert not [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]


def test_let_go_gives_back_what_was_not_ordered(desk: Desk) -> None:
    busy, idle = desk.workers[:2]
    desk.slurm.run(7, busy)
    walk = desk.walk(desk.plan(Verb.REPLACE, busy, idle))
    next(walk.looks())
    left = {one.node: one for one in walk.let_go()}
    assert left[busy].phase is Phase.LET_GO
    assert left[idle].phase is Phase.LEFT
    assert not desk.slurm.nodes[NodeName(busy)].drained
    assert desk.slurm.nodes[NodeName(idle)].drained


def test_a_new_instance_that_fails_is_told_with_the_line_of_its_log(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def line(_aws: object, where: failures.LogPlace) -> failures.FailedLine:
        read.append(str(where))
        return failures.FailedLine("step mount_fsx failed: no such host")

    monkeypatch.setattr(failures, "failed_line", line)
    desk.bed.machines.fail_boot.add("workers-1")
    try:
        (one,) = desk.carry_out(desk.plan(Verb.REPLACE, desk.workers[0]))
    finally:
        desk.bed.machines.fail_boot.clear()
    assert one.phase is Phase.FAILED
    assert "mount_fsx" in one.text
    assert read[0].endswith(f"LifecycleConfig/workers/{one.new_instance_id}")
    assert "hpctl lifecycle push" in one.mend
    assert one.left_drained
    # The script is mended: what failed is ordered anew, and not waited for as if it were coming.
    desk.later(nothing, nothing, desk.rejoin(desk.workers[0]))
    (last,) = desk.carry_out(desk.plan(Verb.REPLACE, desk.workers[0]))
    assert (last.phase, last.instance_id) == (Phase.DONE, one.new_instance_id)
    assert not desk.slurm.nodes[NodeName(desk.workers[0])].drained


# --- the others -------------------------------------------------------------------------------


def test_a_reboot_found_again_waits_for_another_slurmd(desk: Desk) -> None:
    """A slurmd that answers is the one that was there: the machine has yet to go down."""
    name = desk.workers[1]
    desk.carry_out(desk.plan(Verb.REBOOT, name), wait=False)
    order = desk.plan(Verb.REBOOT, name)
    assert order.targets[0].under_way
    (one,) = desk.carry_out(order, timeout_s=0.1)
    assert one.phase is Phase.LEFT
    assert "nobody can say" in one.text
    assert desk.slurm.nodes[NodeName(name)].drained
    desk.later(nothing, desk.rejoin(name))
    (one,) = desk.carry_out(desk.plan(Verb.REBOOT, name))
    assert one.phase is Phase.DONE
    assert desk.bed.operations().count("BatchRebootClusterNodes") == 1


def test_many_nodes_go_out_in_calls_that_the_service_takes() -> None:
    bed = AwsBed(workers=60)
    try:
        rows = [r for r in node_rows(bed.aws, CLUSTER, details=False) if r.role == "compute"]
        sagemaker = bed.aws.service("sagemaker")
        node_orders.send(sagemaker, CLUSTER, Verb.REBOOT, rows, sleep=time.sleep)
        bed.emulator.wait_in_service(CLUSTER)
        outcomes = node_orders.send(sagemaker, CLUSTER, Verb.DELETE, rows, sleep=time.sleep)
        assert {o.kind.value for o in outcomes.values()} == {"accepted"}
        sizes = [(op, len(ids)) for op, ids in ordered(bed) if op.startswith("Batch")]
        assert sizes == [
            *[("BatchRebootClusterNodes", n) for n in (25, 25, 10)],
            *[("BatchDeleteClusterNodes", n) for n in (50, 10)],
        ]
    finally:
        bed.close()


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", list(Verb))
def test_a_controller_is_never_touched(desk: Desk, verb: Verb) -> None:
    order = desk.plan(verb, desk.controller)
    assert order.refused
    assert "controller" in order.targets[0].refusal


def test_what_the_daemon_treats_is_its_own_while_it_lives(desk: Desk) -> None:
    desk.slurm.change(desk.workers[0], "IDLE", "hpctl:n-12345678 xid-79", "DRAIN")
    order = desk.plan(Verb.REPLACE, desk.workers[0], daemon=True)
    assert "hpctl cancel n-12345678" in order.targets[0].refusal
    assert not desk.plan(Verb.REPLACE, desk.workers[0]).refused


def test_a_node_of_which_nobody_says_what_it_is_is_not_touched() -> None:
    row = NodeRow("ip-1", "i-1", group="g", status="Running", slurm_state="NOT_FOUND")
    order = plan(Verb.REBOOT, {"ClusterStatus": "InService"}, [row], None, by="ana")
    assert "whether it is a controller" in order.targets[0].refusal


@pytest.mark.parametrize(
    ("code", "said", "moving"),
    [
        ("InstanceIdInUse", "another operation works on it", True),
        ("InvalidInstanceStatus", "wait until", True),
        ("InstanceIdNotFound", "hpctl cluster nodes", False),
    ],
)
def test_a_refusal_is_the_nodes_own_with_its_mend_and_it_is_given_back_unless_it_moves(
    desk: Desk, code: str, said: str, moving: bool
) -> None:
    first, second = desk.workers[:2]
    order = desk.plan(Verb.REPLACE, first, second)
    desk.bed.emulator.faults.add("fail_nodes", calls=1, nodes=[desk.bed.worker()], code=code)
    desk.later(nothing, nothing, desk.rejoin(second))
    refused, fine = desk.carry_out(order)
    assert (refused.phase, refused.code) == (Phase.REFUSED, code)
    assert said in refused.mend
    assert fine.phase is Phase.DONE
    # What another's order works on may be about to go: no job shall start there.
    assert desk.slurm.nodes[NodeName(first)].drained is moving
    assert bool(refused.left_drained) is moving


def test_a_deletion_that_another_command_was_faster_with_is_done(desk: Desk) -> None:
    ours, theirs = (desk.plan(Verb.DELETE, *desk.workers[:2]) for _ in range(2))
    desk.carry_out(theirs)
    assert {one.phase for one in desk.carry_out(ours)} == {Phase.DONE}


def test_access_denied_is_told_for_each_node_and_all_are_given_back(desk: Desk) -> None:
    desk.bed.emulator.faults.add("access_denied", operations=["BatchReplaceClusterNodes"])
    done = desk.carry_out(desk.plan(Verb.REPLACE, *desk.workers[:2]))
    assert {(one.phase, one.code) for one in done} == {(Phase.REFUSED, "AccessDeniedException")}
    assert "hpctl iam operator" in done[0].text
    assert not any(node.drained for node in desk.slurm.nodes.values())


# --- in doubt ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.REPLACE, Verb.DELETE])
def test_an_order_whose_reply_is_lost_is_looked_for_and_not_repeated(
    desk: Desk, verb: Verb
) -> None:
    operation = "BatchReplaceClusterNodes" if verb is Verb.REPLACE else "BatchDeleteClusterNodes"
    desk.bed.emulator.faults.add("drop_reply", calls=1, operations=[operation])
    desk.later(nothing, nothing, desk.rejoin(desk.workers[0]))
    (one,) = desk.carry_out(desk.plan(verb, desk.workers[0]))
    assert one.phase is Phase.DONE
    assert desk.bed.operations().count(operation) == 1


def test_an_order_that_was_lost_on_its_way_is_sent_once_more(desk: Desk) -> None:
    desk.bed.emulator.faults.add(
        "internal_error", calls=1, operations=["BatchReplaceClusterNodes"], accepted=False
    )
    desk.later(nothing, nothing, desk.rejoin(desk.workers[0]))
    (one,) = desk.carry_out(desk.plan(Verb.REPLACE, desk.workers[0]))
    assert one.phase is Phase.DONE
    assert desk.slept >= node_orders.DOUBT_S
    assert desk.bed.operations().count("BatchReplaceClusterNodes") == 2


def test_a_reboot_in_doubt_is_never_repeated(desk: Desk) -> None:
    desk.bed.emulator.faults.add("drop_reply", calls=1, operations=["BatchRebootClusterNodes"])
    (one,) = desk.carry_out(desk.plan(Verb.REBOOT, desk.workers[0]))
    assert one.phase is Phase.IN_DOUBT
    assert one.left_drained
    assert desk.bed.operations().count("BatchRebootClusterNodes") == 1


def test_a_second_order_for_what_is_under_way_counts_as_taken(desk: Desk) -> None:
    """A command that was killed between its order and the answer, run again."""
    name, old = desk.workers[0], desk.bed.worker()
    desk.slurm.change(name, "IDLE", f"operator:replace:{old} by ana", "DRAIN")
    order = desk.plan(Verb.REPLACE, name)
    assert [(t.adopted, t.under_way) for t in order.targets] == [(True, False)]
    desk.bed.emulator.faults.add("fail_nodes", calls=1, nodes=[old], code="InstanceIdInUse")
    walk = desk.walk(order)
    (one,) = next(walk.looks())
    assert one.phase is Phase.ORDERED


def test_where_a_node_cannot_be_drained_nothing_is_ordered(desk: Desk) -> None:
    desk.slurm.denied = True
    with pytest.raises(Refused, match="cannot be drained: denied; nothing was ordered"):
        desk.carry_out(desk.plan(Verb.REPLACE, desk.workers[0]))
    assert not [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]
