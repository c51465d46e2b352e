"""What torch's checks of collectives say: the rank that differs is named, not those that print."""

from datetime import datetime

import pytest

from hpctl.jobs.crash import CALLS_DIFFER, NOT_COME, PEER_LOST, classify_crash
from hpctl.jobs.torch_checks import find_mismatched_collective
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.failure import FailureCause
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DEVICES = (
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu,"
    " layout=Strided (default), requires_grad=false (default), pinned_memory=false (default),"
    " memory_format=(nullopt))"
)


def call(op: str = "ALLGATHER", shape: str = "[4]", number: int = 65) -> str:
    """Return a call as torch 2.13 prints it."""
    fields = f"SequenceNumber={number}, OpType={op}, TensorShape={shape}, {DEVICES}"
    return f"CollectiveFingerPrint({fields})"


def differ(rank: int, own: str, other: int, theirs: str) -> str:
    """Return what a rank prints whose call differs from that of another rank."""
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank}"
        f" is running collective: {own}, but Rank {other} is running collective: {theirs}."
        "Collectives differ in the following aspects: \tOp type: ALLGATHERvs ALLREDUCE"
    )


def classify(*lines: str, code: int = 1) -> Trouble:
    return classify_crash(code, lines, at=AT, policy=RunPolicy(), rank=0)


RIGHT, OP, SHAPE, BEHIND = call(), call("ALLREDUCE"), call(shape="[5]"), call(number=64)


@pytest.mark.parametrize("odd", [OP, SHAPE, BEHIND])
def test_the_rank_that_calls_another_collective_is_named(odd) -> None:
    found = classify(
        differ(0, RIGHT, 1, odd), differ(2, RIGHT, 1, odd), differ(1, odd, 0, RIGHT)
    )  # fmt: skip
    assert (found.kind, found.rank, found.signature) == (TroubleKind.CRASH, 1, CALLS_DIFFER)
    assert build_run_failure_verdict(found, (), {}, RunPolicy(), AT).cause is FailureCause.PROGRAM


def test_the_devices_of_the_ranks_are_no_difference() -> None:
    mine = [RIGHT.replace("device=cpu", f"device=cuda:{rank}") for rank in range(3)]
    odd = OP.replace("device=cpu", "device=cuda:1")
    assert find_mismatched_collective([differ(0, mine[0], 2, mine[2])]) is None
    assert classify(differ(0, mine[0], 1, odd), differ(2, mine[2], 1, odd)).rank == 1


def test_the_calls_are_described() -> None:
    lines = [differ(0, RIGHT, 1, SHAPE), differ(2, RIGHT, 1, SHAPE)]
    why, _ = find_mismatched_collective(lines) or ("", None)
    assert why == (
        "rank 1 calls ALLGATHER of [5] (number 65), 2 others ALLGATHER of [4] (number 65)"
    )


@pytest.mark.parametrize(
    "lines",
    [
        [differ(0, RIGHT, 1, OP), differ(1, OP, 0, RIGHT)],
        [differ(0, RIGHT, 1, OP), differ(2, RIGHT, 3, OP)],
        [differ(0, RIGHT, 1, OP), differ(2, RIGHT, 3, SHAPE)],
    ],
    ids=["two ranks", "two and two", "three calls"],
)
def test_no_rank_is_named_where_the_calls_do_not_show_one(lines) -> None:
    found = classify(*lines)
    assert (found.rank, found.node) == (None, None)
    assert "rank 0 ALLGATHER of [4]" in found.why


CAME = (
    "[rank{}]: RuntimeError: Rank {} successfully reached monitoredBarrier, but received errors"
    " while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
)
MISSING = "[rank0]: RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 45000 ms"


def test_a_rank_that_came_to_a_barrier_is_not_the_one_that_is_missing() -> None:
    found = classify(CAME.format(1, 1), MISSING, CAME.format(3, 3))
    assert (found.rank, found.signature, found.kind) == (2, NOT_COME, TroubleKind.HANG)


@pytest.mark.parametrize(
    "line",
    [
        CAME.format(1, 1),
        f"[rank0]: RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running"
        f" collective: {RIGHT}. Error: ",
    ],
)
def test_a_rank_that_reports_a_failed_check_has_lost_a_peer(line) -> None:
    found = classify(line)
    assert (found.rank, found.signature) == (None, PEER_LOST)


@pytest.mark.parametrize(
    "junk",
    [
        "Rank 1 is running collective: CollectiveFingerPrint(",
        "Rank 1 is running collective: CollectiveFingerPrint(" + "x=" * 2000,
        "Rank 9999999999 is running collective: CollectiveFingerPrint(OpType=A)",
    ],
)
def test_a_torn_line_names_no_rank(junk) -> None:
    assert find_mismatched_collective([junk]) is None
