"""What the daemon knows of a job under treatment: its supervisor's words, and its node's fate."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import JobReported, SignalSeen
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobReport, RequestedAction
from hpctl.vocabulary.node_recovery import NodeRecoverySignal
from hpctl.vocabulary.policy import NodeRecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.registration import EffectiveJobPolicy
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import OWN, at, attempt, node_name, opened, slurm_job, view_of

N1 = node_name(1)
REC = JobRecovery(
    "j-1", attempt(), "n-1", (N1,), at(0), JobRecoveryPhase.WATCHING, at(0), ran_on=(N1,)
)
WAIT = replace(OWN, node=NodeRecoveryPolicy(unrecoverable_jobs=UnrecoverableJobAction.WAIT))
KILL = replace(OWN, node=NodeRecoveryPolicy(unrecoverable_jobs=UnrecoverableJobAction.KILL))


def heard(seconds: float, restarts: int = 0, **changes) -> JobReported:
    return JobReported(at(seconds), JobReport(1, restarts, action=RunAction.STEP, **changes))


def facts_of(job=None, log=(), policy=OWN, *, rec=REC, **changes):
    job = slurm_job() if job is None else job
    return collect_job_recovery_facts(
        rec, view_of(jobs=[job], log=[opened(), *log], **changes), policy
    )


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ([], None),
        ([heard(-5, why="before it was hit")], None),
        ([heard(5, why="it restarts")], "it restarts"),
        ([heard(5, why="it restarts"), heard(6, 1, why="another run")], "it restarts"),
        ([heard(6, 1, why="another run")], None),
    ],
    ids=["silent", "before", "since", "another run's comes after", "another run's"],
)
def test_the_word_of_a_supervisor_counts_for_its_own_run_since_the_hit(log, found):
    report = facts_of(log=log).report
    assert (report and report.why) == found


NAN = Trouble(TroubleKind.CORRUPTION, at(6), "loss is NaN")


@pytest.mark.parametrize(
    ("restarts", "report", "asks"),
    [
        (0, heard(6, wish=RequestedAction.REQUEUE, why="of the treated run"), ""),
        (1, heard(6, wish=RequestedAction.REQUEUE, why="of the treated run"), ""),
        (1, heard(6, 1, trouble=NAN), ""),
        (1, heard(6, 1, wish=RequestedAction.REQUEUE, trouble=NAN), "a requeue: loss is NaN"),
        (1, heard(6, 1, wish=RequestedAction.HOLD, why="look at it"), "a hold: look at it"),
    ],
)
def test_a_wish_of_the_run_that_follows_is_known(restarts, report, asks):
    found = facts_of(slurm_job(restarts=restarts), [report]).asks
    assert found == (f"its supervisor asks for {asks}" if asks else "")


CORDONED = SignalSeen(at(1), "n-1", NodeRecoverySignal.CORDON_SEEN, "")
VACATED = SignalSeen(at(2), "n-1", NodeRecoverySignal.JOBS_GONE, "")
STUCK = slurm_job(requeue=False)


@pytest.mark.parametrize(
    ("job", "log", "policy", "changes", "stops"),
    [
        (None, [CORDONED], WAIT, {}, True),
        (None, [CORDONED, VACATED], WAIT, {}, False),
        (None, [CORDONED], WAIT, {"maintenance": {N1: "maint"}}, False),
        (STUCK, [CORDONED], WAIT, {}, False),
        (STUCK, [CORDONED], KILL, {}, True),
    ],
    ids=["closed", "vacated", "in maintenance", "waits for a job", "ends that job"],
)
def test_a_node_is_set_down_under_a_job_only_where_that_helps(job, log, policy, changes, stops):
    assert facts_of(job, log, policy, **changes).node_stops_it is stops


def test_a_node_that_is_treated_after_its_jobs_is_not_set_down():
    view = view_of(jobs=[slurm_job()], log=[opened(urgency=Urgency.AFTER_JOBS), CORDONED])
    assert not collect_job_recovery_facts(REC, view, WAIT).node_stops_it


def test_a_node_that_is_down_already_ends_even_a_job_that_cannot_be_requeued():
    view = view_of(jobs=[STUCK], log=[opened(), CORDONED])
    nodes = view.scheduler.nodes
    down = {**nodes, N1: replace(nodes[N1], state="DOWN")}
    view = replace(view, scheduler=replace(view.scheduler, nodes=down))
    assert collect_job_recovery_facts(REC, view, WAIT).node_stops_it


@pytest.mark.parametrize(
    ("ruled", "elastic", "exclude"),
    [
        ({}, False, ()),
        ({1: EffectiveJobPolicy(RunPolicy())}, False, ()),
        ({1: EffectiveJobPolicy(RunPolicy(nodes=(2, 8)))}, True, (N1,)),
    ],
)
def test_an_elastic_job_needs_only_its_least_number_of_nodes(ruled, elastic, exclude):
    """Of eight nodes it ran on all, and one is under treatment."""
    rec = replace(REC, nodes=8, phase=JobRecoveryPhase.RELEASED)
    job = slurm_job(state="PENDING", nodes=(), partition="all")
    found = facts_of(job, rec=rec, ruled=ruled)
    assert (found.elastic, found.exclude) == (elastic, exclude)
