"""The verdict on a failed run: cause, confidence, place, reasons, and whether a retry may help."""

from typing import Any

import pytest
from msgspec.structs import replace

from hpctl.jobs.crash import NO_GPU, NOT_COME, WORKER_DIED
from hpctl.jobs.decide import PastJobFailure
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.vocabulary.failure import FailureCause, FailureVerdict, VerdictConfidence
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind
from tests.fakes.values import FAULT, T0, at, faulty

POLICY = RunPolicy()
EFA = type(FAULT)(RuleId("efa-link-down"), "a port is down", FAULT.urgency, FAULT.ladder)


def trouble(kind: TroubleKind, why: str = "it failed", **more: Any) -> Trouble:
    return Trouble(kind, more.pop("at", T0), why, **more)


def judge(now: Trouble, *before: Trouble, **more: Any) -> FailureVerdict:
    past = [PastJobFailure(one, RunAction.STEP) for one in before]
    return build_run_failure_verdict(now, past, more.pop("nodes", {}), POLICY, T0, **more)


OWN_BUG = trouble(
    TroubleKind.CRASH,
    "rank 3: ValueError in loss (train.py): shapes differ",
    signature="ValueError in loss (train.py): shapes differ",
    rank=3,
    node="n2",
    step=70,
    at=at(-600),
)


@pytest.mark.parametrize(
    ("kind", "cause", "confidence"),
    [
        (TroubleKind.NODE, FailureCause.NODE, VerdictConfidence.HIGH),
        (TroubleKind.GPU_MEMORY, FailureCause.MEMORY, VerdictConfidence.HIGH),
        (TroubleKind.HOST_MEMORY, FailureCause.MEMORY, VerdictConfidence.HIGH),
        (TroubleKind.DISK_FULL, FailureCause.STORAGE, VerdictConfidence.HIGH),
        (TroubleKind.STORAGE, FailureCause.STORAGE, VerdictConfidence.HIGH),
        (TroubleKind.PREEMPTED, FailureCause.PREEMPTION, VerdictConfidence.HIGH),
        (TroubleKind.TIME_LIMIT, FailureCause.PREEMPTION, VerdictConfidence.HIGH),
        (TroubleKind.NETWORK, FailureCause.LINK, VerdictConfidence.LOW),
        (TroubleKind.HANG, FailureCause.UNKNOWN, VerdictConfidence.LOW),
        (TroubleKind.KILLED, FailureCause.UNKNOWN, VerdictConfidence.LOW),
    ],
)
def test_each_kind_of_trouble_has_its_component(kind, cause, confidence) -> None:
    found = judge(trouble(kind))
    assert (found.cause, found.confidence) == (cause, confidence)


def test_every_kind_of_trouble_has_a_verdict() -> None:
    assert all(judge(trouble(kind)).reasons for kind in TroubleKind)


@pytest.mark.parametrize(
    ("why", "signature", "cause", "confidence"),
    [
        ("rank 0: ValueError in f (t.py)", "ValueError in f (t.py)", "program", "medium"),
        ("rank 0: it died of SIGSEGV", "SIGSEGV", "program", "low"),
        ("it ended with exit code 1", "exit 1", "program", "low"),
        ("UnidentifiedImageError in read (d.py)", "UnidentifiedImageError", "data", "medium"),
        ("KeyError in __getitem__ (d.py): 7", "KeyError in __getitem__ (d.py)", "data", "medium"),
        ("its port is in use", "its port is in use", "unknown", "low"),
    ],
)
def test_a_crash_is_of_the_program_or_its_data(why, signature, cause, confidence) -> None:
    found = judge(trouble(TroubleKind.CRASH, why, signature=signature))
    assert (found.cause, found.confidence) == (cause, confidence)


def test_an_exception_that_a_data_loader_passes_on_is_of_the_data() -> None:
    evidence = "RuntimeError: Caught RuntimeError in DataLoader worker process 0."
    found = judge(trouble(TroubleKind.CRASH, signature="RuntimeError in f", evidence=evidence))
    assert found.cause is FailureCause.DATA


def test_a_person_who_cancels_is_no_bug_of_the_program() -> None:
    found = judge(trouble(TroubleKind.FINAL, signature="somebody cancelled it"))
    assert (found.cause, found.may_retry) == (FailureCause.PREEMPTION, False)


