"""Each preset on a log in its framework's documented shape, with every kind of trouble in it.

The samples are written by us: a loss that falls from 10 to 2, times three in the steps 50 to 54;
steps 70 to 84 take 1.8 times as long; in step 95 the loss is NaN; an hour and a half passes
before step 101. A preset must tell each of them that its framework's log shows, and no more.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from hpctl.core.compat import UTC
from hpctl.jobs.logs import rules
from hpctl.jobs.logs.engine import Replay, replay

SAMPLES = Path(__file__).parent / "samples"

# (what, the rule's name, a part of the line that must fire)
SPIKE, NAN, HANG = "spike", "nan", "hang"
EXPECTED = {
    "megatron": [
        (SPIKE, "megatron loss spike", "iteration       52/"),
        ("slow", "megatron slow", "iteration       79/"),
        (NAN, "megatron gradient norm is a number", "iteration       95/"),
        ("threshold", "megatron NaN iterations", "iteration       95/"),
        (HANG, "megatron progress", "iteration      100/"),
    ],
    "torchtitan": [
        (SPIKE, "torchtitan loss spike", "step: 52"),
        ("slow", "torchtitan slow", "step: 79"),
        (NAN, "torchtitan loss is a number", "step: 95"),
        (NAN, "torchtitan gradient norm is a number", "step: 95"),
        (HANG, "torchtitan progress", "step: 100"),
    ],
    "nemo": [
        (SPIKE, "nemo loss spike", "iteration 51/"),
        ("slow", "nemo slow", "iteration 78/"),
        (NAN, "nemo loss is a number", "iteration 94/"),
        (HANG, "nemo progress", "iteration 99/"),
    ],
    "hf": [
        (SPIKE, "hf loss spike", "'epoch': 0.47"),
        (NAN, "hf loss is a number", "'epoch': 0.86"),
        (NAN, "hf gradient norm is a number", "'epoch': 0.86"),
        (HANG, "hf progress", " 101/110 "),
    ],
    "lightning": [
        (SPIKE, "lightning loss spike", " 52/110 "),
        ("slow", "lightning slow, over a second a step", " 79/110 "),
        (NAN, "lightning loss is a number", " 95/110 "),
        (HANG, "lightning progress", " 100/110 "),
    ],
    "deepspeed": [
        (SPIKE, "deepspeed loss spike", "step 52 "),
        ("slow", "deepspeed slow", "global_step=79,"),
        (NAN, "deepspeed loss is a number", "step 95 "),
        (HANG, "deepspeed progress", "global_step=100,"),
    ],
    "s3-uploads": [
        ("upload", "checkpoint upload", "__1_0.distcp"),
        ("upload", "checkpoint upload", "SlowDown"),
    ],
}


def played(name: str) -> Replay:
    return replay(rules.preset(name), SAMPLES / f"{name}.txt")


def test_every_preset_has_a_sample_and_the_other_way_round() -> None:
    assert set(rules.PRESETS) == set(EXPECTED) == {path.stem for path in SAMPLES.iterdir()}


@pytest.mark.parametrize("name", rules.PRESETS)
def test_a_preset_tells_each_trouble_of_its_sample_once_and_nothing_else(name: str) -> None:
    verdicts = played(name).verdicts
    assert [(v.what, v.rule) for v in verdicts] == [(w, rule) for w, rule, _ in EXPECTED[name]]
    for verdict, (_, _, part) in zip(verdicts, EXPECTED[name], strict=True):
        assert part in verdict.line, (part, verdict.line)


@pytest.mark.parametrize("name", sorted(set(rules.PRESETS) - {"s3-uploads"}))
def test_a_hang_is_told_for_the_moment_it_was_due(name: str) -> None:
    hang = next(v for v in played(name).verdicts if v.what == HANG)
    assert "no line matched for" in hang.why
    at = datetime.fromtimestamp(hang.at, UTC)
    assert (
        datetime(2026, 11, 21, 12, 23, tzinfo=UTC) < at < datetime(2026, 11, 21, 12, 35, tzinfo=UTC)
    )


@pytest.mark.parametrize("name", ["hf", "lightning"])
def test_a_finished_run_is_not_due_any_more(name: str) -> None:
    assert played(name).engine.look(1e12) == []
