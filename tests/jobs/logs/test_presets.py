"""Each preset on a log in its framework's documented shape, with every kind of trouble in it.

The samples are written by us: a loss that falls from 10 to 2, times three in the steps 50 to 54;
steps 70 to 84 take 1.8 times as long; in step 95 the loss is NaN; an hour and a half passes
before step 101. A preset must tell each of them that its framework's log shows, and no more.
"""

from pathlib import Path

import pytest

from hpctl.jobs.logs import rules
from hpctl.jobs.logs.engine import LogReplayResult, replay_log_file
from hpctl.vocabulary import log_presets
from tests.tables import beside

pytestmark = pytest.mark.integration

SAMPLES = Path(__file__).parent / "samples"

EXPECTED = beside(__file__, "preset_verdicts.yaml")


def replay_preset(name: str) -> LogReplayResult:
    return replay_log_file(rules.load_log_rule_preset(name), SAMPLES / f"{name}.txt")


def test_every_preset_has_a_sample_and_the_other_way_round() -> None:
    assert set(log_presets.PRESETS) == set(EXPECTED) == {path.stem for path in SAMPLES.iterdir()}


@pytest.mark.parametrize("name", log_presets.PRESETS)
def test_a_preset_tells_each_trouble_of_its_sample_once_and_nothing_else(name: str) -> None:
    verdicts = replay_preset(name).verdicts
    assert [(v.what, v.rule) for v in verdicts] == [(w, rule) for w, rule, _ in EXPECTED[name]]
    for verdict, (_, _, part) in zip(verdicts, EXPECTED[name], strict=True):
        assert part in verdict.line, (part, verdict.line)


@pytest.mark.parametrize("name", ["hf", "lightning"])
def test_finished_run_is_no_longer_due(name: str) -> None:
    assert replay_preset(name).engine.look(1e12) == []
