"""A job that stays COMPLETING: who keeps it so, what hpctl does, and on which releases."""

import pytest
from msgspec.structs import replace

from hpctl.engine.advance import advance_open_recoveries
from hpctl.engine.completing import (
    describe_completing_job,
    describe_stuck_completing_fix,
    find_stuck_completing_jobs,
    is_job_freed_by_node_down,
)
from hpctl.engine.explain_view import build_explain_view, make_job_explain_view
from hpctl.engine.journal.events import JobRecoveryOpened, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.engine.plan import plan_recoveries
from hpctl.engine.status_view import make_cluster_status_view
from hpctl.engine.world import World
from hpctl.faults.catalogue import build_fault_rules
from hpctl.nodes.facts import make_node_facts
from hpctl.nodes.kind import make_node_recovery_kind
from hpctl.nodes.stuck import STUCK, find_stuck_node_candidates
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.fakes.values import OWN, at, attempt, opened, slurm_job, slurm_node, view_of

CG = frozenset({"COMPLETING"})
ENDED = slurm_job(state="FAILED", flags=CG, end=at(0), completing_on=("n2",))
QUEUED = slurm_job(state="PENDING", flags=CG, submit=at(0), restarts=1, completing_on=("n2",))
TREATED = [
    JobRecoveryOpened(at(0), "j-1", attempt(), "", (), "it crashed"),
    SignalSeen(at(1), "j-1", "stop_wanted", ""),
]
SHOWN, LATE = OWN.job.completing_shown_s, OWN.job.completing_deadline_s


def slurm(*jobs: SlurmJob, version: str = "22.05.8", **nodes) -> SchedulerView:
    known = {f"n{i}": slurm_node(i, version=version) for i in (1, 2, 3)} | nodes
    return SchedulerView(at(0), known, {job.id: job for job in jobs})


def stuck(*jobs: SlurmJob, log=TREATED, seconds=LATE, treated=(), version="22.05.8", **nodes):
    view = view_of(log=log, scheduler=slurm(*jobs, version=version, **nodes))
    return [
        (c.node.name, c.fault.rule)
        for c in find_stuck_node_candidates(view, OWN, treated, at(seconds))
    ]


def test_completing_lasts_since_the_end_or_the_requeue_and_only_unfinished_nodes_keep_it():
    assert (ENDED.completing_since, ENDED.completing_nodes) == (at(0), ("n2",))
    assert QUEUED.completing_since == at(0)
    running = slurm_job()
    assert (running.completing_since, running.completing_nodes) == (None, ())
    assert replace(ENDED, completing_on=()).completing_nodes == ("n1", "n2"), "where it is not read"


def test_a_job_is_shown_once_it_has_been_completing_for_long_enough():
    assert find_stuck_completing_jobs([ENDED], SHOWN, at(SHOWN - 1)) == []
    assert find_stuck_completing_jobs([ENDED, slurm_job(2)], SHOWN, at(SHOWN)) == [ENDED]
    assert "on n2 have not ended" in describe_completing_job(ENDED, at(SHOWN))


@pytest.mark.parametrize(
    ("version", "freed"),
    [
        ("22.05.8", False), ("23.02.7", False), ("23.11.10", False), ("23.11.11", True),
        ("24.05.5", False), ("24.05.6", True), ("24.11.0", False), ("24.11.1", True),
        ("25.05.0", True), ("26.05.4", True), ("", False), ("24.11", False),
    ],
)  # fmt: skip
def test_down_frees_a_requeued_job_on_releases_that_finish_the_requeue(version, freed):
    assert is_job_freed_by_node_down(QUEUED, slurm(version=version)) is freed
    assert is_job_freed_by_node_down(ENDED, slurm(version=version)), "its requeue is still to come"


def test_a_node_is_drained_after_the_deadline_where_a_restart_waits_for_it():
    assert stuck(ENDED) == [("n2", STUCK.rule)]
    assert stuck(ENDED, seconds=LATE - 1) == []
    assert stuck(ENDED, log=()) == [], "no restart waits"
    assert stuck(QUEUED, log=(), version="25.05.1") == [("n2", STUCK.rule)]
    assert stuck(QUEUED, version="22.05.8") == [], "DOWN would break the job"


def test_a_node_that_is_treated_dead_or_down_is_not_a_candidate():
    assert stuck(ENDED, treated={"n2"}) == []
    assert stuck(ENDED, n2=slurm_node(2, state="DOWN")) == []
    assert stuck(ENDED, n2=slurm_node(2, flags=frozenset({"NOT_RESPONDING"}))) == []


