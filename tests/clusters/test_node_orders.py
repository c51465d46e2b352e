"""Orders for named nodes over HTTP: drained, ordered by instance id, waited for, given back."""

import itertools
from collections import Counter

import pytest

from hpctl.clusters import failures, order_terms
from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.node_order_plan import build_node_order_plan
from hpctl.clusters.order_progress import NodeOrderPhase
from hpctl.clusters.order_terms import NodeAction
from hpctl.nodes import advance
from hpctl.toolkit.errors import ServiceCallRefused
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.desk import Desk
from tests.sagemaker.contract.beds import add
from tests.tables import beside
from tests.waiting import until

pytestmark = pytest.mark.integration

CASES = beside(__file__, "orders.yaml")


def nothing() -> None:
    """One look at Slurm at which nothing happens."""


def happens(desk, deed):
    """What a line of `later` says."""
    verb, _, at = deed.partition(" ")
    if verb in ("nothing", "end"):
        return nothing if verb == "nothing" else lambda: desk.slurm.end(int(at))
    name, old = desk.workers[int(at)], desk.bed.worker(int(at))
    if verb == "rejoin":
        return desk.rejoin(name)
    if verb == "give_back":
        return lambda: desk.slurm.change(name, "ALLOCATED")
    request = {"ClusterName": CLUSTER, "NodeIds": [old]}
    return lambda: desk.bed.emulator.handle("BatchReplaceClusterNodes", request)


def has(one, fields):
    """A text is in the field of that name; null: the field is empty; else it is equal."""
    for name, value in fields.items():
        found = getattr(one, name)
        assert value in found if isinstance(value, str) else (found or None) == value, (name, found)


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_an_order(desk, steps):  # noqa: C901 -- one table of orders and answers
    for step in steps:
        names, slurm = desk.workers, desk.slurm
        for job, at in step.get("jobs", {}).items():
            slurm.run(job, *(names[n] for n in at))
        if "reason" in step:
            reason = step["reason"].replace("$id", desk.bed.worker())
            slurm.change(names[0], "IDLE", reason, "DRAIN")
        if "fault" in step:
            nodes = [desk.bed.worker(n) for n in step["fault"].get("nodes", ())]
            desk.bed.emulator.faults.add(**step["fault"] | ({"nodes": nodes} if nodes else {}))
        verb, *at = step["order"]
        chosen = [desk.controller if n == "head" else names[n] for n in at]
        order = desk.plan(NodeAction(verb), *chosen, daemon=step.get("daemon", False))
        for target, fields in zip(order.targets, step.get("targets", []), strict=False):
            has(target, fields)
        desk.later(*(happens(desk, deed) for deed in step.get("later", [])))
        if {"phases", "how"} & set(step):
            done = desk.carry_out(order, **step.get("how", {}))
            assert [one.phase.value for one in done] == step.get("phases", ["left"])
            for one, fields in zip(done, step.get("texts", []), strict=False):
                has(one, fields)
        if step.get("settle"):
            desk.bed.emulator.wait_until_cluster_in_service(CLUSTER)
        if "drained" in step:
            drained = [n for n, name in enumerate(names) if slurm.nodes[name].drained]
            assert drained == step["drained"]
        if "sent" in step:
            batches = [op for op in desk.bed.operations() if op.startswith("Batch")]
            assert Counter(batches) == step["sent"]
        assert slurm.downed == [names[n] for n in step.get("down", ())]
        assert not step.get("slept") or desk.slept >= order_terms.DOUBT_S


def ordered(bed: AwsBed) -> list[tuple[str, tuple[str, ...]]]:
    return [(c.operation, c.node_ids) for c in bed.emulator.calls.all() if c.node_ids]


def test_a_replacement_waits_for_the_job_and_gives_the_node_back(desk):
    name, old = desk.workers[0], desk.bed.worker()
    desk.slurm.run(7, name)
    order = desk.plan(NodeAction.REPLACE, name)
    seen: list[tuple[NodeOrderPhase, str, list[str]]] = []

    def look() -> None:
        node = desk.slurm.nodes[name]
        batches = [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]
        seen.append((NodeOrderPhase.JOBS, node.reason, batches))

    desk.later(nothing, look, look, lambda: desk.slurm.end(7), nothing, nothing, desk.rejoin(name))
    (one,) = desk.carry_out(order)
    assert one.phase is NodeOrderPhase.DONE
    assert seen == [(NodeOrderPhase.JOBS, f"operator:replace:{old}@20260101T000000 by ana", [])] * 2
    assert ("BatchReplaceClusterNodes", (old,)) in ordered(desk.bed)
    assert one.new_instance_id == desk.bed.worker() != old
    node = desk.slurm.nodes[name]
    assert (node.state, node.flags, node.reason) == ("IDLE", frozenset(), "")


