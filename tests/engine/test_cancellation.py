"""When a job was canceled, and by whom, in `hpctl explain`."""

import pytest
from msgspec.structs import replace

from hpctl.engine.cancellation import add_cancellation_details, find_canceled_target_job
from hpctl.engine.explain_view import ExplainView, make_job_explain_view
from hpctl.engine.journal.state import EngineState
from hpctl.engine.world import World
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.fakes.values import at, slurm_job

CANCELED = slurm_job(state="CANCELLED", end=at(-60))


def world(job: SlurmJob) -> World:
    return World(
        at(0), RecoveryPolicy(), EngineState(), slurm=SchedulerView(at(0), jobs={job.id: job})
    )


def show(job: SlurmJob) -> ExplainView:
    view = make_job_explain_view(world(job), {}, "1")
    assert view is not None
    return view


@pytest.mark.parametrize("state", ["RUNNING", "FAILED", "COMPLETING", "PENDING"])
def test_no_other_job_was_canceled(state: str) -> None:
    assert find_canceled_target_job(world(replace(CANCELED, state=state)), "1") is None
    assert find_canceled_target_job(world(CANCELED), "2") is None
    assert find_canceled_target_job(world(CANCELED), "1") == CANCELED


def test_the_account_is_named_where_it_is_known() -> None:
    when = f"{at(-60):%Y-%m-%d %H:%M:%S} UTC"
    known = add_cancellation_details(show(CANCELED), CANCELED, "ann").headline
    assert known.endswith(f"Job 1 was canceled at {when} by ann.")
    unknown = add_cancellation_details(show(CANCELED), CANCELED, "").headline
    assert unknown.endswith(
        f"canceled at {when}; Slurm tells by whom only where slurmdbd keeps its accounting."
    )


def test_a_job_whose_end_is_not_known_is_completing() -> None:
    job = replace(CANCELED, state="COMPLETING", flags=frozenset({"COMPLETING"}))
    assert "is COMPLETING" in show(job).headline
