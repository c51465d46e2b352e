"""The exit-code contract."""

import pytest
from msgspec.structs import replace

from hpctl.checkpoints.resume import ResumePoint
from hpctl.jobs.crash import classify_crash
from hpctl.jobs.run.ending import (
    StepEndEvidence,
    choose_run_exit_code,
    diagnose_step_end,
    is_run_finished,
)
from hpctl.jobs.run.srun import SrunLaunchFailure, SrunTaskEnd
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import T0 as NOW

POLICY = RunPolicy()
N1 = "n1"
SEVEN, EIGHT = ResumePoint("/ck/step-7", 7), ResumePoint("/ck/step-8", 8)


def judged(evidence: StepEndEvidence) -> Trouble | None:
    return diagnose_step_end(evidence, POLICY, NOW, classify_crash)


def kind(evidence: StepEndEvidence) -> TroubleKind | None:
    trouble = judged(evidence)
    return trouble.kind if trouble else None


@pytest.mark.parametrize(
    ("evidence", "done"),
    [
        (StepEndEvidence(0, before=SEVEN, after=EIGHT), True),
        (StepEndEvidence(0, before=SEVEN, after=SEVEN), False),
        (StepEndEvidence(0, before=SEVEN, after=SEVEN, marked=True), True),
        (StepEndEvidence(0, before=SEVEN, after=SEVEN, stepped=True), True),
        (StepEndEvidence(0, before=ResumePoint(), after=ResumePoint()), True),
        (
            StepEndEvidence(0, before=ResumePoint(judged=False), after=ResumePoint(judged=False)),
            True,
        ),
        (StepEndEvidence(0, before=SEVEN, after=ResumePoint(judged=False)), True),
        (StepEndEvidence(0, before=ResumePoint(), after=SEVEN), True),
    ],
)
def test_exit_code_0_is_believed_only_after_all_ranks_ended(
    evidence: StepEndEvidence, done: bool
) -> None:
    assert is_run_finished(evidence) is done
    assert kind(evidence) == (None if done else TroubleKind.NO_PROGRESS)


def test_93_of_one_rank_wins_over_what_ended_the_others() -> None:
    ends = [SrunTaskEnd(N1, 3, 1, ""), SrunTaskEnd(N1, 1, 93, ""), SrunTaskEnd(N1, 0, 137, "")]
    evidence = StepEndEvidence(137, ends=ends)
    assert choose_run_exit_code(evidence, POLICY) == 93
    trouble = judged(evidence)
    assert (trouble.kind, trouble.rank, trouble.exit_code) == (TroubleKind.FINAL, 1, 93)
    assert kind(replace(evidence, lost={N1: "DOWN"})) is TroubleKind.FINAL
    assert kind(StepEndEvidence(137, ends=[SrunTaskEnd(N1, 5, 16, "")])) is TroubleKind.CORRUPTION


def test_a_program_that_is_done_and_fails_in_tearing_down_is_done() -> None:
    assert judged(StepEndEvidence(139, ends=[SrunTaskEnd(N1, 0, 139, "")], marked=True)) is None
    assert (
        kind(StepEndEvidence(17, ends=[SrunTaskEnd(N1, 0, 17, "")], marked=True))
        is TroubleKind.CORRUPTION
    )


def test_a_lost_node_explains_any_other_code() -> None:
    trouble = judged(StepEndEvidence(1, ends=[SrunTaskEnd(N1, 0, 1, "")], lost={"n2": "DOWN"}))
    assert (trouble.kind, trouble.node) == (TroubleKind.NODE, "n2")


def test_a_node_that_cannot_be_launched_on_is_named() -> None:
    trouble = judged(
        StepEndEvidence(1, failed=[SrunLaunchFailure(N1, "Communication connection failure")])
    )
    assert (trouble.kind, trouble.node) == (TroubleKind.NODE, "n1")


def test_a_crash_names_rank_node_and_checkpoint() -> None:
    trouble = judged(
        StepEndEvidence(137, ends=[SrunTaskEnd(N1, 6, 5, "")], tail=["boom"], after=SEVEN, step=9)
    )
    assert trouble.kind is TroubleKind.CRASH
    assert (trouble.rank, trouble.node, trouble.exit_code) == (6, "n1", 5)
    assert (trouble.progress, trouble.step) == (7, 9)
    assert "boom" in trouble.evidence


def test_a_launcher_inside_the_step_knows_better_than_the_exit_code() -> None:
    text = Trouble(TroubleKind.CUDA, NOW, "CUDA error on rank 3", rank=3)
    assert judged(StepEndEvidence(1, account=text, after=SEVEN)) == replace(text, progress=7)


def test_missing_command_is_final_only_in_the_first_step() -> None:
    ends = [SrunTaskEnd(N1, 0, 127, ""), SrunTaskEnd("n2", 1, 127, "")]
    first = StepEndEvidence(127, ends=ends)
    assert kind(first) is TroubleKind.FINAL
    assert kind(replace(first, again=True)) is TroubleKind.STORAGE
    assert kind(replace(first, stepped=True)) is TroubleKind.STORAGE
    assert kind(replace(first, before=SEVEN, after=EIGHT)) is TroubleKind.STORAGE
    # The other rank found it: what is missing is missing on one node.
    assert (
        kind(replace(first, ends=[ends[0], SrunTaskEnd("n2", 1, 137, "")])) is TroubleKind.STORAGE
    )
