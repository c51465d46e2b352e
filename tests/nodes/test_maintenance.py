"""What an admin's maintenance reservation holds, and what hpctl does meanwhile: it looks on."""

from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.capacity.kind import make_capacity_recovery_kind
from hpctl.engine.advance import advance_open_recoveries
from hpctl.engine.gates import build_recovery_gate_counts
from hpctl.engine.journal.events import GateBlocked, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.engine.maintenance import (
    ReservationReader,
    describe_maintenance_reservation,
    find_maintenance_reservations,
)
from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.engine.plan import plan_recoveries
from hpctl.engine.view import PlanningView
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.jobs.plan import plan_failed_run_recoveries
from hpctl.nodes.acceptance.daemon import ACCEPTANCE
from hpctl.nodes.actors import NodeFacts
from hpctl.nodes.advance import advance_node_recovery
from hpctl.slurm.cli import parse_reservations
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.change import ChangeKind, ChangeOpened
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.node_recovery import ENDS, NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode, SlurmReservation
from tests.fakes.values import (
    FAULT,
    OWN,
    at,
    faulty,
    generation,
    moves,
    opened,
    slurm_job,
    slurm_node,
    view_of,
)
from tests.unflawed import unflawed

LINE = (
    "ReservationName=bios StartTime=2026-03-01T12:00:00 EndTime=2026-03-01T13:00:00"
    " Duration=01:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=32 Features=(null) PartitionName=(null)"
    " Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root Groups=(null) State=ACTIVE\n"
    "ReservationName=hers StartTime=2026-03-01T12:00:00 EndTime=2026-03-01T13:00:00"
    " Duration=01:00:00 Nodes=n3 NodeCnt=1 CoreCnt=16 Features=(null) PartitionName=(null)"
    " Flags=SPEC_NODES TRES=cpu=16 Users=eve Groups=(null) State=ACTIVE\n"
)
BIOS = SlurmReservation("bios", ("n1", "n2"), at(0), at(3600), True)
BASE = replay_events([opened()]).nodes[opened().recovery]
OURS = slurm_node(1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason(BASE.id, "Xid 79"))
INSTANCE = Instance("i-n1", InstanceStatus.RUNNING, node=OURS.name)
FACTS = NodeFacts(OURS, INSTANCE, provider_fresh=True, provider_present=True, heard=generation())
HELD = replace(FACTS, maintenance="bios holds the node")
WAITING = [p for p in NodeRecoveryPhase if p not in ENDS]


def slurm(*reservations: SlurmReservation, nodes: tuple[SlurmNode, ...] = ()) -> SchedulerView:
    listed = {r.name: r for r in reservations} if reservations else None
    return SchedulerView(at(0), {n.name: n for n in nodes}, reservations=listed)


def test_reservations_are_read_with_their_times_and_the_flag_maint():
    assert parse_reservations(LINE) == {
        "bios": BIOS,
        "hers": SlurmReservation("hers", ("n3",), at(0), at(3600)),
    }


@pytest.mark.parametrize(
    ("seconds", "holds"), [(-301, False), (-300, True), (0, True), (3599, True), (3600, False)]
)
def test_a_reservation_holds_its_nodes_from_shortly_before_its_start_until_its_end(seconds, holds):
    assert bool(find_maintenance_reservations(slurm(BIOS), 300, at(seconds))) is holds


def test_only_a_maintenance_reservation_that_is_not_hpctls_own_holds_a_node():
    others = [replace(BIOS, maintenance=False)]
    others += [replace(BIOS, name=name) for name in ("hpctl-spares-workers", "hpctl-accept-n-1-1")]
    for other in others:
        assert find_maintenance_reservations(slurm(other), 0, at(1)) == {}


def test_a_node_with_the_flag_alone_is_held_by_a_reservation_without_a_name():
    shown = slurm(nodes=(slurm_node(1, flags=frozenset({"MAINTENANCE", "RESERVED"})),))
    found = find_maintenance_reservations(shown, 0, at(0))
    assert (
        describe_maintenance_reservation(found["n1"], at(0))
        == "a maintenance reservation holds the node"
    )
    assert find_maintenance_reservations(replace(shown, reservations={}), 0, at(0)) == {}, (
        "the flag is late"
    )


def test_the_text_names_the_reservation_its_end_and_a_start_to_come():
    ends = "the maintenance reservation bios holds the node until 2026-03-01 13:00:00 UTC"
    assert describe_maintenance_reservation(BIOS, at(1)) == ends
    assert "bios begins at 2026-03-01 12:00:00 UTC" in describe_maintenance_reservation(
        BIOS, at(-1)
    )


class Source:
    """Counts how often it is asked."""

    asked = 0

    def reservations(self) -> dict[str, SlurmReservation]:
        self.asked += 1
        return {BIOS.name: BIOS}


