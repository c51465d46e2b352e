"""When a smaller run grows again, and what follows a step that Slurm does not create."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from hpctl.core.model import NodeName
from hpctl.core.run_policy import Action, RunPolicy
from hpctl.core.trouble import Kind
from hpctl.jobs.run.allocation import AllocationState, Fitness
from hpctl.jobs.run.ending import Evidence
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.launch import RunningStep, StepLauncher
from hpctl.jobs.run.settings import settings
from hpctl.jobs.run.srun import NotLaunched, parse_srun
from hpctl.jobs.run.supervise import (
    MOST_NO_GRES,
    MOST_REFUSALS,
    REFUSED_S,
    REQUEUE_S,
    Room,
    StepSupervisor,
    grown,
)
from hpctl.jobs.run.trouble_handler import TroubleHandler

ELASTIC = RunPolicy(nodes=(6, 8), grow_gain=3.0)
HOUR = Room(have=6, inside=8, left_s=3600, restart_s=60)


def test_a_node_that_is_back_is_used_where_it_pays() -> None:
    answer = grown(ELASTIC, 8, HOUR)
    assert (answer.action, answer.size) == (Action.STEP, 8)


@pytest.mark.parametrize(
    "room",
    [
        replace(HOUR, left_s=600),  # 150 s won for a restart of 60 s: under three times
        replace(HOUR, inside=6),
        replace(HOUR, inside=6, idle=1, missing=2),
        replace(HOUR, inside=6, idle=9, missing=2, left_s=1800),
    ],
)
def test_else_it_goes_on_as_it_is(room: Room) -> None:
    assert grown(ELASTIC, 8, room) is None


def test_idle_nodes_outside_are_worth_a_requeue_only_with_its_delay() -> None:
    outside = replace(HOUR, inside=6, idle=2, missing=2, left_s=4 * 3 * (60 + REQUEUE_S))
    answer = grown(ELASTIC, 8, outside)
    assert answer.action is Action.REQUEUE
    assert grown(ELASTIC, 8, replace(outside, left_s=(outside.left_s or 0) - 10)) is None


NODES = (NodeName("n1"), NodeName("n2"))
STEP = cast(RunningStep, SimpleNamespace(attempt=1, nodes=NODES))
FIT = Fitness(NODES, {})
NO_GRES = "Invalid generic resource (gres) specification"


def refused(text: str) -> Evidence:
    return Evidence(1, failed=[NotLaunched(None, text)])


def supervisor(*, recoverable: bool = True) -> StepSupervisor:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    given = settings(parse_srun(["x"]), environ)
    allocation = SimpleNamespace(alive=True, recoverable=recoverable, healed=set())
    handler = TroubleHandler(
        given,
        cast(AllocationState, allocation),
        JobHistory(None),
        cast(StepLauncher, None),
        lambda _: None,
    )
    one = SimpleNamespace(refusals=0, handler=handler, say=lambda _: None)
    return cast(StepSupervisor, one)


@pytest.mark.parametrize(
    ("text", "most"),
    [("Job/step already completing or completed", MOST_REFUSALS), (NO_GRES, MOST_NO_GRES)],
)
def test_the_allocation_is_given_up_for_another_one(text: str, most: int) -> None:
    one = supervisor()
    for _ in range(most):
        again = StepSupervisor._uncreated(one, STEP, refused(text), FIT)
        assert (again.trouble, again.answer.action) == (None, Action.STEP)
        assert (again.answer.after_s, again.answer.size) == (REFUSED_S, 2)
    last = StepSupervisor._uncreated(one, STEP, refused(text), FIT)
    assert (last.trouble.kind, last.answer.action) == (Kind.NODE, Action.REQUEUE)
    assert last.why == f"Slurm creates no step in this allocation any more: {text}"


def test_a_job_that_cannot_be_requeued_is_held_for_somebody() -> None:
    one = supervisor(recoverable=False)
    one.refusals = MOST_NO_GRES
    last = StepSupervisor._uncreated(one, STEP, refused(NO_GRES), FIT)
    assert last.answer.action is Action.HOLD


def test_a_step_that_ran_starts_the_count_afresh() -> None:
    one = supervisor()
    assert StepSupervisor._uncreated(one, STEP, refused(NO_GRES), FIT) is not None
    assert one.refusals == 1
    assert StepSupervisor._uncreated(one, STEP, Evidence(1), FIT) is None
    assert one.refusals == 0
