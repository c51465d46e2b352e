"""Exclusions: which nodes hpctl keeps a job off, and when it lets them in again."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened, SignalSeen
from hpctl.jobs.advance import JobRecoveryFacts, advance_job_recovery
from hpctl.jobs.exclusions import (
    LIFT_AGAIN_S,
    can_job_start_without_nodes,
    is_job_blocked_by_node_exclusions,
    plan_node_exclusion_removals,
)
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.jobs.kind import plan_job_recoveries
from hpctl.vocabulary.demand import JobResourceRequest
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.recovery import RecoveryStepRecord, StepKind
from hpctl.vocabulary.slurm_facts import SchedulerView
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import OWN, at, does, moves, opened, slurm_job, slurm_node, view_of
from tests.unflawed import unflawed

WAITS = slurm_job(
    7, state="PENDING", nodes=(), restarts=1, partition="all", wants=1, reason="Resources",
    excluded=("n1", "n2"), admin_comment="site | hpctl:excluded=n1",
)  # fmt: skip
"""Its owner excludes n2."""


def lifts(job=WAITS, log=(), *, policy=OWN, seconds=0, **changes):
    view = view_of(jobs=[job], log=log, seconds=seconds, **changes)
    found = unflawed(plan_node_exclusion_removals(view, policy, (), at(seconds)))
    assert len(found) <= 1
    return found[0] if found else None


def nodes(**changes):
    """The view of Slurm in which n1 is changed."""
    every = {f"n{i}": slurm_node(i) for i in range(1, 9)}
    every["n1"] = slurm_node(1, **changes)
    return SchedulerView(at(0), every, {7: WAITS})


def test_a_node_that_serves_is_let_in_whatever_the_journal_has() -> None:
    found = lifts()
    assert isinstance(found, JobRecoveryOpened)
    assert (found.lift, found.attempt) == (("n1",), WAITS.attempt)
    assert "n1, in service and not under treatment" in found.why


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "RUNNING"}, {"flags": frozenset({"COMPLETING"})}, {"admin_comment": ""},
        {"admin_comment": "hpctl:excluded=n3"}, {"excluded": ("n2",)},
    ],
)  # fmt: skip
def test_exclusions_of_other_jobs_are_not_lifted(changes) -> None:
    assert lifts(replace(WAITS, **changes)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": frozenset({"DRAIN"})}, {"state": "DOWN"},
        {"flags": frozenset({"NOT_RESPONDING"})},
    ],
)  # fmt: skip
def test_a_node_that_does_not_serve_stays_out(changes) -> None:
    assert lifts(scheduler=nodes(**changes)) is None


def test_a_node_under_treatment_stays_out() -> None:
    assert lifts(log=[opened()]) is None


def left(seconds: float) -> JobRecoveryOpened:
    """The job's policy left n1 out then."""
    return JobRecoveryOpened(
        at(seconds), "j-1", JobAttempt(7, at(-3700), 0), "", (), "", exclude=("n1",)
    )


def test_a_node_that_the_jobs_policy_leaves_out_stays_out_while_its_budgets_look_back() -> None:
    ended = SignalSeen(at(-50), "j-1", "refused", "")
    assert lifts(log=[left(-60), ended]) is None
    assert lifts(log=[left(-86500), ended]) is not None
    treated = [opened(seconds=-55), SignalSeen(at(-40), "n-1", "operator_cancelled", "")]
    assert lifts(log=[left(-60), ended, *treated]) is not None


@pytest.mark.parametrize(
    ("policy", "changes", "gate"),
    [
        (replace(OWN, mode=OperatingMode.OBSERVE), {}, "observing"),
        (OWN, {"stopped": "the kill switch"}, "kill_switch"),
        (replace(OWN, partitions=frozenset({"other"})), {}, "not_allowed"),
    ],
)
def test_the_gates_of_runs_hold_it(policy, changes, gate) -> None:
    found = lifts(policy=policy, **changes)
    assert isinstance(found, GateBlocked)
    assert found.gate == gate


