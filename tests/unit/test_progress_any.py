"""The book under anything that ranks may say, in any order: bounded, total, the same each time."""

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.core.compat import UTC
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import Kind
from hpctl.jobs.progress.notes import Note
from hpctl.jobs.progress.run_progress import RunProgress

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = RunPolicy()
NOTES = st.builds(
    Note,
    step=st.none() | st.integers(0, 50) | st.just((1 << 53) - 1),
    loss=st.none() | st.floats(),
    tokens=st.none() | st.floats(),
    seconds=st.none() | st.floats(),
    rank=st.none() | st.integers(0, 5),
    pid=st.none() | st.integers(1, 3),
    phase=st.sampled_from(["", "-", "data", "eval"]),
    checkpoint=st.sampled_from(["", "/c"]),
    saving=st.none() | st.booleans(),
    done=st.booleans(),
    restart=st.sampled_from([False, False, False, True]),
    lost=st.integers(0, 3),
)
TALK = st.lists(st.tuples(NOTES, st.floats(0.0, 500.0)), max_size=60)


def told(talk: list[tuple[Note, float]]) -> tuple[RunProgress, list[object]]:
    book, at, troubles = RunProgress(POLICY, 0.0, BEGAN), 0.0, []
    for note, pause in talk:
        at += pause
        book.add(note, at)
        troubles.append(book.trouble(at))
    end = at + 1e6
    troubles += [book.trouble(end) for _ in range(40)]
    return book, troubles


@given(TALK)
@settings(deadline=None)
def test_whatever_is_said_it_ends_in_one_hang_and_no_error(talk: list[tuple[Note, float]]) -> None:
    book, troubles = told(talk)
    hangs = [one for one in troubles[len(talk) :] if getattr(one, "kind", None) is Kind.HANG]
    assert len(hangs) <= 1
    # It was told already if the silence before the end was the same one.
    assert hangs or book.hang(1e9) is not None
    assert troubles[-1] is None
    assert len(book.ranks) <= 6


@given(TALK, st.floats(0.0, 59.9))
@settings(deadline=None)
def test_nothing_is_a_hang_within_the_floor(talk: list[tuple[Note, float]], wait: float) -> None:
    book, at = RunProgress(POLICY, 0.0, BEGAN), 0.0
    for note, pause in talk:
        at += pause
        book.add(note, at)
    assert at - book.moved > 0 or book.hang(at + wait) is None


@given(st.floats(0.01, 500.0), st.integers(5, 80))
@settings(deadline=None)
def test_a_steady_run_is_told_within_three_steps_or_the_floor(step_s: float, steps: int) -> None:
    book, at = RunProgress(POLICY, 0.0, BEGAN), 0.0
    for step in range(steps):
        at += step_s
        book.add(Note(step=step, rank=0), at)
        assert book.trouble(at) is None
    bound = max(60.0, 3 * step_s)
    assert book.hang(at + bound * 0.99) is None
    assert book.hang(at + bound * 1.01) is not None
