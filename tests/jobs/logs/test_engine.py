"""The engine: consecutive points, hangs and when to look for them, stops, latches."""

from __future__ import annotations

import random

import pytest

from hpctl.jobs.logs.engine import SHOWN
from tests.jobs.logs.made import block, engine, rule, told


@pytest.mark.parametrize(
    ("operator", "fires"),
    [("gt", [3]), ("gteq", [2, 3]), ("lt", [1]), ("lteq", [1, 2]), ("eq", [2])],
)
def test_each_operator_compares_with_the_threshold(operator: str, fires: list[int]) -> None:
    for value in (1, 2, 3):
        found = engine(rule(metricThreshold=2, operator=operator)).feed(block(value), 5.0)
        assert bool(found) == (value in fires)


def test_only_consecutive_points_count_and_a_verdict_is_told_once() -> None:
    watch = engine(rule(metricThreshold=2, operator="gt", metricEvaluationDataPoints=3))
    assert watch.feed(block(3, 3, 1, 3, 3), 1.0) == []
    found = watch.feed(block(3, 3, 3), 2.0)
    assert told(found) == [("threshold", 6, "3")]
    assert (found[0].at, found[0].line) == (2.0, "loss: 3")
    assert told(watch.feed(block(1, 3, 3, 3), 3.0)) == [("threshold", 12, "3")]


def test_text_that_is_no_number_neither_counts_nor_breaks_a_row() -> None:
    watch = engine(rule(metricThreshold=2, operator="gt", metricEvaluationDataPoints=2))
    found = watch.feed(block(3, "soon", "9" * 5000, "1_0", 3), 1.0)
    assert told(found) == [("threshold", 5, "3")]
    assert watch.watches[0].unread == 3


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "tensor(nan)", "nan,"])
def test_nan_and_inf_are_seen_in_every_spelling(text: str) -> None:
    assert told(engine(rule(kind="nan")).feed(block(1.0, text, text, 2), 0.0)) == [("nan", 2, text)]


def test_a_start_that_does_not_come_is_a_hang_once() -> None:
    watch = engine(rule(expectedStartCutOffInSeconds=60), started=100.0)
    assert watch.look(159.9) == []
    (found,) = watch.look(170.0)
    assert (found.what, found.at, found.line_number) == ("hang", 160.0, 0)
    assert "within 60 s of the start" in found.why
    assert watch.look(1000.0) == []


def test_a_gap_is_a_hang_and_the_next_match_ends_it() -> None:
    watch = engine(rule(expectedRecurringFrequencyInSeconds=10))
    assert watch.look(1e9) == [], "without a start cut-off nothing is due before the first match"
    watch.feed(b"x\n" + block(1), 50.0)
    watch.feed(b"another line\n", 55.0)
    assert watch.look(59.9) == []
    (found,) = watch.look(60.0)
    assert (found.at, found.line_number, found.line) == (60.0, 2, "loss: 1")
    watch.feed(block(2), 70.0)
    assert watch.look(79.9) == []
    assert [each.at for each in watch.look(90.0)] == [80.0]


def test_a_stop_line_ends_a_rule_from_there_on() -> None:
    stopped = rule(
        metricThreshold=2, operator="gt", stopPattern="^done", expectedRecurringFrequencyInSeconds=5
    )
    watch = engine(stopped)
    assert watch.feed(block(1) + b"done loss: 3\n" + block(3), 1.0) == []
    assert watch.feed(block(3), 2.0) == []
    assert watch.look(1e9) == []
    assert told(engine(stopped).feed(block(3) + b"done\n", 1.0)) == [("threshold", 1, "3")]


def test_failed_uploads_count_until_one_succeeds() -> None:
    upload = rule(
        logPattern="upload failed",
        kind="upload",
        successPattern="upload done",
        metricEvaluationDataPoints=2,
    )
    watch = engine(upload)
    assert watch.feed(b"upload failed\nupload done\nupload failed\n", 0.0) == []
    assert told(watch.feed(b"upload failed\nupload failed\n", 1.0)) == [("upload", 4, "")]
    watch.feed(b"upload done\n", 2.0)
    assert told(watch.feed(b"upload failed\nupload failed\n", 3.0)) == [("upload", 8, "")]


def test_where_the_blocks_are_cut_changes_nothing() -> None:
    random_ = random.Random(4)
    lines = [f"loss: {random_.choice(['1', '3', 'nan'])}\n".encode() for _ in range(300)]
    rules = (
        rule(metricThreshold=2, operator="gt", metricEvaluationDataPoints=2),
        rule(name="n", kind="nan"),
        rule(name="s", kind="seen", logPattern="loss: 1", successPattern="loss: nan"),
    )
    whole = engine(*rules).feed(b"".join(lines), 0.0)
    one_by_one = engine(*rules)
    found = [verdict for line in lines for verdict in one_by_one.feed(line, 0.0)]
    assert {(v.rule, v.line_number) for v in found} == {(v.rule, v.line_number) for v in whole}
    assert len(found) == len(whole) > 10


def test_what_a_verdict_shows_of_a_line_is_bounded_and_cannot_steer_a_terminal() -> None:
    line = b"\x1b[2J\xff loss: nan " + b"x" * 10_000 + b"\n"
    (found,) = engine(rule(kind="nan")).feed(line, 0.0)
    assert len(found.line) <= SHOWN
    assert found.line.isprintable()
    assert "loss: nan" in found.line