@pytest.mark.parametrize(
    ("signature", "cause", "confidence"),
    [
        ("uncorrectable ECC error", "node", "high"),
        ("the GPU or its driver does not answer", "node", "medium"),
        ("illegal memory access", "program", "low"),
    ],
)
def test_an_error_of_the_device_names_the_device_or_the_kernel(
    signature, cause, confidence
) -> None:
    found = judge(trouble(TroubleKind.CUDA, signature, signature=signature, node="n1"))
    assert (found.cause, found.confidence, found.node) == (cause, confidence, "n1")


@pytest.mark.parametrize(("fault", "cause"), [(FAULT, FailureCause.NODE), (EFA, FailureCause.LINK)])
def test_a_faulty_node_of_the_job_explains_a_timeout(fault, cause) -> None:
    found = judge(trouble(TroubleKind.NETWORK), nodes={"n1": faulty("n1", fault)})
    assert (found.cause, found.confidence, found.node) == (cause, VerdictConfidence.HIGH, "n1")
    assert found.reasons[0].startswith(f"node n1 is faulty ({fault.rule})")


def test_a_fault_on_another_node_than_the_failed_rank_s_is_less_sure() -> None:
    found = judge(
        trouble(TroubleKind.HANG, node="n2"), nodes={"n1": faulty("n1"), "n2": faulty("n2")}
    )
    assert (found.node, found.confidence) == ("n2", VerdictConfidence.HIGH)
    found = judge(trouble(TroubleKind.HANG, node="n2"), nodes={"n1": faulty("n1")})
    assert (found.node, found.confidence) == ("n1", VerdictConfidence.MEDIUM)


def test_a_fault_that_began_long_after_the_end_explains_nothing() -> None:
    found = judge(trouble(TroubleKind.NETWORK), nodes={"n1": faulty("n1", seconds=3600)})
    assert found.cause is FailureCause.LINK
    assert found.node is None


@pytest.mark.parametrize(
    "now", [OWN_BUG, trouble(TroubleKind.GPU_MEMORY), trouble(TroubleKind.DISK_FULL)]
)
def test_an_error_of_the_program_s_own_is_not_put_down_to_its_node(now) -> None:
    found = judge(now, nodes={"n2": faulty("n2")})
    assert found.cause is not FailureCause.NODE
    assert any("n2 is faulty" in reason for reason in found.reasons)


def test_the_same_bug_on_another_node_is_the_program_and_is_not_retried() -> None:
    again = trouble(
        TroubleKind.CRASH, OWN_BUG.why, signature=OWN_BUG.signature, rank=3, node="n5", step=70
    )
    first, second = judge(OWN_BUG), judge(again, OWN_BUG)
    assert (first.confidence, first.may_retry) == (VerdictConfidence.MEDIUM, True)
    assert (second.cause, second.confidence) == (FailureCause.PROGRAM, VerdictConfidence.HIGH)
    assert not second.may_retry
    assert "the same failure twice (step 70, rank 3)" in second.reasons


def test_the_same_exit_code_on_the_same_node_is_not_proven_to_be_the_program_s() -> None:
    def ended(node: str, seconds: float) -> Trouble:
        return trouble(
            TroubleKind.CRASH,
            "it ended with exit code 1",
            signature="exit 1",
            rank=3,
            step=70,
            node=node,
            at=at(seconds),
        )

    assert judge(ended("n2", 0), ended("n2", -600)).confidence is VerdictConfidence.MEDIUM
    assert judge(ended("n5", 0), ended("n2", -600)).confidence is VerdictConfidence.HIGH
    elsewhere = replace(ended("n2", -600), step=12)
    assert judge(ended("n5", 0), elsewhere).confidence is VerdictConfidence.LOW


def test_an_error_of_a_device_that_follows_the_program_is_the_program_s() -> None:
    def missing(node: str, seconds: float) -> Trouble:
        return trouble(
            TroubleKind.HANG, signature=NOT_COME, rank=3, step=70, node=node, at=at(seconds)
        )

    found = judge(missing("n5", 0), missing("n2", -600))
    assert (found.cause, found.confidence) == (FailureCause.PROGRAM, VerdictConfidence.HIGH)
    assert not found.may_retry
    other = judge(missing("n5", 0), trouble(TroubleKind.HANG, signature=NOT_COME, rank=4, step=70))
    assert (other.cause, other.may_retry) == (FailureCause.PROGRAM, True)
    assert other.confidence is VerdictConfidence.LOW


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (HangPlace.UNKNOWN, FailureCause.PROGRAM),
        (HangPlace.CODE, FailureCause.PROGRAM),
        (HangPlace.LOADER, FailureCause.DATA),
        (HangPlace.FILES, FailureCause.STORAGE),
        (HangPlace.GONE, FailureCause.UNKNOWN),
        (HangPlace.SILENT, FailureCause.UNKNOWN),
        (HangPlace.STOPPED, FailureCause.UNKNOWN),
    ],
)
def test_the_place_of_a_rank_that_did_not_come_tells_the_component(place, cause) -> None:
    """Words do not: they also name where the other ranks wait."""
    why = "rank 1 did not come to collective 5, where rank 0 waits in save_checkpoint (t.py:3)"
    where = "stacks: rank 1 is in _try_get_data (dataloader.py:1251)"
    hang = trouble(TroubleKind.HANG, why, signature=NOT_COME, rank=1, evidence=where)
    found = judge(replace(hang, hang_place=place))
    assert found.cause is cause
    assert where in found.reasons


