"""What every Provider promises, asked of the fake and of boto3 against the emulator alike."""

from datetime import timedelta

import pytest

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from tests.sagemaker.contract.beds import Bed, EmulatorBed, FakeBed

pytestmark = [pytest.mark.integration, pytest.mark.contract]

ABSENT = "i-0fffffffffffffffe"


def one(outcomes, instance: Instance | str) -> Outcome:
    assert isinstance(outcomes, dict)
    key = instance.id if isinstance(instance, Instance) else instance
    assert list(outcomes) == [key]
    outcome = outcomes[key]
    assert isinstance(outcome, Outcome)
    return outcome


def successor(bed: Bed, old: Instance) -> Instance:
    found = [i for i in bed.provider.view().instances.values() if i.node == old.node]
    assert len(found) == 1
    return found[0]


def test_the_view_names_every_node_and_protects_the_controller(bed: Bed) -> None:
    view = bed.provider.view()
    assert (view.present, view.automatic, view.cluster_status) == (True, False, "InService")
    assert len(view.instances) == 5
    assert {i.status for i in view.instances.values()} == {InstanceStatus.RUNNING}
    assert len({i.node for i in view.instances.values()}) == 5
    workers = [str(i.node) for i in view.instances.values() if not i.protected]
    assert all(node.startswith(bed.prefix) for node in workers)
    assert len({i.logical_id for i in view.instances.values()} - {None}) == 5
    assert [i.group for i in view.instances.values() if i.protected] == ["controller"]
    assert all(key == i.id for key, i in view.instances.items())


def test_the_view_counts_each_group(bed: Bed) -> None:
    view = bed.provider.view()
    workers = view.groups["workers"]
    assert view.continuous
    assert (workers.current, workers.target, workers.instance_type) == (4, 4, "ml.p5.48xlarge")


def test_an_addition_with_the_same_token_is_one_order(bed: Bed) -> None:
    for _ in range(2):
        assert bed.provider.add("workers", 2, 6, "hpctl-s-1").kind is OutcomeKind.ACCEPTED
    bed.settle()
    view = bed.provider.view()
    assert view.groups["workers"].target == 6
    assert sum(i.group == "workers" for i in view.instances.values()) == 6
    refused = bed.provider.add("nobody", 1, 1, "hpctl-s-2")
    assert (refused.kind, refused.code) == (OutcomeKind.REJECTED, "InstanceGroupNotFound")


def test_instances_leave_by_their_id_and_the_group_is_smaller(bed: Bed) -> None:
    going = bed.worker(1)
    assert one(bed.provider.remove([going.id]), going) == Outcome.accepted()
    bed.settle()
    bed.until(lambda: going.id not in bed.provider.view().instances)
    assert bed.provider.view().groups["workers"].target == 3
    again = one(bed.provider.remove([going.id]), going)
    assert again.kind is OutcomeKind.REJECTED
    assert not again.transient
    kept = one(bed.provider.remove([bed.controller().id]), bed.controller())
    assert kept.kind is OutcomeKind.REJECTED


def test_a_replacement_gives_a_new_id_to_the_same_node(bed: Bed) -> None:
    old = bed.worker()
    assert one(bed.provider.replace([old.id]), old) == Outcome.accepted()
    bed.settle()
    new = successor(bed, old)
    assert new.id != old.id
    assert (new.node, new.logical_id, new.group) == (old.node, old.logical_id, old.group)
    assert new.status is InstanceStatus.RUNNING
    assert new.launched is not None, "by it a mark of the instance before is known"
    assert old.launched is None or new.launched > old.launched
    assert old.id not in bed.provider.view().instances
    assert bed.truly_replaced() == [old.id]


@pytest.mark.parametrize("ahead_s", [90, -90])
def test_a_launch_is_given_by_the_head_nodes_clock(bed: Bed, ahead_s: int) -> None:
    """Where that is not the service's: marks in Slurm, by this clock, are compared with it."""
    old = bed.worker()
    bed.provider.replace([old.id])
    bed.settle()
    new = successor(bed, old)
    bed.head_ahead = timedelta(seconds=ahead_s)
    (seen,) = [i for i in bed.provider.view().instances.values() if i.id == new.id]
    moved = seen.launched - new.launched
    assert abs(moved - bed.head_ahead) < timedelta(seconds=10)


