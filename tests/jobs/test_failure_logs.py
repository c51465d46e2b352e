"""The verdict on logs of launchers and libraries that no run of the corpus has."""

import pytest

from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangCause, FlightRecorderHangVerdict
from hpctl.jobs.hangs.ras_judge import JobRankResolver
from hpctl.jobs.hangs.stack_groups import StackHangVerdict, SuspectRank
from hpctl.jobs.run.post_mortem import RunEndEvidence, diagnose_job_run_end
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence
from hpctl.jobs.run_failure import FailedRunContext, diagnose_run_hang
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind
from tests.fakes.values import T0
from tests.jobs.failure_logs import (
    CAUGHT,
    CLASSES,
    CONSEQUENCES,
    FULL,
    OOM,
    PREFIXES,
    STEPS,
    FailureLog,
    trace,
)

NODES = {rank: NodeName(f"n{rank + 1}") for rank in range(4)}


def name_log(log: FailureLog) -> str:
    return log.name


def check_verdict(log: FailureLog) -> None:
    ends = log.list_ends()
    code = ends[0].code if ends else 1
    remains = RunEndEvidence(exit_code=code, tail=log.tail, ends=ends, world=4, rank_nodes=NODES)
    verdict = diagnose_job_run_end(remains, RunPolicy(), T0).verdict
    assert verdict is not None
    assert verdict.cause.value in log.causes, verdict.reasons
    assert verdict.rank == log.rank, verdict.reasons


@pytest.mark.parametrize("log", PREFIXES, ids=name_log)
def test_an_exception_is_read_behind_the_prefix_of_a_launcher(log: FailureLog) -> None:
    check_verdict(log)


@pytest.mark.parametrize("log", CONSEQUENCES, ids=name_log)
def test_a_lost_connection_is_put_down_to_the_rank_that_left(log: FailureLog) -> None:
    check_verdict(log)


@pytest.mark.parametrize("log", CAUGHT, ids=name_log)
def test_an_error_that_the_program_got_over_is_not_the_cause(log: FailureLog) -> None:
    check_verdict(log)


@pytest.mark.parametrize("log", CLASSES, ids=name_log)
def test_an_error_is_known_by_its_class_or_the_words_of_its_library(log: FailureLog) -> None:
    check_verdict(log)


ABSENT = FlightRecorderHangVerdict(
    FlightRecorderHangCause.ABSENT, "rank 2 did not come to collective 5", (2,), 4, 3
)
STOPPED = SuspectRank(1, "n2", "is stopped by a signal", hang_place=HangPlace.STOPPED)


def judge_hang(tail: list[str], said: CollectiveTimeoutEvidence) -> FailureVerdict:
    hang = Trouble(TroubleKind.HANG, T0, "no step for 300 s", "no progress")
    facts = FailedRunContext(tail=tail, rank_nodes=NODES, world=4)
    found = diagnose_run_hang(hang, facts, lambda: (said, JobRankResolver({}, {}, 4)), RunPolicy())
    return build_run_failure_verdict(found, [], {}, RunPolicy(), T0)


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        ([*STEPS, *trace(OOM)], "memory"),
        ([*STEPS, "Exception in thread Thread-3 (save):", *trace(FULL, "")], "storage"),
    ],
    ids=["a rank whose main thread has raised", "a thread without a rank's prefix"],
)
def test_an_exception_explains_a_rank_that_lives_on_and_does_not_come(
    tail: list[str], cause: str
) -> None:
    verdict = judge_hang(tail, CollectiveTimeoutEvidence(ABSENT))
    assert (verdict.cause.value, verdict.rank, verdict.node) == (cause, 2, "n3")
    assert verdict.reasons[0].startswith("rank 2 on n3: ")


@pytest.mark.parametrize(
    ("tail", "said", "rank"),
    [
        ([*STEPS, *trace(OOM, "")], CollectiveTimeoutEvidence(ABSENT), 2),
        ([*STEPS, *trace(OOM, "[rank0]: ")], CollectiveTimeoutEvidence(ABSENT), 2),
        (
            [*trace(OOM), *(f"step {step}" for step in range(50))],
            CollectiveTimeoutEvidence(ABSENT),
            2,
        ),
        (
            [*trace(OOM, "[rank1]: ")],
            CollectiveTimeoutEvidence(stacks=StackHangVerdict("stopped", (STOPPED,))),
            1,
        ),
    ],
    ids=["caught", "of another rank", "got over", "of a rank that is stopped"],
)
def test_an_exception_that_does_not_explain_the_hang_is_left_out(
    tail: list[str], said: CollectiveTimeoutEvidence, rank: int
) -> None:
    verdict = judge_hang(tail, said)
    assert verdict.cause.value in ("program", "unknown")
    assert verdict.rank == rank
