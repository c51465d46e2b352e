"""What a run's policy comes to at its bounds: ladders that cannot be climbed, waits, growing."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.jobs.decide import (
    PastJobFailure,
    RestartResources,
    decide_job_failure_action,
    is_restart_on_more_nodes_worthwhile,
    list_unreachable_escalation_actions,
)
from hpctl.vocabulary.run_policy import (
    RestartBackoff,
    RunAction,
    RunActionDecision,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import T0

STEP_ONLY = RestartResources(process=False, step=True, nodes=4, wanted=4)


def treat_crashes(*ladder: RunAction, **more: object) -> RunPolicy:
    treatment = replace(TroubleTreatment(ladder), **more)
    return RunPolicy(same_signature=99, treatments={TroubleKind.CRASH: treatment})


def fail(
    policy: RunPolicy, restarts: int, means: RestartResources = STEP_ONLY
) -> RunActionDecision:
    """Return the answer to a crash after so many restarts for crashes, one a minute."""

    def crash(minute: int) -> Trouble:
        at = T0 + timedelta(minutes=minute)
        return Trouble(TroubleKind.CRASH, at, "it crashed", signature=f"s{minute}", progress=7)

    past = [PastJobFailure(crash(minute), RunAction.STEP) for minute in range(restarts)]
    now = crash(restarts)
    return decide_job_failure_action(policy, past, now, means, now.at)


def test_a_rung_that_only_notifies_is_taken_where_no_restart_is_possible() -> None:
    answer = fail(treat_crashes(RunAction.PROCESS, RunAction.NOTIFY), 0)
    assert (answer.action, answer.why) == (RunAction.NOTIFY, "it crashed")


def test_a_rung_that_stops_the_job_is_reached_by_climbing_only() -> None:
    policy = treat_crashes(RunAction.PROCESS, RunAction.HOLD)
    answer = fail(policy, 0)
    assert answer.action is RunAction.HOLD
    assert answer.why == "hpctl: no further restart is possible: it crashed"


@pytest.mark.parametrize(("restarts", "least_s"), [(1, 10.0), (2, 20.0), (3, 25.0), (9, 25.0)])
def test_waits_double_up_to_the_longest(restarts: int, least_s: float) -> None:
    backoff = RestartBackoff(first_s=10.0, factor=2.0, cap_s=25.0)
    policy = treat_crashes(RunAction.STEP, backoff=True)
    policy = replace(policy, backoff=backoff, without_progress=99, restarts=99)
    assert least_s <= fail(policy, restarts).after_s <= 25.0


@pytest.mark.parametrize(
    ("window_s", "text"), [(7200.0, "2 h"), (5400.0, "90 min"), (90.0, "90 s"), (30.5, "30.5 s")]
)
def test_the_budget_s_window_is_written_for_a_person(window_s: float, text: str) -> None:
    policy = replace(treat_crashes(RunAction.STEP), window_s=window_s)
    assert fail(policy, 0).why.endswith(f"1 of {policy.restarts} in {text})")


@pytest.mark.parametrize(
    ("nodes", "have", "could", "remaining_s", "worth"),
    [
        (None, 2, 4, 1e6, False),
        ((1, 4), 2, 4, 1200.0, True),
        ((1, 4), 2, 4, 1199.0, False),
        ((1, 4), 4, 8, 1e6, False),
        ((1, 4), 0, 4, 1e6, False),
        ((1, 4), 2, 4, 0.0, False),
    ],
    ids=["fixed size", "it pays", "it does not", "at its largest", "no node", "at its end"],
)
def test_a_run_grows_where_the_restart_pays(
    nodes: tuple[int, int] | None, have: int, could: int, remaining_s: float, worth: bool
) -> None:
    """Half the nodes: half of the rest is saved, and 3 times the restart's 200 s is asked for."""
    policy = RunPolicy(nodes=nodes, grow_gain=3.0)
    assert is_restart_on_more_nodes_worthwhile(policy, have, could, remaining_s, 200.0) is worth


THREE = (RunAction.PROCESS, RunAction.STEP, RunAction.REQUEUE)


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (replace(treat_crashes(*THREE), without_progress=3), []),
        (
            replace(treat_crashes(*THREE), without_progress=1),
            ["on.crash.ladder: step, requeue is never reached: without_progress: 1 stops the job"],
        ),
        (
            treat_crashes(*THREE, max=2),
            ["on.crash.ladder: requeue is never reached: on.crash.max: 2 stops the job"],
        ),
        (
            replace(treat_crashes(*THREE, hold_same=True), same_signature=2),
            [
                "on.crash.ladder: step, requeue is reached only when the signature changes:"
                " hold_same with same_signature: 2 stops the job before; for a number of restarts"
                " set hold_same: false and max"
            ],
        ),
        (replace(treat_crashes(RunAction.STEP, hold_same=True), same_signature=2), []),
    ],
    ids=["all reached", "too few restarts", "the kind's bound", "same signature", "one rung"],
)
def test_rungs_that_are_never_reached_are_named(policy: RunPolicy, found: list[str]) -> None:
    assert list_unreachable_escalation_actions(policy) == found


def test_restarts_of_a_window_are_bounded_whatever_the_progress() -> None:
    policy = replace(treat_crashes(RunAction.STEP), restarts=2, without_progress=99)
    assert fail(policy, 1).action is RunAction.STEP
    answer = fail(policy, 2)
    assert answer.action is policy.find_last_resort_action(TroubleKind.CRASH)
    assert "2 restarts in 24 h" in answer.why