def test_the_old_id_cannot_hit_the_new_machine(bed: Bed) -> None:
    old = bed.worker()
    bed.provider.replace([old.id])
    bed.settle()
    for order in (bed.provider.replace, bed.provider.reboot):
        again = one(order([old.id]), old)
        assert (again.kind, again.code) == (OutcomeKind.REJECTED, "InstanceIdNotFound")
        assert not again.transient
    bed.settle()
    assert bed.truly_replaced() == [old.id]
    assert bed.truly_rebooted() == []


def test_one_operation_at_a_time_has_a_node(bed: Bed) -> None:
    old = bed.worker()
    bed.stick()
    bed.provider.replace([old.id])
    bed.until(lambda: successor(bed, old).status is InstanceStatus.PENDING)
    new = successor(bed, old)
    for order in (bed.provider.replace, bed.provider.reboot):
        refused = one(order([new.id]), new)
        assert (refused.kind, refused.code) == (OutcomeKind.REJECTED, "InstanceIdInUse")
        assert refused.transient
    bed.unstick()
    bed.settle()
    assert successor(bed, old).id == new.id
    assert bed.truly_replaced() == [old.id]


def test_neither_an_unknown_instance_nor_a_controller_is_replaced(bed: Bed) -> None:
    controller = bed.controller().id
    for wanted, code in ((ABSENT, "InstanceIdNotFound"), (controller, "InvalidInstanceStatus")):
        outcome = one(bed.provider.replace([wanted]), wanted)
        assert (outcome.kind, outcome.code) == (OutcomeKind.REJECTED, code)
    bed.settle()
    assert bed.truly_replaced() == []
    assert bed.controller().id == controller


def test_a_reboot_keeps_the_id(bed: Bed) -> None:
    node = bed.worker()
    assert one(bed.provider.reboot([node.id]), node) == Outcome.accepted()
    bed.settle()
    assert bed.truly_rebooted() == [node.id]
    assert successor(bed, node).id == node.id
    assert bed.truly_replaced() == []


def test_a_lost_reply_is_ambiguous_and_the_order_stands(bed: Bed) -> None:
    old = bed.worker()
    bed.lose_reply()
    assert one(bed.provider.replace([old.id]), old).kind is OutcomeKind.AMBIGUOUS
    bed.settle()
    assert successor(bed, old).id != old.id
    assert bed.truly_replaced() == [old.id]
    assert len(bed.calls()) == 1, "a mutation must never be repeated by the adapter"


def test_a_throttled_call_was_not_taken(bed: Bed) -> None:
    old = bed.worker()
    bed.throttle()
    refused = one(bed.provider.replace([old.id]), old)
    assert (refused.kind, refused.transient) == (OutcomeKind.REJECTED, True)
    assert len(bed.calls()) == 1, "a mutation must never be repeated by the adapter"
    bed.settle()
    assert bed.truly_replaced() == []
    assert one(bed.provider.replace([old.id]), old) == Outcome.accepted()


def test_a_missing_permission_is_permanent(bed: Bed) -> None:
    node = bed.worker()
    bed.deny()
    refused = one(bed.provider.reboot([node.id]), node)
    assert (refused.kind, refused.code) == (OutcomeKind.REJECTED, "AccessDeniedException")
    assert not refused.transient
    bed.settle()
    assert bed.truly_rebooted() == []


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("code", ["InternalServerError", ""])
def test_partial_failure_is_per_node(bed: Bed, code: str, accepted: bool) -> None:
    good, bad = bed.worker(0), bed.worker(1)
    bed.fail(bad.id, code, accepted=accepted)
    outcomes = bed.provider.replace([good.id, bad.id])
    assert set(outcomes) == {good.id, bad.id}
    assert outcomes[good.id] == Outcome.accepted()
    assert outcomes[bad.id].kind is OutcomeKind.AMBIGUOUS
    bed.settle()
    taken = {good.id, bad.id} if accepted else {good.id}
    assert set(bed.truly_replaced()) == taken


