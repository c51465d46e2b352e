"""Patterns: the same answers as Python's `re` line by line, and never more than linear time."""

import random
import re
import time

import pytest

from hpctl.jobs.logs.patterns import LogLinePattern, LogPatternMatch
from tests.tables import beside

pytestmark = pytest.mark.integration

CASES = beside(__file__, "rules_cases.yaml")

HONEST = [
    r"loss: (\S+)", r"^a.*b$", r"a\sb", r"[^x]b", r"(?s)a.b", r"(?i)LOSS", r"\ba+(b)?", r"a*$",
    r"(a|ab)(?:c|bcd)", r".*(a).*", r"b|^a",
]  # fmt: skip


def line_by_line(text: str, block: bytes) -> list[tuple[int, int, bytes | None]]:
    compiled = re.compile(text.encode())
    found, begin = [], 0
    for line in block.splitlines():
        if match := compiled.search(line):
            captured = match.group(1) if compiled.groups else None
            found.append((begin + match.start(), begin + len(line), captured))
        begin += len(line) + 1
    return found


@pytest.mark.parametrize("text", HONEST)
def test_one_pass_over_a_block_finds_what_re_finds_in_each_line(text: str) -> None:
    random_ = random.Random(text)
    for _ in range(200):
        lines = [
            "".join(random_.choices(["a", "b", "c", " ", "x", "loss: 1.5"], k=random_.randrange(7)))
            for _ in range(8)
        ]
        block = "".join(f"{line}\n" for line in lines).encode()
        assert [tuple(m) for m in LogLinePattern(text).matches(block)] == line_by_line(text, block)


def test_bytes_that_are_no_text_do_not_hide_the_rest_of_a_line() -> None:
    block = b"\xff\xfe\x80 step \xc3 loss: 2.5 \xff\nx\n"
    assert list(LogLinePattern(r"^.* loss: (\S+) .").matches(block)) == [
        LogPatternMatch(0, 22, b"2.5")
    ]


EXPONENTIAL = [r"(?:a+)+b", r"(?:a|a)*b", r"(?:a|aa)+b", r"^(?:(?:a+)+)+b", r"(?:.*a){12}b"]


@pytest.mark.parametrize("text", EXPONENTIAL)
def test_catastrophic_patterns_take_linear_time(text: str) -> None:
    """Python's `re` needs seconds for 30 such characters, and twice that for one more."""
    pattern = LogLinePattern(text)
    begun = time.process_time()
    assert list(pattern.matches(b"a" * 200_000 + b"\n")) == []
    assert time.process_time() - begun < 2.0


def test_lines_made_to_overflow_the_automaton_cost_in_proportion_to_the_pattern() -> None:
    random_ = random.Random(1)
    block = "".join(random_.choices("ab", k=64_000)).encode() + b"\n"
    begun = time.process_time()
    assert list(LogLinePattern("a.{450}c").matches(block)) == []
    assert time.process_time() - begun < 3.0


@pytest.mark.parametrize(("text", "says"), CASES["patterns"])
def test_what_cannot_be_matched_safely_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LogLinePattern(text)
