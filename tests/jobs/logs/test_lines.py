"""Bytes into lines: wherever reads cut them, the lines are the same."""

from __future__ import annotations

import random

import pytest

from hpctl.jobs.logs.follow import LONGEST_LINE, LineCutter


def cut(data: bytes, at: list[int]) -> bytes:
    cutter, made = LineCutter(), b""
    for begin, end in zip([0, *at], [*at, len(data)], strict=True):
        made += cutter.cut(data[begin:end])
    return made + cutter.finish()


@pytest.mark.parametrize("seed", range(50))
def test_where_reads_cut_changes_nothing(seed: int) -> None:
    random_ = random.Random(seed)
    data = bytes(random_.choices(b"ab\n\r\0", weights=[9, 9, 3, 2, 1], k=200))
    cuts = sorted(random_.sample(range(200), 12))
    assert cut(data, cuts) == cut(data, [])


def test_carriage_returns_end_lines_and_nul_bytes_are_dropped() -> None:
    assert cut(b"\0\0\0a\r\nb 1\rb 2\rb 3\nc", []) == b"a\nb 1\nb 2\nb 3\nc\n"


@pytest.mark.parametrize("step", [4096, 1 << 20])
def test_a_huge_line_is_cut_at_the_bound_and_its_rest_passed_over(step: int) -> None:
    cutter, made = LineCutter(), []
    data = b"x" * (3 * LONGEST_LINE) + b"rest\nnext\n"
    for begin in range(0, len(data), step):
        made.append(cutter.cut(data[begin : begin + step]))
        assert len(cutter._carry) <= LONGEST_LINE
    assert b"".join(made) == b"x" * LONGEST_LINE + b"\nnext\n"


def test_an_unfinished_line_waits_and_can_be_forgotten() -> None:
    cutter = LineCutter()
    assert cutter.cut(b"half") == b""
    cutter.forget()
    assert cutter.cut(b"whole\n") == b"whole\n"
    assert cutter.finish() == b""