@pytest.mark.parametrize(
    ("code", "transient"),
    [("InvalidInstanceStatus", True), ("InstanceIdInUse", True), ("InstanceIdNotFound", False)],
)
def test_a_node_refused_in_a_batch_is_rejected(bed: Bed, code: str, transient: bool) -> None:
    good, bad = bed.worker(0), bed.worker(1)
    bed.fail(bad.id, code)
    outcome = bed.provider.reboot([bad.id, good.id])[bad.id]
    assert (outcome.kind, outcome.code) == (OutcomeKind.REJECTED, code)
    assert outcome.transient is transient
    bed.settle()
    assert bed.truly_rebooted() == [good.id]


def test_the_service_may_act_without_an_order(bed: Bed) -> None:
    old = bed.worker()
    bed.stick()
    assert bed.start_unrequested_recovery(old.id)
    assert not bed.start_unrequested_recovery(old.id)
    bed.until(lambda: successor(bed, old).status is InstanceStatus.PENDING)
    refused = one(bed.provider.replace([old.id]), old)
    assert (refused.kind, refused.code) == (OutcomeKind.REJECTED, "InstanceIdNotFound")
    bed.unstick()
    bed.settle()
    assert successor(bed, old).id != old.id
    assert bed.truly_replaced() == [old.id]
    assert not bed.start_unrequested_recovery(bed.controller().id)


def test_an_id_named_twice_is_ordered_once(bed: Bed) -> None:
    old = bed.worker()
    assert one(bed.provider.replace([old.id, old.id]), old) == Outcome.accepted()
    bed.settle()
    assert bed.truly_replaced() == [old.id]


def test_nothing_to_do_is_no_call(bed: Bed) -> None:
    assert bed.provider.replace([]) == {}
    assert bed.provider.reboot([]) == {}
    assert bed.calls() == []


def test_a_view_that_cannot_be_had_raises(bed: Bed) -> None:
    bed.unreadable(True)
    with pytest.raises(ServiceUnavailable) as caught:
        bed.provider.view()
    assert caught.value.hint
    bed.unreadable(False)
    assert len(bed.provider.view().instances) == 5


def test_without_capacity_a_replacement_fails_and_can_be_ordered_again(bed: Bed) -> None:
    old = bed.worker()
    bed.no_capacity()
    assert one(bed.provider.replace([old.id]), old) == Outcome.accepted()
    bed.settle()
    failed = successor(bed, old)
    assert failed.status is InstanceStatus.FAILURE
    assert "capacity" in failed.message
    reboot = one(bed.provider.reboot([failed.id]), failed)
    assert (reboot.kind, reboot.code) == (OutcomeKind.REJECTED, "InvalidInstanceStatus")
    assert one(bed.provider.replace([failed.id]), failed) == Outcome.accepted()
    bed.settle()
    fixed = successor(bed, old)
    assert fixed.status is InstanceStatus.RUNNING
    assert "capacity" in fixed.message, "the service's message is sticky"


def test_a_node_may_vanish_from_the_list_for_a_while(bed: Bed) -> None:
    node = bed.worker()
    assert node.node is not None
    bed.vanish(node.node, True)
    assert node.id not in bed.provider.view().instances
    assert one(bed.provider.reboot([node.id]), node) == Outcome.accepted()
    bed.vanish(node.node, False)
    assert node.id in bed.provider.view().instances


@pytest.mark.parametrize("kind", ["fake", "sagemaker"])
def test_more_than_25_go_out_in_chunks(kind: str) -> None:
    bed: FakeBed | EmulatorBed = FakeBed(60) if kind == "fake" else EmulatorBed(60)
    wanted = [i.id for i in bed.provider.view().instances.values() if not i.protected]
    outcomes = bed.provider.reboot(wanted)
    assert list(outcomes) == wanted
    assert set(outcomes.values()) == {Outcome.accepted()}
    assert [len(ids) for ids in bed.calls()] == [25, 25, 10]
    bed.settle()
    assert sorted(bed.truly_rebooted()) == sorted(wanted)
    if isinstance(bed, EmulatorBed):
        bed.close()
