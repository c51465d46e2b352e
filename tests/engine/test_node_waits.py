"""What a drained node waits for, in words."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.engine.node_waits import describe_node_wait_for_job
from hpctl.engine.status_view import make_cluster_status_view
from hpctl.engine.world import World
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.policy import NodeRecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.fakes.values import OWN, at, opened, slurm_job, slurm_node

DRAINED = slurm_node(1, flags=frozenset({"DRAIN"}), reason="hpctl:n-1 Xid 79")
CORDONED = SignalSeen(at(1), "n-1", "cordon_seen", "")
STUBBORN = {"requeue": False, "user": "alice", "end": at(3600)}


def world(*jobs: SlurmJob, urgency: Urgency = Urgency.NOW) -> World:
    state = replay_events([opened(urgency=urgency), CORDONED])
    slurm = SchedulerView(at(10), {"n1": DRAINED}, {job.id: job for job in jobs})
    return World(at(10), OWN, state, slurm=slurm)


def waits(*jobs: SlurmJob, urgency: Urgency = Urgency.NOW, policy=OWN) -> str:
    w = world(*jobs, urgency=urgency)
    return describe_node_wait_for_job(w.state.nodes["n-1"], w.slurm, policy, w.now)


def test_the_job_its_owner_and_its_time_limit_are_named():
    (line,) = make_cluster_status_view(world(slurm_job(3, **STUBBORN))).problems
    end = "ends at most 2026-03-01 13:00:00 UTC"
    assert f"Waits for job 3 of alice, not requeueable, {end}." in line


@pytest.mark.parametrize(
    ("end", "words"),
    [(None, "has no time limit"), (at(5), "was to end by 2026-03-01 12:00:05 UTC")],
)
def test_wait_distinguishes_a_job_without_a_limit_from_a_late_one(end, words):
    assert (
        waits(slurm_job(3, **{**STUBBORN, "end": end}))
        == f"job 3 of alice, not requeueable, {words}"
    )


def test_wait_names_the_longest_of_several_jobs():
    jobs = [slurm_job(3, **STUBBORN), slurm_job(4, **{**STUBBORN, "end": at(7200)})]
    assert waits(*jobs).startswith("job 4 of alice")
    assert waits(*jobs).endswith("; and 1 other job")
    endless = slurm_job(2, **{**STUBBORN, "end": None})
    assert waits(*jobs, endless).startswith(
        "job 2 of alice, not requeueable, has no time limit; and 2"
    )


def test_a_job_that_is_moved_is_not_waited_for():
    assert waits(slurm_job(3, user="bob")) == ""
    patient = waits(slurm_job(3, user="bob", end=at(60)), urgency=Urgency.AFTER_JOBS)
    assert patient.startswith("job 3 of bob, which may run to its end, ends at most")
    ends = replace(OWN, node=NodeRecoveryPolicy(unrecoverable_jobs=UnrecoverableJobAction.KILL))
    assert waits(slurm_job(3, **STUBBORN), policy=ends) == ""