def test_reservations_are_asked_for_only_where_a_node_is_faulty_treated_or_flagged():
    source = Source()
    watch = ReservationReader(source)
    assert watch.attach(slurm(), ()).reservations is None
    assert source.asked == 0
    assert watch.attach(slurm(), {"n1"}).reservations == {BIOS.name: BIOS}
    watch.attach(slurm(), {"n1"})
    assert source.asked == 1, "asked again within FRESH_S"
    watch.attach(slurm(), {"n1", "n2"})
    assert source.asked == 2, "a node whose recovery may open now"


def test_a_node_with_the_flag_has_its_reservation_named():
    source = Source()
    shown = slurm(nodes=(slurm_node(1, flags=frozenset({"MAINTENANCE"})),))
    assert ReservationReader(source).attach(shown, ()).reservations
    assert source.asked == 1


def held_view(**changes) -> PlanningView:
    return view_of(maintenance={"n1": BIOS}, **changes)


def decided(view: PlanningView, now: datetime):
    return plan_recoveries(view, OWN, build_fault_rules(), {}, now, ())


def test_the_gate_blocks_a_faulty_node_and_lets_it_pass_when_the_reservation_has_ended():
    (hold,) = decided(held_view(sick=[faulty()]), at(0)).holds
    assert (hold.target, hold.gate) == ("n1", "maintenance")
    assert "bios" in hold.why
    assert [o.generation.node for o in decided(view_of(sick=[faulty()]), at(0)).opens] == ["n1"]


def test_an_order_of_an_operator_is_blocked_too_and_no_approval_lifts_it():
    (hold,) = decided(held_view(sick=[faulty()]), at(0)).holds
    assert not hold.approvable


def test_faults_that_show_during_maintenance_count_for_no_mass_event():
    sick = [faulty(f"n{i}") for i in (1, 2, 3)]
    busy = view_of(sick=sick, maintenance={"n2": BIOS, "n3": BIOS})
    assert build_recovery_gate_counts(busy, (), OWN, at(0)).seen[FAULT.rule] == {"n1": at(-10)}
    assert [o.generation.node for o in decided(busy, at(0)).opens] == ["n1"]


def test_an_open_recovery_is_shown_as_held_back():
    holds = decided(held_view(log=[opened()]), at(0)).holds
    assert [(h.target, h.gate) for h in holds] == [("n1", "maintenance")]
    assert holds[0].why.endswith("and its recovery waits")


def in_phase(phase: NodeRecoveryPhase, **changes) -> NodeRecovery:
    """A recovery in a phase, which has seen its maintenance begin."""
    rec = replace(BASE, phase=phase, **changes)
    return rec.on(NodeRecoverySignal.MAINTENANCE_BEGAN, at(0), "bios")


@pytest.mark.parametrize("phase", WAITING)
def test_the_beginning_and_the_end_are_written_down_once_and_change_no_phase(phase):
    rec = replace(BASE, phase=phase)
    began = moves(advance_node_recovery(rec, HELD, OWN, at(1)))
    assert began.signal is NodeRecoverySignal.MAINTENANCE_BEGAN
    held = rec.on(began.signal, at(1), began.why)
    assert held.phase is phase
    again = advance_node_recovery(held, HELD, OWN, at(2))
    assert not (
        isinstance(again, RecoveryPhaseMove)
        and again.signal is NodeRecoverySignal.MAINTENANCE_BEGAN
    )
    ended = moves(advance_node_recovery(held, FACTS, OWN, at(3000)))
    assert ended.signal is NodeRecoverySignal.MAINTENANCE_ENDED
    over = held.on(ended.signal, at(3000), ended.why)
    assert (over.phase, over.is_in_maintenance) == (phase, False)
    assert find_node_recovery_phase_deadline(over, OWN) > at(3000), (
        "the phase has its whole time again"
    )


@pytest.mark.parametrize("phase", WAITING)
def test_no_deadline_passes_and_nothing_is_done_to_the_node(phase):
    held = in_phase(phase)
    nodes = [OURS, replace(OURS, state="DOWN")]
    for node in nodes:
        facts = replace(HELD, slurm=node, assessment=faulty(seconds=20))
        for seconds in (1, 10_000_000):
            answer = advance_node_recovery(held, facts, OWN, at(seconds))
            escalates = isinstance(answer, RecoveryPhaseMove) and answer.signal in (
                NodeRecoverySignal.DEADLINE,
                NodeRecoverySignal.NEEDS_HUMAN,
                NodeRecoverySignal.FAULT_AGAIN,
                NodeRecoverySignal.REBOOT_IN_VAIN,
            )
            assert not escalates, answer
            assert isinstance(answer, RecoveryPhaseMove | WaitDecision), answer


def test_a_reboot_in_doubt_is_still_observed():
    doubt = RecoveryStepRecord(StepKind.REBOOT, 1, "i-n1", at(0))
    held = in_phase(NodeRecoveryPhase.VACATED, steps=(doubt,))
    assert isinstance(advance_node_recovery(held, HELD, OWN, at(10_000)), WaitDecision), (
        "it is not sent again"
    )
    booted = replace(HELD, heard=generation(boot=2))
    assert (
        moves(advance_node_recovery(held, booted, OWN, at(5))).signal
        is NodeRecoverySignal.REMEDY_ACCEPTED
    )


