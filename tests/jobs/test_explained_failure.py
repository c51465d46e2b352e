"""`hpctl explain JOB`: the verdict on a run that failed."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.cli.features import make_explain_extensions
from hpctl.engine.explain_view import ExplainView, build_explain_view, make_job_explain_view
from hpctl.engine.journal.events import Event, GateBlocked, JobReported
from hpctl.engine.journal.state import replay_events
from hpctl.engine.world import World
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.hang import ENDED_GATE
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SlurmJob
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import N1, OWN, at, faulty, slurm_job, view_of

BUG = "rank 3: ValueError in loss (train.py): shapes differ"
FAILED = slurm_job(7, state="FAILED", comment="hpctl:{}", exit_code="1:0")


def crash(seconds: float, node: str) -> Trouble:
    return Trouble(TroubleKind.CRASH, at(seconds), BUG, "ValueError", node=node, rank=3, step=70)


def reported(trouble: Trouble, run: int) -> JobReported:
    report = JobReport(7, run, trouble, RunAction.REQUEUE)
    return JobReported(trouble.at, report, 1000)


def hold(gate: str, why: str, rule: str = "run-crash") -> GateBlocked:
    return GateBlocked(at(0), "7", gate, why, rule, known_as="7")


def world(*events: Event, job: SlurmJob = FAILED) -> World:
    view = view_of(jobs=[job])
    state = replay_events(events)
    return World(at(60), OWN, state, slurm=view.scheduler, assessments={N1: faulty(N1)})


def explain(known: World) -> ExplainView:
    parts = make_explain_extensions()
    found = build_explain_view(known, build_fault_rules(), "7", parts) or make_job_explain_view(
        known, {}, "7", parts
    )
    assert found is not None
    assert found.failure is not None
    return found


def test_the_same_bug_twice_is_the_program_s_and_not_retried() -> None:
    """The node of the second run has a fault, which the exception does not come from."""
    first, second = crash(-900, "n2"), crash(-30, N1)
    held = hold(ENDED_GATE, f"it is not restarted and stays FAILED: {BUG}")
    found = explain(world(reported(first, 0), reported(second, 1), held)).failure
    assert (found.cause, found.confidence, found.may_retry) == ("program", "high", False)
    assert (found.rank, found.node) == (3, N1)
    assert found.reasons[0] == BUG
    assert "the same failure twice (step 70, rank 3)" in found.reasons
    assert any(f"node {N1} is faulty (xid-79)" in reason for reason in found.reasons)


def test_a_failure_that_no_script_reported_is_judged_by_its_hold() -> None:
    held = hold(ENDED_GATE, "its script ended with exit code 1")
    found = explain(world(held)).failure
    assert (found.may_retry, found.reasons[-1]) == (False, "no retry: the answer is `end`")


def test_a_hold_that_time_opens_leaves_the_answer_to_the_policy() -> None:
    held = hold("pause", "paused by root")
    assert explain(world(held)).failure.may_retry


@pytest.mark.parametrize("since_s", [-10, 3600])
def test_a_reported_timeout_is_joined_with_the_nodes_of_the_job(since_s: float) -> None:
    timeout = Trouble(TroubleKind.NETWORK, at(-30), "a collective timed out", "timed out")
    known = world(reported(timeout, 0), job=replace(FAILED, restarts=0))
    known = replace(known, assessments={N1: faulty(N1, seconds=since_s)})
    found = explain(known).failure
    assert (found.cause, found.node) == (("node", N1) if since_s < 0 else ("link", None))


def test_a_running_job_without_trouble_has_no_verdict() -> None:
    running = slurm_job(7, comment="hpctl:{}", start=at(0) - timedelta(hours=1))
    view = make_job_explain_view(world(job=running), {}, "7", make_explain_extensions())
    assert view is not None
    assert view.failure is None
