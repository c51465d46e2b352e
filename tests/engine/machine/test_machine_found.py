"""What the model-based machine has found: the shortest sequences, played without chance."""

import pytest

from hpctl.vocabulary.job_recovery import RequestedAction
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.trouble import TroubleKind
from tests.engine.machine.job_rules import SAVES, SUPERVISED
from tests.engine.machine.test_machine import ClusterMachine
from tests.engine.machine.world import DEFECTS, Defect

OFF_THE_BUS = DEFECTS[0]
UNRECORDED_REMAPPING = next(d for d in DEFECTS if d.code == "64")
BEGUN = {"kill": False, "automatic": False, "budget": 2, "ghosts": False, "tests": "off"}


def _mark_outlives_a_clock_set_back(m: ClusterMachine) -> None:
    """By the clock it is younger than the boot of the instance that replaced the marked one."""
    m.begin(mode=OperatingMode.ASSIST, jobs=[(1, "", False)], **BEGUN)
    m.service_replaces_without_order(node=0, after=0.0)
    m.daemon_restarts()
    m.health_agent_marks(node=0, mark="Action:Reboot", drain=False, after=0.0, again=False)
    m.clock_jumps(seconds=-3600.0)


def _mark_on_a_node_that_is_being_replaced(m: ClusterMachine) -> None:
    """hpctl has heard only the instance that goes; the mark came when the next one was there."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **BEGUN)
    m.service_replaces_without_order(node=0, after=0.0)
    m.hardware_fails_and_is_marked(node=0, defect=OFF_THE_BUS, mark="Action:Reboot", early=False)


def _supervisor_continues_while_a_requeue_is_in_doubt(m: ClusterMachine) -> None:
    """It was silent for too long; the requeue was lost, and would have killed the step it started
    meanwhile."""
    m.begin(mode=OperatingMode.OWN, jobs=[(2, SUPERVISED, True)], **BEGUN)
    m.hardware_fails_under_a_supervised_job(node=0, code="79", after=3.0, answers=False)
    m.operator_drains(node=0, why="bad fan", after=0.5)
    m.slurm_loses_replies(before=1, after=0)
    m.daemon_sleeps(seconds=700.0)
    assert m.daemon.loop.state.open_jobs
    m.supervisor_tells(0, RequestedAction.NONE, TroubleKind.HANG, after_s=0.0, behind=0, after=3.0)
    assert m.world.slurm.jobs[1].restarts == 0


def _supervisor_takes_its_wish_back_before_the_requeue(m: ClusterMachine) -> None:
    m.begin(mode=OperatingMode.OWN, jobs=[(1, SAVES, True)], **BEGUN)
    m.slurm_loses_replies(before=1, after=0)
    m.supervisor_tells(
        0, RequestedAction.REQUEUE, TroubleKind.HANG, after_s=0.0, behind=0, after=0.0
    )
    m.supervisor_tells(0, RequestedAction.NONE, TroubleKind.HANG, after_s=0.0, behind=0, after=30.0)
    m.daemon_sleeps(seconds=700.0)
    assert m.world.slurm.jobs[1].restarts == 0


def _supervisor_wishes_again_what_it_took_back(m: ClusterMachine) -> None:
    m.begin(mode=OperatingMode.OWN, jobs=[(1, SAVES, True)], **BEGUN)
    m.slurm_loses_replies(before=1, after=0)
    for wish in (RequestedAction.HOLD, RequestedAction.NONE, RequestedAction.REQUEUE):
        m.supervisor_tells(0, wish, TroubleKind.HANG, after_s=0.0, behind=0, after=3.0)
    assert m.world.slurm.jobs[1].restarts == 1


def _operator_cancels_the_recovery_of_an_old_job(m: ClusterMachine) -> None:
    """Cancelled in its begin delay: the job waits that out, and is not treated once more."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, SAVES, True)], **BEGUN)
    m.supervisor_tells(
        0, RequestedAction.REQUEUE, TroubleKind.HANG, after_s=0.0, behind=0, after=0.0
    )
    m.daemon_sleeps(seconds=90_000.0)
    m.operator_cancels_a_job_recovery(number=1)