def test_an_operator_who_resumes_the_node_in_maintenance_wins():
    resumed = replace(HELD, slurm=slurm_node(1, flags=frozenset({"MAINTENANCE"})))
    answer = moves(advance_node_recovery(in_phase(NodeRecoveryPhase.VACATED), resumed, OWN, at(5)))
    assert answer.signal is NodeRecoverySignal.OPERATOR_TOOK_OVER


def test_the_reservation_of_a_test_of_hpctls_own_is_deleted_nevertheless():
    held = in_phase(NodeRecoveryPhase.ACCEPTING)
    failed = held.on(NodeRecoverySignal.OPERATOR_CANCELLED, at(1), "cancelled")
    answer = advance_node_recovery(failed, replace(HELD, held=True), OWN, at(2), ACCEPTANCE)
    assert answer.kind is StepKind.UNRESERVE


def test_a_test_that_ended_before_its_maintenance_keeps_its_verdict():
    rec = replace(BASE, phase=NodeRecoveryPhase.ACCEPTING).on(
        NodeRecoverySignal.TEST_PASSED, at(0), "3 passed"
    )
    later = rec.on(NodeRecoverySignal.MAINTENANCE_BEGAN, at(1), "bios")
    assert later.newest_test_result == (NodeRecoverySignal.TEST_PASSED, "3 passed")


# Jobs.


def hit(job, **changes):
    view = held_view(sick=[faulty()], jobs=[job], **changes)
    found = unflawed(plan_failed_run_recoveries(view, OWN, (), at(0)))
    return found[0] if found else None


def test_a_run_on_a_faulty_node_in_maintenance_is_requeued_registered_or_not():
    for comment in ("", 'hpctl:{"ckpt":"/ckpt"}'):
        found = hit(slurm_job(comment=comment, partition="all"))
        assert not isinstance(found, GateBlocked)
        assert found.trouble.node == "n1"
        assert "in maintenance" in found.why


def test_a_run_that_ended_with_the_fault_is_requeued_and_an_older_one_is_not():
    ended = slurm_job(state="FAILED", exit_code="1:0", end=at(-11), partition="all")
    assert hit(ended) is not None
    assert hit(replace(ended, end=at(-600))) is None


def test_what_the_admin_runs_in_the_reservation_is_left_alone():
    assert hit(slurm_job(start=at(1), partition="all")) is None


def test_a_run_with_a_supervisor_is_left_to_it():
    registered = slurm_job(comment='hpctl:{"supervised":true}', partition="all")
    assert hit(registered) is None


def test_a_fault_that_lets_jobs_end_hits_no_run():
    mild = faulty(fault=replace(FAULT, urgency=Urgency.AFTER_JOBS))
    view = held_view(sick=[mild], jobs=[slurm_job(partition="all")])
    assert unflawed(plan_failed_run_recoveries(view, OWN, (), at(0))) == []


def test_a_job_recovery_whose_node_falls_into_maintenance_requeues_the_job_itself():
    from hpctl.engine.journal.events import JobRecoveryOpened
    from tests.fakes.values import attempt

    log = [opened(), JobRecoveryOpened(at(0), "j-1", attempt(), "n-1", ("n1",), "its node")]
    drained = {"n1": replace(OURS, reason=format_hpctl_node_reason("n-1", "Xid 79"))}
    for node in (drained, {"n1": slurm_node(1)}):
        shown = SchedulerView(at(0), node, {1: slurm_job()})
        held = held_view(log=log, sick=[faulty()], scheduler=shown)
        facts = collect_job_recovery_facts(held.state.jobs["j-1"], held, OWN)
        assert (facts.cordoned, facts.node_stops_it) == (True, False)
    free = view_of(log=log, sick=[faulty()], scheduler=SchedulerView(at(0), drained, shown.jobs))
    assert collect_job_recovery_facts(free.state.jobs["j-1"], free, OWN).node_stops_it


@pytest.mark.parametrize(("held", "steps"), [(True, []), (False, [StepKind.TEST])])
def test_a_burn_in_takes_no_step_on_a_node_in_maintenance(held, steps, monkeypatch):
    begin = StepStartDecision(StepKind.TEST, "hpctl-burn-in-b-1", 1)
    monkeypatch.setattr("hpctl.capacity.kind.decide_next_capacity_change_step", lambda *_: begin)
    log = [ChangeOpened(at(0), "b-1", ChangeKind.BURN_IN, "workers", "idle", node="n1")]
    view = view_of(log=log, maintenance={"n1": BIOS} if held else {})
    kind = make_capacity_recovery_kind(lambda *_: {})
    assert [due.do.kind for due in advance_open_recoveries(view, OWN, at(3), (kind,)).due] == steps


def test_the_end_of_a_maintenance_is_replayed():
    log = [
        opened(),
        SignalSeen(at(1), "n-1", "maintenance_began", "bios"),
        SignalSeen(at(2), "n-1", "maintenance_ended", ""),
    ]
    assert not replay_events(log).nodes["n-1"].is_in_maintenance
    assert replay_events(log[:2]).nodes["n-1"].is_in_maintenance
