"""Steps that Slurm does not create: asked for again, then the allocation is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from hpctl.core.model import NodeName
from hpctl.core.run_policy import Action, RunPolicy
from hpctl.core.trouble import Kind
from hpctl.jobs.run.choose import Fitness
from hpctl.jobs.run.ending import Evidence
from hpctl.jobs.run.ground import Ground
from hpctl.jobs.run.history import History
from hpctl.jobs.run.launch import Launcher, Step
from hpctl.jobs.run.said import NotLaunched
from hpctl.jobs.run.settings import settings
from hpctl.jobs.run.supervise import MOST_NO_GRES, MOST_REFUSALS, REFUSED_S, Supervisor
from hpctl.jobs.run.treat import Treat
from hpctl.jobs.run.words import parse

NODES = (NodeName("n1"), NodeName("n2"))
STEP = cast(Step, SimpleNamespace(attempt=1, nodes=NODES))
FIT = Fitness(NODES, {})
NO_GRES = "Invalid generic resource (gres) specification"


def refused(text: str) -> Evidence:
    return Evidence(1, failed=[NotLaunched(None, text)])


def supervisor(*, recoverable: bool = True) -> Supervisor:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    given = settings(parse(["x"]), environ, RunPolicy())
    ground = SimpleNamespace(alive=True, recoverable=recoverable, healed=set())
    treat = Treat(given, cast(Ground, ground), History(None), cast(Launcher, None), lambda _: None)
    one = SimpleNamespace(refusals=0, treat=treat, say=lambda _: None)
    return cast(Supervisor, one)


@pytest.mark.parametrize(
    ("text", "most"),
    [("Job/step already completing or completed", MOST_REFUSALS), (NO_GRES, MOST_NO_GRES)],
)
def test_the_allocation_is_given_up_for_another_one(text: str, most: int) -> None:
    one = supervisor()
    for _ in range(most):
        again = Supervisor._uncreated(one, STEP, refused(text), FIT)
        assert again is not None
        assert again.answer is not None
        assert (again.trouble, again.answer.action) == (None, Action.STEP)
        assert (again.answer.after_s, again.answer.size) == (REFUSED_S, 2)
    last = Supervisor._uncreated(one, STEP, refused(text), FIT)
    assert last is not None
    assert last.trouble is not None
    assert last.answer is not None
    assert (last.trouble.kind, last.answer.action) == (Kind.NODE, Action.REQUEUE)
    assert last.why == f"Slurm creates no step in this allocation any more: {text}"


def test_a_job_that_cannot_be_requeued_is_held_for_somebody() -> None:
    one = supervisor(recoverable=False)
    one.refusals = MOST_NO_GRES
    last = Supervisor._uncreated(one, STEP, refused(NO_GRES), FIT)
    assert last is not None
    assert last.answer is not None
    assert last.answer.action is Action.HOLD


def test_a_step_that_ran_starts_the_count_afresh() -> None:
    one = supervisor()
    assert Supervisor._uncreated(one, STEP, refused(NO_GRES), FIT) is not None
    assert one.refusals == 1
    assert Supervisor._uncreated(one, STEP, Evidence(1), FIT) is None
    assert one.refusals == 0
