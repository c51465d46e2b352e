"""The judge of a run's silence, on literals: nothing here waits, reads a clock or a socket."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hpctl.core.trouble import Kind
from hpctl.jobs.progress.notes import Note
from tests.unit.progress_said import BEGAN, book, hang, run, said


def test_fast_steps_hang_at_the_floor_and_not_before() -> None:
    b = book()
    last = run(b, 100, 1.0)
    trouble = hang(b, last + 60.1, none_at=last + 60.0)
    assert trouble.at == BEGAN + timedelta(seconds=100 + 60.1)
    assert trouble.step == 100
    assert "its median is 1 s" in trouble.why


def test_before_the_first_step_the_starts_bound_counts() -> None:
    b = book()
    assert "no first step" in hang(b, 1000.0 + 1800.1, none_at=1000.0 + 1800.0).why


def test_a_hang_is_told_once_until_something_moves() -> None:
    b = book()
    last = run(b, 100, 1.0)
    hang(b, last + 61)
    assert b.trouble(last + 62) is None
    assert b.hang(last + 62) is not None
    b.add(said(0, 101), last + 70)
    hang(b, last + 70 + 200, none_at=last + 71)


def test_a_pause_that_the_run_came_out_of_is_learnt() -> None:
    b = book()
    last = run(b, 100, 1.0)
    b.add(said(0, 101), last + 55)
    last = run(b, 10, 1.0, at=last + 55, start=102)
    hang(b, last + 83, none_at=last + 80)


def test_the_rank_at_the_lowest_step_is_named() -> None:
    b = book()
    last = run(b, 50, 1.0, ranks=8)
    for rank in range(8):
        if rank != 5:
            b.add(said(rank, 51), last + 1)
    trouble = hang(b, last + 62)
    assert trouble.rank == 5
    assert trouble.node == "n2"
    assert trouble.device == "GPU 1"
    assert "rank 5 on n2 (GPU 1) is at step 50, the furthest at 51" in trouble.why
    assert "rank 5" not in trouble.signature


def test_two_ranks_of_one_node_name_the_node() -> None:
    b = book()
    last = run(b, 50, 1.0, ranks=8)
    for rank in (0, 1, 4, 5, 6, 7):
        b.add(said(rank, 51), last + 1)
    trouble = hang(b, last + 62)
    assert trouble.rank is None
    assert trouble.node == "n1"


def test_at_equal_steps_the_rank_in_another_phase_is_named() -> None:
    b = book()
    last = run(b, 50, 1.0, ranks=4)
    for step in range(51, 54):
        for phase in ("data", "backward"):
            last += 0.5
            for rank in range(4):
                b.add(said(rank, phase=phase), last)
        for rank in range(4):
            b.add(said(rank, step), last)
    for rank in range(4):
        b.add(said(rank, phase="data"), last + 0.1)
    for rank in (0, 1, 3):
        b.add(said(rank, phase="backward"), last + 0.2)
    trouble = hang(b, last + 62)
    assert trouble.rank == 2
    assert "rank 2 on n1 (GPU 0) is in data, the other 3 in backward" in trouble.why


def test_where_all_are_equal_nobody_is_named() -> None:
    b = book()
    last = run(b, 50, 1.0, ranks=4)
    trouble = hang(b, last + 62)
    assert (trouble.rank, trouble.node) == (None, None)
    assert "4 more" not in trouble.evidence
    assert "step 50" in trouble.evidence


def test_what_a_rank_did_before_the_run_went_back_is_not_compared() -> None:
    b = book()
    last = run(b, 100, 1.0, ranks=4)
    b.add(Note(step=90, rank=0, pid=900), last + 5)
    assert hang(b, last + 5 + 2000).rank is None


def test_steps_counted_anew_each_epoch_are_progress() -> None:
    b = book()
    last = run(b, 100, 1.0, ranks=2)
    last = run(b, 50, 1.0, ranks=2, at=last)
    assert b.step == 50
    assert b.trouble(last + 59) is None
    b.add(said(1, 51), last + 1)
    assert hang(b, last + 62).rank == 0


def test_ranks_that_were_restarted_in_place_are_compared_among_themselves() -> None:
    b = book()
    last = run(b, 100, 1.0, ranks=3)
    for step in (90, 91, 92, 93, 94):
        last += 1
        for rank in range(3):
            b.add(Note(step=step, rank=rank, pid=900 + rank), last)
    assert b.step == 94
    for rank in (0, 2):
        b.add(Note(step=95, rank=rank, pid=900 + rank), last + 1)
    assert hang(b, last + 63).rank == 1


def test_a_datagram_that_was_overtaken_is_no_restart() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, 49), last + 0.01)
    assert b.step == 50


def test_a_loss_that_is_no_number_is_told_at_once_and_once() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(3, 51, loss=float("nan")), last + 1)
    b.add(said(0, 51, loss=0.5), last + 1)
    b.add(said(3, 52, loss=float("inf")), last + 2)
    trouble = b.trouble(last + 2)
    assert (trouble.kind, trouble.rank, trouble.node) == (Kind.NAN, 3, "n1")
    assert b.trouble(last + 2) is None
    b.add(said(3, 53, loss=1.0), last + 3)
    b.add(said(3, 54, loss=float("nan")), last + 4)
    assert b.trouble(last + 4) is not None


def test_a_loss_far_over_its_past_is_told() -> None:
    b, at = book(), 1000.0
    for step in range(100):
        at += 1
        b.add(said(0, step, loss=2.0 + step % 5 / 100), at)
    for step in range(100, 103):
        at += 1
        b.add(said(0, step, loss=9.0), at)
    trouble = b.trouble(at)
    assert trouble.kind is Kind.SPIKE


@pytest.mark.parametrize("tokens", [None, 4096.0])
def test_a_run_far_under_its_own_throughput_is_told(tokens: float | None) -> None:
    b, at = book(), 1000.0
    for step in range(100):
        at += 1.0 + step % 3 / 100
        b.add(said(0, step, tokens=tokens), at)
    for step in range(100, 110):
        at += 2.0
        b.add(said(0, step, tokens=tokens), at)
    trouble = b.trouble(at)
    assert trouble.kind is Kind.SLOW
    assert ("tokens/s" in trouble.why) is (tokens is not None)


def test_a_run_that_is_done_must_still_end() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, done=True), last)
    assert b.done
    assert "said that it was done" in hang(b, last + 1801, none_at=last + 1700).why


def test_the_last_checkpoint_is_the_troubles_progress() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, checkpoint="/c/40", step=40), last)
    assert b.step == 50
    last = run(b, 5, 1.0, at=last, start=51)
    assert hang(b, last + 61).progress == 40


def test_more_ranks_than_can_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctl.jobs.progress.run_progress.MOST_RANKS", 4)
    b = book()
    for rank in range(9):
        b.add(said(rank, 1), 1001.0)
    assert len(b.ranks) == 4
    assert b.refused == 5
