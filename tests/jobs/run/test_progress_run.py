"""The judge of a run's silence, on literals: nothing here waits, reads a clock or a socket."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.jobs.run.progress import RunProgress
from hpctl.jobs.run.progress_notes import ProgressNote
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = RunPolicy()


def new_run() -> RunProgress:
    return RunProgress(POLICY, 1000.0, BEGAN)


def derive_next(first: RunProgress) -> RunProgress:
    """The run's next start."""
    return RunProgress(POLICY, 5000.0, BEGAN, pace=first.pace.copy_for_next_start())


def run(b, steps, every, ranks=1, at=1000.0, start=1):
    """Steps in lockstep; the time of the last."""
    for step in range(start, start + steps):
        at += every
        for rank in range(ranks):
            b.add(note_of(rank, step), at + rank / 1000)
    return at


def note_of(rank: int, step: int | None = None, **more) -> ProgressNote:
    return ProgressNote(
        step, rank=rank, node=f"n{rank // 2}", gpu=str(rank % 2), pid=100 + rank, **more
    )


def hang(b: RunProgress, at: float, none_at: float | None = None) -> Trouble:
    """The hang that is told at one time, and none at another before it."""
    assert none_at is None or b.trouble(none_at) is None
    trouble = b.trouble(at)
    assert trouble.kind is TroubleKind.HANG
    return trouble


EVAL, TRAIN = {"phase": "eval"}, {"phase": "train"}
SILENCES: dict[str, tuple[list[int | tuple[float, dict[str, object]]], float, str]] = {
    "before the first step": ([], 1800, "no first step"),
    "after fast steps": ([100], 60, "its median is 1 s"),
    "after a pause that it came out of": ([100, (55, {"step": 101}), 10], 82.5, "no step"),
    "in a save": ([50, (1, {"saving": True})], 600, "no end of a save"),
    "after a save": ([50, (0, {"saving": True}), (300, {"saving": False})], 60, "no step"),
    "after steps under a save": ([50, (0, {"saving": True}), 1000], 60, ""),
    "in a first evaluation": ([50, (0, EVAL)], 1800, "no step"),
    "in a further one": ([50, (0, EVAL), (100, TRAIN), 50, (0, EVAL)], 300, "no step"),
    "after an evaluation": ([50, (0, EVAL), (300, TRAIN), 50], 60, "no step"),
    "after the end": ([50, (0, {"done": True})], 1800, "said that it was done"),
    "of ranks that were started anew": ([50, (20, {"restart": True})], 600, "no first step"),
    "of their steps": ([50, (20, {"restart": True}), (80, {"step": 40}), 49], 60, "step 89"),
}
"""What came before: so many steps of a second, or a note after so many seconds; then the bound."""


@pytest.mark.parametrize("name", SILENCES)
def test_a_silence_is_a_hang_at_its_bound_and_not_before(name: str) -> None:
    before, bound, says = SILENCES[name]
    b, at = new_run(), 1000.0
    for each in before:
        if isinstance(each, int):
            at = run(b, each, 1.0, at=at, start=(b.step or 0) + 1)
        else:
            at += each[0]
            b.add(note_of(0, **each[1]), at)
    trouble = hang(b, at + bound + 0.5, none_at=at + bound - 0.5)
    assert trouble.at == BEGAN + timedelta(seconds=at + bound + 0.5 - 1000.0)
    assert trouble.step == b.step
    assert says in trouble.why


def test_hang_is_reported_once_until_a_step_follows() -> None:
    b = new_run()
    last = run(b, 100, 1.0)
    hang(b, last + 61)
    assert b.trouble(last + 62) is None
    assert b.hang(last + 62) is not None
    b.add(note_of(0, 101), last + 70)
    hang(b, last + 70 + 200, none_at=last + 71)


def test_the_rank_at_the_lowest_step_is_named() -> None:
    b = new_run()
    last = run(b, 50, 1.0, ranks=8)
    for rank in range(8):
        if rank != 5:
            b.add(note_of(rank, 51), last + 1)
    trouble = hang(b, last + 62)
    assert (trouble.rank, trouble.node, trouble.device) == (5, "n2", "GPU 1")
    assert "rank 5 on n2 (GPU 1) is at step 50, the furthest at 51" in trouble.why
    assert "rank 5" not in trouble.signature