def test_refused_lift_is_repeated_later() -> None:
    first = lifts()
    log = [first, SignalSeen(at(0), first.recovery, "refused", "no")]
    assert lifts(log=log, seconds=LIFT_AGAIN_S - 1) is None
    assert lifts(log=log, seconds=LIFT_AGAIN_S) is not None


def test_lift_does_not_count_as_treatment_of_the_run() -> None:
    first = lifts()
    failed = replace(WAITS, state="FAILED", exit_code="1:0", end=at(5), comment="hpctl:{}")
    log = [first, SignalSeen(at(1), first.recovery, "refused", "no")]
    view = view_of(jobs=[failed], log=log, seconds=6)
    (again,) = plan_job_recoveries(view, OWN, {}, at(6)).opens
    assert (again.trouble.exit_code, again.action) == (1, "requeue")


def recovery(**changes) -> JobRecovery:
    values = {
        "id": "j-9", "attempt": WAITS.attempt, "cause": "", "bad_nodes": (), "opened": at(0),
        "phase": JobRecoveryPhase.HIT, "since": at(0), **changes,
    }  # fmt: skip
    return JobRecovery(**values)


def test_a_lift_is_one_step_and_is_over_when_it_is_seen() -> None:
    rec = recovery(lift=("n1",))
    do = does(advance_job_recovery(rec, JobRecoveryFacts(WAITS), OWN, at(1)))
    assert (do.kind, do.nodes) == (StepKind.LIFT, ("n1",))
    sent = replace(
        rec, steps=(RecoveryStepRecord(do.kind, 1, "7", at(1), Outcome.accepted(), at(1)),)
    )
    free = replace(WAITS, excluded=("n2",), admin_comment="site")
    for job in (free, replace(WAITS, state="RUNNING"), replace(free, state="RUNNING")):
        assert (
            moves(advance_job_recovery(sent, JobRecoveryFacts(job), OWN, at(2))).signal
            is JobRecoverySignal.CALLED_OFF
        )
    assert rec.has_ended_without_stopping_run


@pytest.mark.parametrize(
    ("size", "asks", "spared"),
    [
        (6, None, True),
        (7, None, False),
        (6, JobResourceRequest(features="fast"), False),
        (6, JobResourceRequest(features=""), True),
        (1, JobResourceRequest(named=True), False),
    ],
)
def test_a_node_is_excluded_only_where_the_job_could_start_without_it(size, asks, spared) -> None:
    """Of eight nodes its owner excludes n2."""
    job = replace(WAITS, excluded=("n2",), asks=asks)
    assert can_job_start_without_nodes(job, ("n1",), size, view_of()) is spared


@pytest.mark.parametrize(("size", "exclude"), [(6, ("n1",)), (7, ())])
def test_a_job_that_needs_the_bad_node_waits_without_an_exclusion(size, exclude) -> None:
    job = replace(WAITS, excluded=("n2",), admin_comment="")
    rec = recovery(bad_nodes=("n1",), cause="n-1", nodes=size, phase=JobRecoveryPhase.RELEASED)
    view = view_of(jobs=[job], log=[opened()], scheduler=nodes(flags=frozenset({"DRAIN"})))
    view = replace(view, scheduler=replace(view.scheduler, jobs={7: job}))
    assert collect_job_recovery_facts(rec, view, OWN).exclude == exclude


@pytest.mark.parametrize(("wants", "exclude"), [(6, ("n1",)), (7, ())])
def test_a_job_that_was_shrunk_needs_all_its_nodes_again(wants, exclude) -> None:
    job = replace(WAITS, excluded=("n2",), admin_comment="", wants=wants)
    rec = recovery(bad_nodes=("n1",), cause="n-1", nodes=1, phase=JobRecoveryPhase.RELEASED)
    view = view_of(jobs=[job], log=[opened()], scheduler=nodes(flags=frozenset({"DRAIN"})))
    view = replace(view, scheduler=replace(view.scheduler, jobs={7: job}))
    assert collect_job_recovery_facts(rec, view, OWN).exclude == exclude


