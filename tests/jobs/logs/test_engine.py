"""The engine: consecutive points, spikes, hangs and when to look for them, stops, latches."""

import math
import random

import pytest

from hpctl.jobs.logs.engine import SHOWN, LogRuleEngine, LogRuleVerdict
from hpctl.jobs.logs.rules import LogRule, LogRuleSet

pytestmark = pytest.mark.integration


def rule(**keys) -> LogRule:
    return LogRule(**{"name": "r", "logPattern": r"loss: (\S+)", **keys})


def engine(*rules: LogRule, started: float = 0.0) -> LogRuleEngine:
    return LogRuleEngine(LogRuleSet(rules), started)


def block(*values) -> bytes:
    return "".join(f"loss: {value}\n" for value in values).encode()


def list_verdicts(verdicts: list[LogRuleVerdict]) -> list[tuple[str, int, str]]:
    return [(v.what, v.line_number, v.value) for v in verdicts]


@pytest.mark.parametrize(
    ("operator", "fires"),
    [("gt", [3]), ("gteq", [2, 3]), ("lt", [1]), ("lteq", [1, 2]), ("eq", [2])],
)
def test_each_operator_compares_with_the_threshold(operator: str, fires: list[int]) -> None:
    for value in (1, 2, 3):
        found = engine(rule(metricThreshold=2, operator=operator)).feed(block(value), 5.0)
        assert bool(found) == (value in fires)


def test_verdict_needs_consecutive_points_and_is_given_once() -> None:
    watch = engine(rule(metricThreshold=2, operator="gt", metricEvaluationDataPoints=3))
    assert watch.feed(block(3, 3, 1, 3, 3), 1.0) == []
    found = watch.feed(block(3, 3, 3), 2.0)
    assert list_verdicts(found) == [("threshold", 6, "3")]
    assert (found[0].at, found[0].line) == (2.0, "loss: 3")
    assert list_verdicts(watch.feed(block(1, 3, 3, 3), 3.0)) == [("threshold", 12, "3")]


def test_text_that_is_no_number_neither_counts_nor_breaks_a_row() -> None:
    watch = engine(rule(metricThreshold=2, operator="gt", metricEvaluationDataPoints=2))
    found = watch.feed(block(3, "soon", "9" * 5000, "1_0", 3), 1.0)
    assert list_verdicts(found) == [("threshold", 5, "3")]
    assert watch.watches[0].unread == 3


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "tensor(nan)", "nan,"])
def test_nan_and_inf_are_seen_in_every_spelling(text: str) -> None:
    assert list_verdicts(engine(rule(kind="nan")).feed(block(1.0, text, text, 2), 0.0)) == [
        ("nan", 2, text)
    ]


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
    assert list_verdicts(engine(stopped).feed(block(3) + b"done\n", 1.0)) == [("threshold", 1, "3")]


def test_failed_uploads_count_until_one_succeeds() -> None:
    upload = rule(
        logPattern="upload failed",
        kind="upload",
        successPattern="upload done",
        metricEvaluationDataPoints=2,
    )
    watch = engine(upload)
    assert watch.feed(b"upload failed\nupload done\nupload failed\n", 0.0) == []
    assert list_verdicts(watch.feed(b"upload failed\nupload failed\n", 1.0)) == [("upload", 4, "")]
    watch.feed(b"upload done\n", 2.0)
    assert list_verdicts(watch.feed(b"upload failed\nupload failed\n", 3.0)) == [("upload", 8, "")]


def test_block_borders_change_no_verdict() -> None:
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


def falling(steps: int, seed: int = 1) -> list[float]:
    noise = random.Random(seed)
    return [2 + 8 * math.exp(-step / 12) + noise.gauss(0, 0.05) for step in range(steps)]


def test_a_healthy_loss_of_many_seeds_is_no_spike() -> None:
    for seed in range(60):
        assert engine(rule(kind="spike")).feed(block(*falling(300, seed)), 0.0) == []


def test_a_spike_is_seen_on_its_third_point_also_while_the_loss_still_falls() -> None:
    for at in (30, 60, 200):
        loss = falling(300)
        loss[at : at + 5] = [value * 3 for value in loss[at : at + 5]]
        found = engine(rule(kind="spike")).feed(block(*loss), 0.0)
        assert [(v.what, v.line_number) for v in found] == [("spike", at + 3)]


def test_one_outlier_is_no_spike_and_is_one_where_the_rule_says_so() -> None:
    loss = falling(100)
    loss[80] = 50.0
    assert engine(rule(kind="spike")).feed(block(*loss), 0.0) == []
    strict = rule(kind="spike", metricEvaluationDataPoints=1)
    assert list_verdicts(engine(strict).feed(block(*loss), 0.0)) == [("spike", 81, "50.0")]


def test_a_flat_loss_does_not_alarm_at_a_trifle() -> None:
    assert engine(rule(kind="spike")).feed(block(*[2.0] * 50, *[2.1] * 50), 0.0) == []


def test_a_new_level_is_learned_after_a_window_of_it() -> None:
    watch = engine(rule(kind="spike", window=50))
    found = watch.feed(block(*[2.0] * 60, *[4.0] * 200, *[12.0] * 5), 0.0)
    assert [v.line_number for v in found] == [63, 263]


def test_slow_run_is_detected_by_throughput_or_step_time() -> None:
    fast = [1000.0 + step % 7 for step in range(100)]
    slow = [700.0 + step % 7 for step in range(30)]
    by_throughput = engine(rule(kind="slow")).feed(block(*fast, *slow, *fast), 0.0)
    assert [(v.what, v.line_number) for v in by_throughput] == [("slow", 110)]
    times = [1e3 / value for value in fast + slow]
    by_time = engine(rule(kind="slow", worse="higher")).feed(block(*times), 0.0)
    assert [v.line_number for v in by_time] == [110]
    assert engine(rule(kind="slow", worse="higher")).feed(block(*fast, *slow), 0.0) == []