@pytest.mark.parametrize(("behind", "node"), [((2, 3), "n1"), (range(8), None)])
def test_two_ranks_of_a_node_name_it_and_equal_ranks_name_none(behind, node):
    b = new_run()
    last = run(b, 50, 1.0, ranks=8)
    for rank in set(range(8)) - set(behind):
        b.add(note_of(rank, 51), last + 1)
    trouble = hang(b, last + 62)
    assert (trouble.rank, trouble.node) == (None, node)
    assert "step 50" in trouble.evidence


def test_at_equal_steps_the_rank_in_another_phase_is_named() -> None:
    b = new_run()
    last = run(b, 50, 1.0, ranks=4)
    for step in range(51, 54):
        for phase in ("data", "backward"):
            last += 0.5
            for rank in range(4):
                b.add(note_of(rank, phase=phase), last)
        for rank in range(4):
            b.add(note_of(rank, step), last)
    for rank in range(4):
        b.add(note_of(rank, phase="data"), last + 0.1)
    for rank in (0, 1, 3):
        b.add(note_of(rank, phase="backward"), last + 0.2)
    trouble = hang(b, last + 62)
    assert trouble.rank == 2
    assert "rank 2 on n1 (GPU 0) is in data, the other 3 in backward" in trouble.why


def test_what_a_rank_did_before_the_run_went_back_is_not_compared() -> None:
    b = new_run()
    last = run(b, 100, 1.0, ranks=4)
    b.add(ProgressNote(step=90, rank=0, pid=900), last + 5)
    assert hang(b, last + 5 + 2000).rank is None


def test_steps_that_restart_each_epoch_are_progress() -> None:
    b = new_run()
    last = run(b, 100, 1.0, ranks=2)
    last = run(b, 50, 1.0, ranks=2, at=last)
    assert b.step == 50
    assert b.trouble(last + 59) is None
    b.add(note_of(1, 51), last + 1)
    assert hang(b, last + 62).rank == 0


def test_a_datagram_that_was_overtaken_is_no_restart() -> None:
    b = new_run()
    last = run(b, 50, 1.0)
    b.add(note_of(0, 49), last + 0.01)
    assert b.step == 50


def test_nan_loss_is_reported_at_once_and_once() -> None:
    b = new_run()
    last = run(b, 50, 1.0)
    b.add(note_of(3, 50, loss=0.5), last + 0.5)
    b.add(note_of(3, 51, loss=float("nan")), last + 1)
    b.add(note_of(0, 51, loss=0.5), last + 1)
    b.add(note_of(3, 52, loss=float("inf")), last + 2)
    trouble = b.trouble(last + 2)
    assert (trouble.kind, trouble.rank, trouble.node) == (TroubleKind.NAN, 3, "n1")
    assert trouble.step == 51
    assert b.finite_at == b.convert_monotonic_to_datetime(last + 0.5), (
        "no loss after that was a number on all ranks"
    )
    assert b.trouble(last + 2) is None
    b.add(note_of(3, 53, loss=1.0), last + 3)
    b.add(note_of(3, 54, loss=float("nan")), last + 4)
    assert b.trouble(last + 4) is not None


def test_loss_far_over_its_past_is_reported() -> None:
    b = new_run()
    for step in range(103):
        b.add(note_of(0, step, loss=2.0 + step % 5 / 100 if step < 100 else 9.0), 1001.0 + step)
    assert b.trouble(1103.0).kind is TroubleKind.SPIKE


@pytest.mark.parametrize("tokens", [None, 4096.0])
def test_run_far_under_its_own_throughput_is_reported(tokens: float | None) -> None:
    b, at = new_run(), 1000.0
    for step in range(110):
        at += 1.0 + step % 3 / 100 if step < 100 else 2.0
        b.add(note_of(0, step, tokens=tokens), at)
    trouble = b.trouble(at)
    assert trouble.kind is TroubleKind.SLOW
    assert ("tokens/s" in trouble.why) is (tokens is not None)


def test_the_last_checkpoint_is_the_troubles_progress() -> None:
    b = new_run()
    last = run(b, 50, 1.0)
    b.add(note_of(0, checkpoint="/c/40", step=40), last)
    assert b.step == 50
    last = run(b, 5, 1.0, at=last, start=51)
    assert hang(b, last + 61).progress == 40