def test_a_node_is_not_given_back_before_the_new_slurmd_has_registered(desk):
    name = desk.workers[0]
    looks = desk.begin(desk.plan(NodeAction.REPLACE, name)).iter_progress()
    coming = (NodeOrderPhase.ORDERED, NodeOrderPhase.COMING)
    first = next(one for (one,) in itertools.islice(looks, 500) if one.phase not in coming)
    assert first.phase is NodeOrderPhase.JOINING
    assert {one.phase for (one,) in itertools.islice(looks, 20)} == {NodeOrderPhase.JOINING}
    assert desk.slurm.nodes[name].drained
    desk.slurm.registers(name)
    assert next(looks)[0].phase is NodeOrderPhase.DONE
    assert not desk.slurm.nodes[name].drained


def test_let_go_gives_back_what_was_not_ordered(desk):
    busy, idle = desk.workers[:2]
    desk.slurm.run(7, busy)
    walk = desk.begin(desk.plan(NodeAction.REPLACE, busy, idle))
    next(walk.iter_progress())
    left = {one.node: one for one in walk.let_go()}
    assert (left[busy].phase, left[idle].phase) == (NodeOrderPhase.LET_GO, NodeOrderPhase.LEFT)
    assert not desk.slurm.nodes[busy].drained
    assert desk.slurm.nodes[idle].drained


def test_a_new_instance_that_fails_is_reported_with_the_line_of_its_log(desk, monkeypatch):
    read: list[str] = []

    def line(_aws, where: failures.LifecycleLogLocation) -> failures.LifecycleFailureLogLine:
        read.append(str(where))
        return failures.LifecycleFailureLogLine("step mount_fsx failed: no such host")

    monkeypatch.setattr(failures, "read_lifecycle_failure_log_line", line)
    desk.bed.machines.fail_boot.add("workers-1")
    try:
        (one,) = desk.carry_out(desk.plan(NodeAction.REPLACE, desk.workers[0]))
    finally:
        desk.bed.machines.fail_boot.clear()
    assert one.phase is NodeOrderPhase.FAILED
    assert "mount_fsx" in one.text
    assert read[0].endswith(f"LifecycleConfig/workers/{one.new_instance_id}")
    assert "hpctl cluster lifecycle push" in one.fix
    assert one.left_drained
    # The script is fixed: what failed is ordered anew, and not waited for as if it were coming.
    desk.later(nothing, nothing, desk.rejoin(desk.workers[0]))
    (last,) = desk.carry_out(desk.plan(NodeAction.REPLACE, desk.workers[0]))
    assert (last.phase, last.instance_id) == (NodeOrderPhase.DONE, one.new_instance_id)
    assert not desk.slurm.nodes[desk.workers[0]].drained


def test_many_nodes_go_out_in_calls_that_the_service_takes():
    bed = AwsBed(workers=60)
    try:
        desk = Desk(bed)
        for verb in (NodeAction.REBOOT, NodeAction.DELETE):
            desk.carry_out(desk.plan(verb, *desk.workers), wait=False)
            bed.emulator.wait_until_cluster_in_service(CLUSTER)
        sizes = [(op, len(ids)) for op, ids in ordered(bed) if op.startswith("Batch")]
        assert sizes == [
            *[("BatchRebootClusterNodes", n) for n in (25, 25, 10)],
            *[("BatchDeleteClusterNodes", n) for n in (25, 25, 10)],
        ]
    finally:
        bed.close()


def test_a_node_of_unknown_identity_is_not_touched():
    row = NodeRow("ip-1", "i-1", group="g", status="Running", slurm_state="NOT_FOUND")
    order = build_node_order_plan(
        NodeAction.REBOOT, {"ClusterStatus": "InService"}, [row], None, by="ana"
    )
    assert "whether it is a controller" in order.targets[0].refusal


def test_a_deletion_that_another_command_was_faster_with_is_done(desk):
    ours, theirs = (desk.plan(NodeAction.DELETE, *desk.workers[:2]) for _ in range(2))
    desk.carry_out(theirs)
    assert {one.phase for one in desk.carry_out(ours)} == {NodeOrderPhase.DONE}