def _operator_cancels_while_the_job_is_completing(m: ClusterMachine) -> None:
    """For a day; only then does Slurm set its submit time anew."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, SAVES, True)], **BEGUN)
    m.supervisor_tells(
        0, RequestedAction.REQUEUE, TroubleKind.HANG, after_s=0.0, behind=0, after=0.0
    )
    m.operator_cancels_a_job_recovery(number=1)
    m.daemon_sleeps(seconds=90_000.0)


def _mark_hides_one_node_of_a_mass_event(m: ClusterMachine) -> None:
    """The mark is the more urgent rule, until our drain takes it off; then it comes once more."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **{**BEGUN, "budget": 4})
    m.many_fail(first=0, count=3, defect=UNRECORDED_REMAPPING, after=30.0)
    m.health_agent_marks(node=1, mark="Action:Reboot", drain=False, after=0.0, again=True)
    known = m.daemon.loop.state.nodes.values()
    assert {rec.node for rec in known} == {"n1", "n2", "n3"}, "closed: it is their own hardware"
    assert not any(rec.remedied for rec in known), "and a mass event, whatever one's mark says"


def _mark_with_a_fault_comes_after_a_return_and_a_clock_set_back(m: ClusterMachine) -> None:
    """Both look older than the return, and the fault is the more urgent rule."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **BEGUN)
    m.health_agent_marks(node=0, mark="Action:Reboot", drain=False, after=0.0, again=False)
    m.job_changes(how="fails", number=0)
    m.time_passes(seconds=30.0)
    m.hardware_fails(node=0, defect=OFF_THE_BUS, after=30.0)
    m.operator_tends_a_drained_node(number=1, verb="return", after=0.0)
    m.clock_jumps(seconds=90.0)
    m.clock_jumps(seconds=-3600.0)
    m.hardware_fails_and_is_marked(node=0, defect=OFF_THE_BUS, mark="Action:Reboot", early=False)


def _operator_takes_a_mark_off_before_the_drain_over_it(m: ClusterMachine) -> None:
    """The mark had closed the node, and the job was to leave it; the drain and the requeue were
    lost."""
    m.begin(mode=OperatingMode.OWN, jobs=[(2, SUPERVISED, True)], **BEGUN)
    m.slurm_loses_replies(before=2, after=0)
    m.health_agent_marks(node=0, mark="Action:Reboot", drain=False, after=0.0, again=True)
    assert m.daemon.loop.state.open_jobs
    m.operator_resumes(node=0, after=0.0)
    m.agent_hangs_for_minutes(node=0, times=4)
    assert m.world.slurm.jobs[1].restarts == 0
    assert m.world.slurm.node(m.world.slurm.nodes[m.world.names[0]]).in_service


def _job_starts_on_a_node_that_was_down_when_the_whole_was_read(m: ClusterMachine) -> None:
    """Jobs are read each time, and only the nodes concerned: the job's node was still DOWN."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **{**BEGUN, "automatic": True})
    m.hardware_fails(node=0, defect=Defect("48", reboot_cures=True, kills=True), after=0.0)
    m.cloud_misbehaves(n=1, what="stick")
    m.service_replaces_without_order(node=4, after=0.0)
    m.operator_drains(node=13, why="bad fan", after=0.0)
    m.user_submits(comment=SAVES, requeue=True, runtime=50000.0, size=2, after=0.0)
    m.health_agent_marks(node=14, mark="Action:Reboot", drain=False, after=0.0, again=False)
    m.user_submits(comment="", requeue=True, runtime=50000.0, size=3, after=0.0)
    m.operator_pauses(seconds=10.0, switch=False, after=0.0)
    m.user_submits(comment=SAVES, requeue=True, runtime=60.0, size=3, after=0.0)
    m.operator_resumes(node=5, after=0.0)
    m.daemon_sleeps(seconds=700.0)


