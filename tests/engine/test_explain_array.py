"""What `explain` says of a whole array."""

from hpctl.engine.explain_view import build_explain_view
from hpctl.engine.journal.state import EngineState
from hpctl.engine.world import World
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.fakes.values import at, slurm_job


def make_task(number: int, state: str, tasks: str) -> SlurmJob:
    return slurm_job(job=number, state=state, array_job=5, array_task=tasks)


def explain_array(*tasks: SlurmJob) -> str:
    slurm = SchedulerView(at(0), jobs={job.id: job for job in tasks})
    view = build_explain_view(
        World(at(0), RecoveryPolicy(), EngineState(), slurm=slurm), build_fault_rules(), "5"
    )
    assert view is not None
    return view.headline


def test_explain_counts_each_task_of_an_array_once():
    requeued = make_task(7, "PENDING", "1")
    first_run = make_task(5, "PENDING", "1,4-6%2")
    running = make_task(8, "RUNNING", "2")
    done = make_task(9, "COMPLETED", "3")
    headline = explain_array(requeued, first_run, running, done)
    assert headline.endswith(": 1 COMPLETED, 4 PENDING, 1 RUNNING.")


def test_explain_counts_a_task_where_its_own_record_is():
    """The record of waiting tasks, read a moment earlier, can name a task that runs by now."""
    running, waiting = make_task(7, "RUNNING", "1"), make_task(5, "PENDING", "1,4")
    whole_list_is_cut = make_task(6, "PENDING", "...")
    assert explain_array(running, waiting).endswith(": 1 PENDING, 1 RUNNING.")
    assert explain_array(running, whole_list_is_cut).endswith(": 1 PENDING, 1 RUNNING.")