def test_what_was_decided_goes_before_what_the_policy_would_answer() -> None:
    found = judge(trouble(TroubleKind.NETWORK), answer=RunAction.HOLD)
    assert not found.may_retry
    assert "no retry: the answer is `hold`" in found.reasons


def test_reasons_are_bounded_and_on_one_line() -> None:
    hostile = trouble(TroubleKind.CRASH, "x\ny" * 5000, evidence="stacks: z\n" * 5000)
    found = judge(hostile)
    assert len(found.reasons) <= 8
    assert all(len(reason) <= 400 and "\n" not in reason for reason in found.reasons)


def test_a_data_loader_whose_worker_died_is_of_the_data() -> None:
    found = judge(trouble(TroubleKind.CRASH, signature=WORKER_DIED))
    assert (found.cause, found.confidence) == (FailureCause.DATA, VerdictConfidence.MEDIUM)


def test_names_of_a_sharded_program_say_nothing_of_its_data() -> None:
    differ = "the ranks call different collectives"
    why = "the ranks differ in collective 5: rank 0 called all_gather in load_dataset (data.py:39)"
    found = judge(trouble(TroubleKind.CRASH, why, signature=differ, rank=0))
    assert found.cause is FailureCause.PROGRAM
    why = "rank 2: ValueError in save_shards (sharded.py): shapes differ"
    assert judge(trouble(TroubleKind.CRASH, why, signature=why)).cause is FailureCause.PROGRAM
    why = "rank 2: ValueError in read (files.py): shard-0001.tar ends early"
    assert judge(trouble(TroubleKind.CRASH, why, signature=why)).cause is FailureCause.DATA


DEAF = "the GPU or its driver does not answer"


@pytest.mark.parametrize(
    ("second", "cause"), [("n2", FailureCause.PROGRAM), ("n1", FailureCause.NODE)]
)
def test_an_error_of_a_gpu_that_comes_again_on_another_node_is_the_program_s(second, cause) -> None:
    first = trouble(TroubleKind.CUDA, DEAF, signature=DEAF, node="n1", rank=3, step=70, at=at(-600))
    found = judge(replace(first, node=second, at=T0), first)
    assert found.cause is cause
    assert any("it follows the program" in line for line in found.reasons) is (second == "n2")


def test_memory_that_runs_out_again_on_another_node_is_still_memory() -> None:
    first = trouble(TroubleKind.GPU_MEMORY, signature="out of memory", node="n1", at=at(-600))
    found = judge(replace(first, node="n2", at=T0), first)
    assert (found.cause, found.confidence) == (FailureCause.MEMORY, VerdictConfidence.HIGH)


@pytest.mark.parametrize(
    ("now", "cause", "confidence"),
    [
        (trouble(TroubleKind.NODE, signature="node efa-link-down"), "link", "high"),
        (trouble(TroubleKind.NODE, signature="node xid-79"), "node", "high"),
        (trouble(TroubleKind.NETWORK, "a connection was reset"), "link", "low"),
        (trouble(TroubleKind.NETWORK, "NCCL: network port failed"), "link", "medium"),
        (trouble(TroubleKind.NETWORK, "rank 3 came to collective 7 late"), "link", "medium"),
        (trouble(TroubleKind.KILLED, signature="SIGTERM"), "preemption", "low"),
        (trouble(TroubleKind.CUDA, "NVLink error", signature="NVLink error"), "link", "high"),
        (trouble(TroubleKind.CUDA, NO_GPU, signature=NO_GPU), "program", "low"),
        (trouble(TroubleKind.CUDA, NO_GPU, signature=NO_GPU, node="n1"), "node", "medium"),
    ],
)
def test_the_trouble_s_own_words_name_the_component(now, cause, confidence) -> None:
    found = judge(now)
    assert (found.cause, found.confidence) == (cause, confidence)
