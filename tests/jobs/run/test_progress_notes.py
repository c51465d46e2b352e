"""Lines that ranks report, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.jobs.run.progress_notes import (
    ProgressNote,
    find_progress_notes_in_log,
    parse_progress_note,
)
from hpctl.progress import quoted


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (b"step=12", ProgressNote(step=12)),
        (b"step=12 loss=0.5 rank=3 node=n-1 pid=77 gpu=5 lost=2\n",
         ProgressNote(step=12, loss=0.5, rank=3, node="n-1", pid=77, gpu="5", lost=2)),
        (b"saving=0", ProgressNote(saving=False)),
        (b"done=1 rank=0", ProgressNote(rank=0, done=True)),
        (b"phase=eval lr=0.5", ProgressNote(phase="eval")),
        (b"checkpoint=/a%20b/c step=10 seconds=2.5",
         ProgressNote(step=10, checkpoint="/a b/c", seconds=2.5)),
    ],
)  # fmt: skip
def test_what_a_line_says(line: bytes, note: ProgressNote) -> None:
    assert parse_progress_note(line) == note


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"loss=0.5", b"rank=3", b"step=", b"step=-1", b"step=1_0", b"step=12.5",
        b"step=9999999999999999999", b"hello world", b"{}", b"12 0.25", b"\xff\xfe step=1",
        b"step=1" + b" x=1" * 2000,
        "step=\u0661\u0662".encode(), b"-5 0.3", b"nan",
    ],
)  # fmt: skip
def test_what_is_no_note(line: bytes) -> None:
    assert parse_progress_note(line) is None


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", "Infinity"])
def test_a_loss_may_be_no_number(text: str) -> None:
    note = parse_progress_note(f"step=1 loss={text}".encode())
    assert note.loss is not None
    assert not abs(note.loss) < float("inf")


def test_names_that_slurm_cannot_have_are_no_nodes() -> None:
    assert parse_progress_note(b"step=1 node=a;rm%20-rf phase=" + b"x" * 65) == ProgressNote(step=1)


def test_the_notes_of_a_log() -> None:
    block = (
        b"epoch 1\n"
        b"hpctl-progress step=12 loss=0.3\n"
        b"3: hpctl-progress step=13\n"
        b"[2026-11-21 12:00:00] 4: hpctl-progress step=13 rank=9\n"
        b"hpctl-progress nonsense\n"
        b"2026-11-21 INFO hpctl-progress done=1"
    )
    assert find_progress_notes_in_log(block) == [
        ProgressNote(step=12, loss=0.3), ProgressNote(step=13, rank=3), ProgressNote(step=13,
        rank=9), ProgressNote(done=True),
    ]  # fmt: skip


@given(
    st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=80)
)
def test_a_quoted_path_comes_back(path: str) -> None:
    assert parse_progress_note(f"checkpoint={quoted(path)} step=3".encode()) == ProgressNote(
        step=3, checkpoint=path
    )