def test_an_operator_who_took_the_node_back_is_not_overruled_for_the_same_wait():
    log = [*TREATED, opened("n-1", "n2", LATE, rule=STUCK.rule)]
    log.append(
        SignalSeen(
            at(LATE + 1), "n-1", "operator_took_over", "another user or tool resumed the node"
        )
    )
    assert stuck(ENDED, log=log, seconds=LATE + 9) == []
    again = replace(ENDED, end=at(LATE + 5))
    assert stuck(again, log=log, seconds=2 * LATE + 9) == [("n2", STUCK.rule)]


def test_the_gates_judge_it_as_any_other_candidate():
    view = view_of(log=TREATED, scheduler=slurm(ENDED), seconds=LATE)
    view = replace(view, scheduler=replace(view.scheduler, as_of=at(LATE)))
    (opening,) = plan_recoveries(
        view, OWN, build_fault_rules(), {}, at(LATE), (make_node_recovery_kind(),)
    ).opens
    assert (opening.generation.node, opening.rule) == ("n2", STUCK.rule)
    assert opening.urgency is Urgency.AFTER_JOBS


def cordoned(*jobs: SlurmJob, seconds: float, version="22.05.8", urgency=Urgency.AFTER_JOBS):
    """The step that a drained n2 takes next."""
    log = [
        *TREATED,
        opened("n-1", "n2", 0, rule=STUCK.rule, urgency=urgency),
        SignalSeen(at(1), "n-1", "cordon_seen", ""),
    ]
    drained = slurm_node(
        2, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason("n-1", "x"), version=version
    )
    shown = slurm(*jobs, version=version, n2=drained)
    view = view_of(log=log, scheduler=replace(shown, as_of=at(seconds)), seconds=seconds)
    return [
        d.do.kind
        for d in advance_open_recoveries(view, OWN, at(seconds), (make_node_recovery_kind(),)).due
    ]


def test_a_drained_node_is_set_down_once_only_the_stuck_job_holds_it():
    assert cordoned(ENDED, seconds=LATE) == [StepKind.DOWN]
    assert cordoned(ENDED, seconds=LATE - 1) == []
    assert cordoned(ENDED, slurm_job(2, nodes=("n2",)), seconds=LATE) == [], (
        "another job runs there"
    )


def test_a_faulty_node_whose_job_is_stuck_is_set_down_too():
    assert cordoned(ENDED, seconds=LATE, urgency=Urgency.NOW) == [StepKind.DOWN]
    assert cordoned(QUEUED, seconds=LATE, urgency=Urgency.NOW) == []
    assert cordoned(QUEUED, seconds=LATE, urgency=Urgency.NOW, version="25.11.7") == [StepKind.DOWN]


def test_a_node_that_has_finished_its_part_is_not_held_by_the_job():
    view = view_of(log=[opened("n-1", "n1")], scheduler=slurm(QUEUED))
    facts = make_node_facts(view.state.nodes["n-1"], view, [QUEUED], OWN, at(1))
    assert facts.completing == ()


def world(*jobs: SlurmJob, log=TREATED, seconds=SHOWN) -> World:
    return World(at(seconds), OWN, replay_events(log), slurm=slurm(*jobs))


def test_status_names_node_and_job_early():
    (line,) = [p for p in make_cluster_status_view(world(ENDED)).problems if "COMPLETING" in p]
    assert "n2" in line
    assert line.endswith("hpctl explain 1")
    early = make_cluster_status_view(world(ENDED, seconds=SHOWN - 1)).problems
    assert not [p for p in early if "COMPLETING" in p]


def test_explain_of_the_job_and_of_the_node_says_what_happens_when():
    due = f"{at(LATE):%H:%M:%S} UTC"
    of_job = build_explain_view(world(ENDED), build_fault_rules(), "1")
    assert f"hpctl drains n2 from {due} on" in of_job.next.what
    of_node = build_explain_view(world(ENDED), build_fault_rules(), "n2")
    assert f"hpctl drains n2 from {due} on" in of_node.headline
    assert "n2 have not ended" in make_job_explain_view(world(ENDED, log=()), {}, "1").headline


def test_explain_says_why_nothing_is_done_where_nothing_is():
    shown = slurm(QUEUED)
    assert "Slurm 22.05.8 breaks" in describe_stuck_completing_fix(
        QUEUED, shown, replay_events(TREATED), OWN
    )
    assert "no restart waits" in describe_stuck_completing_fix(ENDED, shown, replay_events([]), OWN)
