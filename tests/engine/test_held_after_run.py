"""A job that Slurm holds as it requeues it: what `hpctl explain` and `hpctl status` show."""

import pytest
from msgspec.structs import replace

from hpctl.engine.explain_view import make_job_explain_view
from hpctl.engine.journal.state import replay_events
from hpctl.engine.status_view import make_cluster_status_view
from hpctl.engine.world import World
from hpctl.vocabulary.slurm_facts import CANNOT_START, REQUEUED_AND_HELD, SchedulerView, SlurmJob
from tests.fakes.values import OWN, at, slurm_job, slurm_node

HELD = slurm_job(
    state="PENDING", nodes=(), restarts=1, flags=frozenset({"REQUEUE_HOLD"}), exit_code="3:0",
    reason=REQUEUED_AND_HELD, comment='hpctl:{"policy":{"restarts":2}}',
)  # fmt: skip
LISTED = "job 1 is held by Slurm since its last run ended: hpctl explain 1"


def world(job: SlurmJob) -> World:
    nodes = {f"n{i}": slurm_node(i) for i in (1, 2)}
    return World(at(0), OWN, replay_events([]), slurm=SchedulerView(at(0), nodes, {job.id: job}))


@pytest.mark.parametrize("comment", [HELD.comment, ""])
def test_explain_says_since_when_why_and_what_a_person_does(comment: str) -> None:
    found = make_job_explain_view(world(replace(HELD, comment=comment)), {}, "1")
    assert found is not None
    assert found.next is not None
    assert "Slurm holds it since its last run ended with exit code 3:0" in found.headline
    assert "--requeue=expedite" in found.headline
    assert found.next.what == "`scontrol release 1` to run it again, or `scancel 1`"


def test_status_lists_only_registered_jobs() -> None:
    assert LISTED in make_cluster_status_view(world(HELD)).problems
    by_exit_code = replace(HELD, flags=frozenset({"SPECIAL_EXIT"}), reason="JobHeldUser")
    assert LISTED in make_cluster_status_view(world(by_exit_code)).problems
    others = (
        replace(HELD, comment=""),
        replace(HELD, reason="JobHeldUser"),
        replace(HELD, reason="BeginTime"),
        replace(HELD, exit_code="0:15"),
        replace(HELD, exit_code="143:0"),
    )
    assert not [job for job in others if LISTED in make_cluster_status_view(world(job)).problems]


STUCK = slurm_job(
    state="PENDING", nodes=(), exit_code="0:0", reason=CANNOT_START,
    comment='hpctl:{"policy":{"restarts":2}}',
)  # fmt: skip


@pytest.mark.parametrize("job", [HELD, STUCK], ids=["after its run", "could not start"])
def test_status_says_that_a_held_job_waits_for_a_person(job: SlurmJob) -> None:
    view = make_cluster_status_view(world(job))
    (task,) = view.person_tasks
    assert task.targets == ("1",)
    assert "scontrol release 1" in task.commands
    assert view.other_problems == []


def test_a_job_that_slurm_could_not_start_is_a_problem() -> None:
    (line,) = make_cluster_status_view(world(STUCK)).problems
    assert line.startswith("job 1 is held by Slurm because it could not start it")
    found = make_job_explain_view(world(STUCK), {}, "1")
    assert found is not None
    assert found.next is not None
    assert "Reason BadConstraints, priority 0" in found.headline
    assert "`scontrol hold 1` and `scontrol release 1`" in found.next.what


@pytest.mark.parametrize("other", [{"comment": ""}, {"reason": "Resources"}, {"state": "RUNNING"}])
def test_another_job_than_a_registered_one_that_slurm_holds_is_no_problem(other) -> None:
    view = make_cluster_status_view(world(replace(STUCK, **other)))
    assert (view.problems, view.person_tasks) == ((), ())