@pytest.mark.parametrize(("requested", "exclude"), [(6, ("n1",)), (7, ())])
def test_a_job_that_lost_a_node_with_no_kill_needs_all_its_nodes_again(requested, exclude) -> None:
    """22.05.8 shows the nodes that it had last, until it starts, and what it needs as its TRES."""
    asks = JobResourceRequest(nodes=requested)
    job = replace(WAITS, excluded=("n2",), admin_comment="", wants=5, asks=asks)
    rec = recovery(bad_nodes=("n1",), cause="n-1", nodes=5, phase=JobRecoveryPhase.RELEASED)
    view = view_of(jobs=[job], log=[opened()], scheduler=nodes(flags=frozenset({"DRAIN"})))
    view = replace(view, scheduler=replace(view.scheduler, jobs={7: job}))
    assert collect_job_recovery_facts(rec, view, OWN).exclude == exclude


def test_a_job_that_slurm_cannot_start_is_given_every_node_that_hpctl_excluded() -> None:
    """Of 22.05.8 shrunk by `scontrol update NumNodes`: no field shows how many nodes it needs."""
    cannot = replace(WAITS, reason="BadConstraints", eligible=at(-1))
    last = RecoveryStepRecord(StepKind.START_NOW, 1, "7", at(0), Outcome.accepted(), at(0))
    rec = recovery(
        bad_nodes=("n1",), cause="n-1", nodes=1, phase=JobRecoveryPhase.STARTING, steps=(last,)
    )
    view = view_of(jobs=[cannot], log=[opened()], scheduler=nodes(flags=frozenset({"DRAIN"})))
    view = replace(view, scheduler=replace(view.scheduler, jobs={7: cannot}))
    facts = collect_job_recovery_facts(rec, view, OWN)
    assert (facts.exclude, facts.forgive) == ((), ("n1",))
    do = does(advance_job_recovery(rec, facts, OWN, at(2)))
    assert (do.kind, do.exclude, do.forgive) == (StepKind.START_NOW, (), ("n1",))
    # Its owner's exclusion is no cause to lift one: without hpctl's it is Slurm's to hold.
    theirs = replace(cannot, admin_comment="")
    assert not is_job_blocked_by_node_exclusions(theirs)


def test_a_job_that_slurm_cannot_start_is_given_the_node_that_its_policy_leaves_out() -> None:
    log = [left(-60), SignalSeen(at(-50), "j-1", "refused", "")]
    assert lifts(log=log) is None
    cannot = replace(WAITS, reason="BadConstraints")
    found = lifts(cannot, log=log)
    assert isinstance(found, JobRecoveryOpened)
    assert found.lift == ("n1",)
    corrupt = replace(left(-60), trouble=Trouble(TroubleKind.CORRUPTION, at(-61), "it differs"))
    assert lifts(cannot, log=[corrupt, *log[1:]]) is None


@pytest.mark.parametrize("flag", ["DYNAMIC_NORM", "DYNAMIC_FUTURE"])
def test_a_dynamic_node_under_treatment_is_left_to_its_drain(flag) -> None:
    """Once it is deleted, slurmctld refuses every change of a job that excludes it."""
    job = replace(WAITS, excluded=("n2",), admin_comment="")
    rec = recovery(bad_nodes=("n1",), cause="n-1", nodes=1, phase=JobRecoveryPhase.RELEASED)
    scheduler = nodes(flags=frozenset({"DRAIN", flag}))
    view = view_of(jobs=[job], log=[opened()], scheduler=scheduler)
    assert collect_job_recovery_facts(rec, view, OWN).exclude == ()
    assert collect_job_recovery_facts(replace(rec, exclude=("n3",)), view, OWN).exclude == ("n3",)
