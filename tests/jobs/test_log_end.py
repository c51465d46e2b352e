"""The lines of a log that explain its end: of a large job, the error that came first is kept."""

from datetime import datetime
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hpctl.jobs.crash import classify_crash
from hpctl.jobs.log_end import SURVIVED_LINES, LogTailBuffer
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import TroubleKind

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FIRST, LAST = 60, 50
STEPS = [f"step {number} loss 2.5" for number in range(200)]


def raise_in(rank: int, error: str, frames: int = 30) -> list[str]:
    """Return the traceback of one rank, as torch's hook for exceptions prints it."""
    place = f'[rank{rank}]:   File "/home/u/train.py", line 7, in step'
    header = f"[rank{rank}]: Traceback (most recent call last):"
    return [header, *[place] * frames, f"[rank{rank}]: {error}"]


def read(lines: list[str], size: int = 1 << 20) -> list[str]:
    """Return what is kept of a log that arrives in blocks of so many lines."""
    end = LogTailBuffer(FIRST, LAST)
    for at in range(0, len(lines), size):
        end.add_log_block("".join(f"{line}\n" for line in lines[at : at + size]).encode(), 2000)
    return end.list_lines()


def classify(lines: list[str]):
    return classify_crash(1, lines, at=AT, policy=RunPolicy())


LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:7053."
LARGE = [
    *STEPS,
    *raise_in(37, "ValueError: token 50304 is not in the vocabulary"),
    *chain.from_iterable(raise_in(rank, LOST) for rank in range(512) if rank != 37),
]


def test_the_first_error_of_512_ranks_is_kept():
    kept = read(LARGE, 100)
    assert len(kept) <= FIRST + LAST
    found = classify(kept)
    assert found.rank == 37
    assert "ValueError" in found.why
    assert classify(LARGE[-FIRST - LAST :]).kind is TroubleKind.NETWORK, "the end does not show it"


def test_an_error_that_the_run_survived_is_dropped():
    lines = raise_in(1, "ValueError: a bad sample is skipped") + STEPS[:SURVIVED_LINES]
    assert any("ValueError" in line for line in read([*lines[:-1], *raise_in(2, LOST, 60)]))
    assert not any("ValueError" in line for line in read([*lines, *raise_in(2, LOST, 60)]))


def test_last_lines_of_exceptions_do_not_count_as_ordinary_output():
    plain = ["Traceback (most recent call last):", '  File "/home/u/t.py", line 1, in f', LOST]
    kept = read([*raise_in(3, "KeyError: 'x'"), *plain * 100])
    assert any("KeyError" in line for line in kept)


def test_last_lines_of_many_ranks_in_a_row_do_not_count_as_ordinary_output():
    headers = ["Traceback (most recent call last):"] * 60
    lasts = ["RuntimeError: Connection closed by peer"] * 60
    lines = [*raise_in(3, "KeyError: 'x'"), *headers, *lasts]
    assert any("KeyError" in line for line in read(lines))


def test_lines_before_the_first_traceback_are_kept():
    assertion = "IndexKernel.cu:92: block: [0,0,0] Assertion `index` failed."
    assert assertion in read([*STEPS, assertion, *LARGE[200:]])


LINES = st.lists(
    st.sampled_from(["step", "Traceback (most recent call last):", "  frame", "ValueError: x", ""]),
    max_size=300,
)


@given(LINES, st.integers(1, 50))
def test_lines_are_kept_once_in_their_order_however_they_arrive(lines, size):
    numbered = [f"{line} {number}" for number, line in enumerate(lines)]
    kept = read(numbered, size)
    places = [numbered.index(line) for line in kept]
    assert places == sorted(set(places))
    assert kept[-LAST:] == numbered[-LAST:]
    assert kept == read(numbered)
    if len(numbered) <= LAST:
        assert kept == numbered


def test_lines_are_gone_after_they_are_cleared():
    end = LogTailBuffer(FIRST, LAST)
    end.add_log_block("\n".join(LARGE).encode() + b"\n", 2000)
    end.clear()
    end.add_log_block(b"step 1\n", 2000)
    assert end.list_lines() == ["step 1"]
