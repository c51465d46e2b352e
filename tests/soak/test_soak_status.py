"""How the soak judges what `hpctl status` answered."""

import pytest

from tests.soak.status import NOTICED_S, Answer, Row, Struck, _judge

NAMES, SILENT = ("Job 1 (run.sh) failed.",), ("Job 3 (run.sh) failed.",)


def judge(*answers: tuple[float, tuple[str, ...]], open_s: float = 40.0) -> list[str]:
    """Judge answers about a fault at second 100, each so many seconds after it."""
    given = [Answer(100 + after_s, 100.1 + after_s, 1, lines) for after_s, lines in answers]
    looks = [100 + half / 2 for half in range(int(2 * open_s) + 1)]
    fault = Struck("a rank is killed", subject="Job 1", began=100.0, looks=looks)
    return _judge(fault, Row("kill-rank"), given, named_s=30.0)


def test_a_fault_that_stays_named_is_no_miss():
    assert judge((1, NAMES), (5, NAMES), (20, NAMES)) == []


def test_what_was_named_for_something_before_may_be_silent_until_the_fault_is_noticed():
    assert judge((0.2, NAMES), (1.2, SILENT), (2.2, NAMES), (20, NAMES)) == []


@pytest.mark.parametrize("after_s", [NOTICED_S + 1, 30])
def test_a_fault_that_is_no_longer_named_is_a_miss(after_s):
    (miss,) = judge((1, NAMES), (after_s, SILENT), (after_s + 1, SILENT), (after_s + 2, NAMES))
    assert f"at {after_s + 0.1:.0f} s status answered" in miss


def test_one_silent_answer_is_no_miss_for_the_world_is_read_before_or_after_it():
    assert judge((1, NAMES), (20, SILENT), (21, NAMES)) == []


def test_two_silent_answers_are_no_miss_where_the_world_was_not_read_between_them():
    answers = ((1, NAMES), (20.0, SILENT), (20.2, SILENT), (21, NAMES))
    assert judge(*answers) == []


def test_a_fault_that_is_named_late_or_never_is_a_miss():
    (late,) = judge((5, SILENT), (31, NAMES))
    assert "named after 31 s" in late
    (never,) = judge((5, SILENT), (31, SILENT))
    assert "never named in 40 s" in never