def _test_of_a_node_takes_too_long(m: ClusterMachine) -> None:
    """Its result was lost: the reservation goes after the deadline, and then the recovery ends."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **{**BEGUN, "tests": "quick"})
    m.operator_orders(node=1, verb="replace-now", after=0.0)
    m.operator_pauses(seconds=100.0, switch=False, after=0.0)
    m.operator_resumes(node=0, after=30.0)
    m.network_misbehaves(delay=0, double=0, lose=2)
    m.daemon_sleeps(seconds=2000.0)


def _mark_of_a_replaced_instance_by_a_clock_ahead_of_the_services(m: ClusterMachine) -> None:
    """The mark looked younger than the launch of the instance that replaced the marked one."""
    m.begin(mode=OperatingMode.OWN, jobs=[(1, "", False)], **{**BEGUN, "budget": 4})
    m.clock_jumps(seconds=90.0)
    m.many_fail(after=0.0, count=3, defect=OFF_THE_BUS, first=2)
    m.slurm_is_away(after=0.0, seconds=700.0)
    m.hardware_fails_and_is_marked(node=0, defect=OFF_THE_BUS, mark="Action:Reboot", early=False)
    m.service_replaces_without_order(node=0, after=0.0)
    m.operator_pauses(after=0.0, seconds=40.0, switch=False)


def _mark_of_a_replaced_instance_while_the_cloud_is_away(m: ClusterMachine) -> None:
    """Only the cloud tells when the successor was launched, so its mark looked like a new one."""
    begun = {**BEGUN, "ghosts": True}
    m.begin(mode=OperatingMode.ASSIST, jobs=[(1, SAVES, False)], **begun)
    m.hardware_fails(node=4, defect=Defect("", lost=True), after=0.0)
    m.daemon_sleeps(seconds=700.0)
    m.cloud_misbehaves(n=2, what="stick")
    m.health_agent_marks(node=1, mark="Action:Reboot", drain=True, after=0.0, again=True)
    m.operator_drains(node=10, why="bad fan", after=0.0)
    m.service_replaces_without_order(node=10, after=0.0)
    m.daemon_sleeps(seconds=90000.0)
    defect = Defect("79", reboot_cures=True, slow=True)
    m.hardware_fails_and_is_marked(node=0, defect=defect, mark="Action:Reboot", early=True)
    m.cloud_is_away(seconds=10.0, after=0.0)
    m.daemon_restarts()


def _operators_leave_a_job_too_few_nodes(m: ClusterMachine) -> None:
    """Its recovery waits in the queue with it, and is right to."""
    m.begin(mode=OperatingMode.OWN, jobs=[(3, SAVES, True)], **BEGUN)
    m.hardware_fails(after=0.0, defect=OFF_THE_BUS, node=0)
    for node in range(2, len(m.world.names)):
        m.operator_drains(after=0.0, node=node, why="bad fan")


FOUND = (
    _operators_leave_a_job_too_few_nodes,
    _mark_of_a_replaced_instance_while_the_cloud_is_away,
    _mark_of_a_replaced_instance_by_a_clock_ahead_of_the_services,
    _mark_outlives_a_clock_set_back, _mark_on_a_node_that_is_being_replaced,
    _supervisor_continues_while_a_requeue_is_in_doubt,
    _supervisor_takes_its_wish_back_before_the_requeue, _supervisor_wishes_again_what_it_took_back,
    _operator_cancels_the_recovery_of_an_old_job, _operator_cancels_while_the_job_is_completing,
    _mark_hides_one_node_of_a_mass_event, _test_of_a_node_takes_too_long,
    _mark_with_a_fault_comes_after_a_return_and_a_clock_set_back,
    _operator_takes_a_mark_off_before_the_drain_over_it,
    _job_starts_on_a_node_that_was_down_when_the_whole_was_read,
)  # fmt: skip


@pytest.mark.parametrize("story", FOUND, ids=lambda f: f.__name__.strip("_"))
def test_former_failures_stay_fixed(story):
    machine = ClusterMachine()
    story(machine)
    machine.promises_hold()
    machine.teardown()


def test_a_successor_with_the_mark_of_its_predecessor_serves_again():
    """It is not treated for the mark, and not left to a person because of it."""
    machine = ClusterMachine()
    _mark_of_a_replaced_instance_while_the_cloud_is_away(machine)
    machine.teardown()
    marked = machine.world.names[1]
    assert machine.world.slurm.node(machine.world.slurm.nodes[marked]).in_service