def test_a_second_order_for_what_is_under_way_counts_as_taken(desk):
    """A command that was killed between its order and the answer, run again."""
    name, old = desk.workers[0], desk.bed.worker()
    desk.slurm.change(name, "IDLE", f"operator:replace:{old} by ana", "DRAIN")
    order = desk.plan(NodeAction.REPLACE, name)
    assert [(t.adopted, t.under_way) for t in order.targets] == [(True, False)]
    desk.bed.emulator.faults.add("fail_nodes", calls=1, nodes=[old], code="InstanceIdInUse")
    walk = desk.begin(order)
    (one,) = next(walk.iter_progress())
    assert one.phase is NodeOrderPhase.ORDERED


def test_where_a_node_cannot_be_drained_nothing_is_ordered(desk):
    desk.slurm.denied = True
    with pytest.raises(
        ServiceCallRefused, match=r"could not drain node .*: denied; nothing was requested"
    ):
        desk.carry_out(desk.plan(NodeAction.REPLACE, desk.workers[0]))
    assert not [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]


def test_a_place_without_an_instance_is_deleted_by_its_logical_id(desk):
    desk.bed.emulator.faults.add("no_capacity", operations=["Create"])
    add(desk.bed.emulator, CLUSTER)
    until(
        lambda: any(not r.instance_id for r in read_node_rows(desk.bed.aws, CLUSTER, details=False))
    )
    rows = read_node_rows(desk.bed.aws, CLUSTER, details=False)
    (place,) = [row.logical_id for row in rows if not row.instance_id]
    (one,) = desk.carry_out(desk.plan(NodeAction.DELETE, place))
    assert (one.phase, one.instance_id) == (NodeOrderPhase.DONE, place)
    sent = desk.bed.emulator.calls.all("BatchDeleteClusterNodes")[-1].request
    assert sent["NodeLogicalIds"] == [place]
    assert "NodeIds" not in sent


def test_while_jobs_are_waited_for_the_service_is_not_asked(desk):
    desk.slurm.run(7, desk.workers[0])
    looks = desk.begin(desk.plan(NodeAction.REPLACE, desk.workers[0])).iter_progress()
    next(looks)
    desk.bed.forget_calls()
    for _ in range(5):
        assert next(looks)[0].phase is NodeOrderPhase.JOBS
    assert desk.bed.operations() == []


def test_a_silent_slurmctld_is_shown_and_changes_nothing(desk):
    desk.slurm.run(7, desk.workers[0])
    run = desk.begin(desk.plan(NodeAction.REPLACE, desk.workers[0]))
    looks = run.iter_progress()
    next(looks)
    desk.slurm.blind = 1
    assert next(looks)[0].text == "slurmctld does not answer"
    assert next(looks)[0].text == ""
    assert not [op for op, _ in ordered(desk.bed) if op.startswith("Batch")]


def test_a_node_that_cannot_be_given_back_on_ctrl_c_is_shown_with_its_reason(desk):
    desk.slurm.run(7, desk.workers[0])
    run = desk.begin(desk.plan(NodeAction.REPLACE, desk.workers[0]))
    next(run.iter_progress())
    desk.slurm.blind = 9
    (one,) = run.let_go()
    assert (one.phase, one.left_drained) == (
        NodeOrderPhase.LET_GO,
        desk.slurm.nodes[one.node].reason,
    )
    assert "not given back: slurmctld does not answer" in one.text


def test_an_internal_error_is_shown_at_its_node_alone(desk, monkeypatch):
    broken, sound = desk.workers[:2]
    taken = advance.advance_node_recovery

    def advances(rec, *facts):
        if rec.node == broken and rec.phase is NodeRecoveryPhase.VACATED:
            raise ZeroDivisionError("a bug")
        return taken(rec, *facts)

    monkeypatch.setattr(advance, "advance_node_recovery", advances)
    run = desk.begin(desk.plan(NodeAction.DELETE, broken, sound))
    looks = itertools.islice(run.iter_progress(), 500)
    last = next(look for look in looks if sum(one.has_ended for one in look) == 1)
    found = {one.node: one for one in last}
    assert "ZeroDivisionError" in found[broken].text
    assert found[sound].phase is NodeOrderPhase.DONE
    monkeypatch.undo()
    assert {one.phase for one in run.let_go()} == {NodeOrderPhase.LET_GO, NodeOrderPhase.DONE}
    assert not desk.slurm.nodes[broken].drained
