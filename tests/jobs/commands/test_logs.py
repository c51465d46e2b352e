"""`hpctl policy test-logs` and `hpctl policy log-rules`."""

import errno
import json
import os
from pathlib import Path

import pytest

from hpctl.jobs.logs.rules import load_log_rule_preset, parse_log_rules
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.log_presets import PRESETS
from tests.fakes import command_line

pytestmark = pytest.mark.integration

SAMPLES = Path(__file__).parents[2] / "jobs" / "logs" / "samples"


def run(name, *args):
    return command_line.run("policy", name, *args, width=160)


@pytest.fixture
def rules(tmp_path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "logMonitoringConfiguration:\n"
        "- {name: high, logPattern: 'loss: (.*)', metricThreshold: 2, operator: gt}\n"
        "- {name: stuck, logPattern: 'loss: ', expectedRecurringFrequencyInSeconds: 60}\n"
    )
    return path


def test_logs_command_shows_which_rules_fire_and_when(rules, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "2026-11-21T12:00:00Z loss: 1\n2026-11-21T12:01:00Z loss: soon\n"
        "2026-11-21T12:02:00Z loss: 3\n  a line without a time\n2026-11-21T12:05:00Z loss: 1\n"
    )
    shown = run("test-logs", rules, log)
    assert shown.exit_code == 1
    high, stuck = (line.split() for line in shown.stdout.splitlines()[1:3])
    assert high[:5] == ["2026-11-21", "12:02:00", "3", "threshold", "high"]
    assert stuck[:5] == ["2026-11-21", "12:03:00", "3", "hang", "stuck"]
    assert "'high' captured 1 times what is no number" in shown.stdout
    document = json.loads(run("test-logs", rules, log, "--json").stdout)
    assert document["schema"] == "hpctl.logs-test/1"
    assert [v["value"] for v in document["verdicts"]] == ["3", ""]
    assert document["rules"][1]["due"] == "2026-11-21T12:06:00Z"


def test_a_log_without_times_says_that_hangs_were_not_judged(rules, tmp_path):
    (tmp_path / "log").write_text("loss: 1\n")
    shown = run("test-logs", rules, tmp_path / "log")
    assert shown.exit_code == 0
    assert "nothing would have fired" in shown.stdout
    assert "1 rules judged no hang" in shown.stdout


def test_presets_and_rules_add_up(rules):
    document = json.loads(
        run("test-logs", rules, SAMPLES / "deepspeed.txt", "--preset", "deepspeed", "--json").stdout
    )
    assert len(document["rules"]) == 2 + len(load_log_rule_preset("deepspeed").rules)
    assert {v["rule"] for v in document["verdicts"]} > {"high", "deepspeed slow"}


def test_a_log_that_cannot_be_read_is_exit_code_3_and_no_usage_error(tmp_path, monkeypatch):
    def denied(path, *_, **__) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    # `main` makes 3 of an Unavailable; what fired is 1, and nothing was looked at here.
    for log in (tmp_path / "none", tmp_path):
        assert isinstance(run("test-logs", "--preset", "hf", log).exception, ServiceUnavailable)
    locked = tmp_path / "locked"
    locked.write_text("")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "open", denied)
    assert isinstance(run("test-logs", "--preset", "hf", locked).exception, ServiceUnavailable)


def test_every_preset_can_be_printed_and_is_rules():
    assert run("log-rules").stdout.split() == list(PRESETS)
    for name in PRESETS:
        assert parse_log_rules(run("log-rules", name).stdout) == load_log_rule_preset(name)