def test_long_saves_stretch_the_bound_and_outlive_a_restart() -> None:
    b = new_run()
    last = run(b, 50, 1.0)
    b.add(note_of(0, checkpoint="/c/50", step=50, seconds=400.0), last + 1)
    second = derive_next(b)
    last = run(second, 50, 1.0, at=5000.0)
    second.add(note_of(0, saving=True), last)
    hang(second, last + 1201, none_at=last + 1190)


def test_phases_within_each_step_do_not_loosen_the_bound() -> None:
    b, at = new_run(), 1000.0
    for step in range(1, 50):
        for phase in ("data", "forward", "backward"):
            at += 0.3
            b.add(note_of(0, phase=phase), at)
        at += 0.1
        b.add(note_of(0, step), at)
    b.add(note_of(0, phase="data"), at)
    hang(b, at + 61)


def test_a_second_start_is_judged_by_the_first() -> None:
    first = new_run()
    first.add(note_of(0, 1), 1000.0 + 90)
    run(first, 20, 2.0, at=1090.0, start=2)
    hang(derive_next(first), 5000.0 + 601, none_at=5000.0 + 599)
    second = derive_next(first)
    second.add(note_of(0, 10), 5050.0)
    hang(second, 5050.0 + 61, none_at=5050.0 + 59)


def test_slow_first_steps_may_be_slow_again() -> None:
    first = new_run()
    first.add(note_of(0, 1), 1001.0)
    first.add(note_of(0, 2), 1101.0)
    run(first, 20, 2.0, at=1101.0, start=3)
    assert first.trouble(1141.0 + 61) is not None
    second = derive_next(first)
    second.add(note_of(0, 10), 5050.0)
    hang(second, 5050.0 + 301, none_at=5050.0 + 299)


NOTES = st.builds(
    ProgressNote, step=st.none() | st.integers(0, 50) | st.just((1 << 53) - 1),
    loss=st.none() | st.floats(), tokens=st.none() | st.floats(), seconds=st.none() | st.floats(),
    rank=st.none() | st.integers(0, 5), pid=st.none() | st.integers(1, 3),
    phase=st.sampled_from(["", "-", "data", "eval"]), checkpoint=st.sampled_from(["", "/c"]),
    saving=st.none() | st.booleans(), done=st.booleans(),
    restart=st.sampled_from([False, False, False, True]), lost=st.integers(0, 3),
)  # fmt: skip
TALK = st.lists(st.tuples(NOTES, st.floats(0.0, 500.0)), max_size=60)


def play_notes(talk: list[tuple[ProgressNote, float]]) -> tuple[RunProgress, list[object]]:
    progress, at, troubles = RunProgress(POLICY, 0.0, BEGAN), 0.0, []
    for note, pause in talk:
        at += pause
        progress.add(note, at)
        troubles.append(progress.trouble(at))
    end = at + 1e6
    troubles += [progress.trouble(end) for _ in range(40)]
    return progress, troubles


@given(TALK)
@settings(deadline=None)
def test_whatever_is_said_it_ends_in_one_hang_and_no_error(
    talk: list[tuple[ProgressNote, float]],
) -> None:
    progress, troubles = play_notes(talk)
    hangs = [one for one in troubles[len(talk) :] if getattr(one, "kind", None) is TroubleKind.HANG]
    assert len(hangs) <= 1
    # It was told already if the silence before the end was the same one.
    assert hangs or progress.hang(1e9) is not None
    assert troubles[-1] is None
    assert len(progress.ranks) <= 6


@given(TALK, st.floats(0.0, 59.9))
@settings(deadline=None)
def test_nothing_is_a_hang_within_the_floor(
    talk: list[tuple[ProgressNote, float]], wait: float
) -> None:
    progress, at = RunProgress(POLICY, 0.0, BEGAN), 0.0
    for note, pause in talk:
        at += pause
        progress.add(note, at)
    assert at - progress.last_progress_at > 0 or progress.hang(at + wait) is None


@given(st.floats(0.01, 500.0), st.integers(5, 80))
@settings(deadline=None)
def test_hang_of_a_steady_run_is_reported_within_three_steps_or_the_floor(
    step_s: float, steps: int
) -> None:
    progress, at = RunProgress(POLICY, 0.0, BEGAN), 0.0
    for step in range(steps):
        at += step_s
        progress.add(ProgressNote(step=step, rank=0), at)
        assert progress.trouble(at) is None
    bound = max(60.0, 3 * step_s)
    assert progress.hang(at + bound * 0.99) is None
    assert progress.hang(at + bound * 1.01) is not None
