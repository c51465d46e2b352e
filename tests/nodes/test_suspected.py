"""An idle node is tested where the verdicts on several failed jobs name it."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, JobRecoveryOpened, JobReported, SignalSeen
from hpctl.engine.test_reservation import SUSPECTED, choose_acceptance_test_level
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.suspicions import WINDOW_S, find_nodes_suspected_by_job_failures
from hpctl.nodes.acceptance.suspected import AGAIN_S
from hpctl.vocabulary.identity import JobAttempt, NodeName
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.policy import AcceptanceTestPolicy, OperatingMode
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.engine import plan
from tests.fakes.values import OWN, at, generation, opened, slurm_job, slurm_node, view_of

TESTED = replace(OWN, acceptance=AcceptanceTestPolicy(suspected="quick"))
ECC = Trouble(
    TroubleKind.CUDA,
    at(-600),
    "rank 3 on n1: uncorrectable ECC error",
    "ECC error",
    NodeName("n1"),
    3,
)


def fail_job(
    job: int, trouble: Trouble = ECC, nodes: Sequence[str] = ("n1", "n2"), restarts: int = 0
) -> list[Event]:
    """Return what the journal has of a job that failed and was restarted."""
    rid = f"j-{job}-{restarts}"
    opened = JobRecoveryOpened(
        trouble.at, rid, JobAttempt(job, at(-3700), restarts), "", (), trouble.why,
        trouble=trouble, action=RunAction.REQUEUE, ran_on=tuple(NodeName(n) for n in nodes),
    )  # fmt: skip
    return [opened, SignalSeen(trouble.at, rid, "finished", "")]


FIRST, SECOND = fail_job(7), fail_job(8, replace(ECC, at=at(-300)))
TWO = [*FIRST, *SECOND]


def list_suspected(log: Sequence[Event], **changes) -> list[str]:
    """Return the nodes that the failures of jobs point to."""
    return [
        one.node for one in find_nodes_suspected_by_job_failures(view_of(log=log, **changes), at(0))
    ]


def list_opened(log: Sequence[Event], policy=TESTED, **changes) -> list[str]:
    """Return the nodes whose test begins."""
    opens = plan(view_of(log=log, **changes), policy, build_fault_rules(), {}, at(0)).opens
    return [event.generation.node for event in opens if event.rule == SUSPECTED.rule]


def test_two_jobs_that_name_a_node_have_it_tested_with_their_words() -> None:
    (event,) = plan(view_of(log=TWO), TESTED, build_fault_rules(), {}, at(0)).opens
    assert (event.rule, event.generation.node) == (SUSPECTED.rule, "n1")
    assert event.why.startswith("2 jobs failed on it: job 8: rank 3 on n1: uncorrectable ECC error")
    assert "job 7: " in event.why
    assert "cause: node (high confidence)" in event.why


def test_the_level_of_the_test_is_that_of_the_setting() -> None:
    state = view_of(log=[opened(rule=SUSPECTED.rule)]).state
    full = replace(OWN, acceptance=AcceptanceTestPolicy(suspected="full"))
    assert choose_acceptance_test_level(state.nodes["n-1"], full) == "full"
    assert choose_acceptance_test_level(state.nodes["n-1"], OWN) == ""


@pytest.mark.parametrize(
    "policy",
    [
        OWN,
        replace(TESTED, mode=OperatingMode.OBSERVE),
        replace(OWN, acceptance=AcceptanceTestPolicy(add="quick", software_update="quick")),
    ],
)
def test_no_node_is_tested_where_the_setting_or_the_mode_does_not_ask_for_it(policy) -> None:
    asked = plan(view_of(log=TWO), policy, build_fault_rules(), {}, at(0)).candidates
    assert [one for one in asked if one.fault is SUSPECTED] == []


def test_one_job_is_not_enough_however_often_it_fails_on_the_node() -> None:
    again = fail_job(7, replace(ECC, at=at(-60)), restarts=1)
    assert list_suspected([*FIRST, *again]) == []
    assert list_suspected(TWO) == ["n1"]


def test_a_failure_that_follows_its_program_names_no_node() -> None:
    moved = replace(
        ECC, at=at(-60), node=NodeName("n2"), why="rank 3 on n2: uncorrectable ECC error"
    )
    assert list_suspected([*TWO, *fail_job(8, moved, restarts=1)]) == []


@pytest.mark.parametrize(
    "trouble",
    [
        replace(ECC, kind=TroubleKind.CRASH, why="ValueError", signature="ValueError"),
        replace(ECC, kind=TroubleKind.GPU_MEMORY),
        replace(ECC, kind=TroubleKind.NODE, why="n1 has booted"),
        replace(ECC, node=None),
        replace(ECC, node=NodeName("n5")),
        replace(ECC, at=at(-WINDOW_S)),
        replace(ECC, at=at(60)),
    ],
    ids=["program", "memory", "seen by Slurm", "no node", "not its node", "old", "in the future"],
)
def test_a_failure_counts_only_where_its_verdict_names_a_node_of_the_job(trouble) -> None:
    assert list_suspected([*FIRST, *fail_job(8, trouble)]) == []


def test_what_supervisors_report_counts_while_slurm_knows_the_job() -> None:
    log = [*FIRST, JobReported(at(-200), JobReport(9, 0, ECC, RunAction.PROCESS))]
    assert list_suspected(log, jobs=[slurm_job(9)]) == ["n1"]
    assert list_suspected(log, jobs=[slurm_job(9, nodes=("n4",))]) == []
    assert list_suspected(log) == []


def test_a_node_with_a_job_on_it_is_not_tested() -> None:
    assert list_opened(TWO) == ["n1"]
    assert list_opened(TWO, jobs=[slurm_job(9)]) == []


def test_a_node_without_an_agent_or_out_of_service_is_not_tested() -> None:
    view = view_of(log=TWO)
    assert list_opened(TWO, health={"n2": NodeHealth(generation("n2"), at(0))}) == []
    down = replace(view.scheduler, nodes={"n1": slurm_node(1, flags=frozenset({"DRAIN"}))})
    assert list_opened(TWO, scheduler=down) == []


@pytest.mark.parametrize(
    "flag", ["POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_REQUESTED", "REBOOT_ISSUED"]
)
def test_a_node_that_is_about_to_boot_is_not_tested(flag: str) -> None:
    view = view_of(log=TWO)
    nodes = {**view.scheduler.nodes, "n1": slurm_node(1, flags=frozenset({flag}))}
    assert list_opened(TWO, scheduler=replace(view.scheduler, nodes=nodes)) == []


@pytest.mark.parametrize(("seconds", "found"), [(-400, ["n1"]), (-200, [])])
def test_a_boot_after_the_newest_failure_ends_the_suspicion(seconds: float, found) -> None:
    view = view_of(log=TWO)
    booted = {**view.scheduler.nodes, "n1": slurm_node(1, boot_time=at(seconds))}
    assert list_opened(TWO, scheduler=replace(view.scheduler, nodes=booted)) == found


@pytest.mark.parametrize(("seconds", "found"), [(-400, ["n1"]), (-200, [])])
def test_a_treatment_after_the_newest_failure_ends_the_suspicion(seconds: float, found) -> None:
    log = [*TWO, opened(seconds=seconds), SignalSeen(at(-100), "n-1", "operator_cancelled", "")]
    assert list_opened(log) == found


def test_a_node_is_tested_once_a_day() -> None:
    newest = [*FIRST, *fail_job(8, replace(ECC, at=at(-5)))]
    for seconds, found in ((-AGAIN_S + 1, []), (-AGAIN_S, ["n1"])):
        tested = opened(seconds=seconds, rule=SUSPECTED.rule)
        ended = SignalSeen(at(seconds + 1), "n-1", "operator_cancelled", "")
        assert list_opened([*newest, tested, ended]) == found


def test_a_test_that_left_its_node_to_a_person_is_the_last_for_a_day() -> None:
    newest = [*FIRST, *fail_job(8, replace(ECC, at=at(-5)))]
    for seconds, found in ((-AGAIN_S + 1, []), (-AGAIN_S, ["n1"])):
        tested = opened("n-2", "n2", seconds=seconds, rule=SUSPECTED.rule)
        ended = SignalSeen(at(seconds + 1), "n-2", "needs_human", "untested")
        assert list_opened([*newest, tested, ended]) == found


def test_a_node_whose_agent_is_silent_is_not_tested() -> None:
    for seconds, found in ((-100, ["n1"]), (-121, [])):
        assert list_opened(TWO, health={"n1": NodeHealth(generation("n1"), at(seconds))}) == found


def test_one_node_is_tested_at_a_time_the_longest_suspected_first() -> None:
    earlier = replace(ECC, node=NodeName("n2"), at=at(-900))
    other = [*fail_job(11, earlier), *fail_job(12, earlier)]
    assert list_opened([*TWO, *other]) == ["n2"]
    testing = opened("n-2", "n2", -30, rule=SUSPECTED.rule)
    assert list_opened([*TWO, *other, testing]) == []


def test_a_text_quotes_four_jobs_and_counts_the_rest() -> None:
    log = [event for job in range(1, 8) for event in fail_job(job)]
    (found,) = find_nodes_suspected_by_job_failures(view_of(log=log), at(0))
    assert found.why.startswith("7 jobs failed on it: ")
    assert found.why.count("job ") == 4
    assert found.why.endswith("; 3 more")


def test_the_text_is_bounded_whatever_the_jobs_print() -> None:
    long = replace(ECC, why=ECC.why + " and again" * 1000)
    log = [event for job in range(1, 8) for event in fail_job(job, long)]
    (found,) = find_nodes_suspected_by_job_failures(view_of(log=log), at(0))
    assert "rank 3 on n1: uncorrectable ECC error and again" in found.why
    assert len(found.why) < 2000
