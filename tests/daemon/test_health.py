"""What the daemon logs of its troubles, and when it stores what it has in memory."""

import logging
import time
from typing import Any

import pytest

from hpctl.daemon.health import DaemonHousekeeping, InconsistentStateLogger
from hpctl.engine.config import Config
from hpctl.engine.live_config import LiveConfig
from hpctl.vocabulary.isolation import ItemProcessingFailure


class Part:
    """What may be in trouble."""

    trouble = ""


class Head:
    """Housekeeping with two parts that may be in trouble; a full disk fails the flush."""

    def __init__(self) -> None:
        self.parts = [Part(), Part()]
        self.flushes = 0
        self.noted: list[tuple[float, str]] = []
        here: Any = self
        self.told: list[dict[str, str]] = []
        named = dict(zip(("slurm", "page"), self.parts, strict=True))
        self.keeping = DaemonHousekeeping(
            LiveConfig(Config()), here, here, named, on_troubles=(self.told.append,)
        )

    def flush(self) -> None:
        self.flushes += 1

    def note(self, last_cycle_s: float, trouble: str, _mode: str) -> None:
        self.noted.append((last_cycle_s, trouble))


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_a_trouble_is_logged_when_it_comes_and_when_it_goes(caplog):
    caplog.set_level(logging.INFO, "hpctl.daemon")
    head = Head()
    head.keeping.run(0.1)
    assert (logged(caplog), head.noted) == ([], [(0.1, "")])
    head.parts[1].trouble = "no page"
    for _ in range(3):
        head.keeping.run(0.2)
    assert logged(caplog) == [("WARNING", "trouble=no page")]
    assert head.noted[1:] == [(0.2, "no page")], "at once, and once"
    head.parts[0].trouble = "slurmctld does not answer"
    head.keeping.run(0.3)
    assert logged(caplog) == [("WARNING", "trouble=slurmctld does not answer; no page")]
    assert head.told[-1] == {"slurm": "slurmctld does not answer", "page": "no page"}
    head.parts[0].trouble = head.parts[1].trouble = ""
    head.keeping.run(0.4)
    assert logged(caplog) == [("INFO", "trouble=none: the trouble of before is over")]


def test_health_in_memory_is_stored_in_time(monkeypatch):
    head, now = Head(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    every_s = Config().flush_interval_s
    for passed, flushes in ((0.0, 1), (every_s / 2, 1), (every_s, 2), (every_s * 1.5, 2)):
        now[0] = 100.0 + passed
        head.keeping.run(0.1)
        assert head.flushes == flushes


def test_a_flaw_is_logged_once_as_long_as_it_is(caplog):
    log = InconsistentStateLogger()
    flaw = ItemProcessingFailure("n1", "assess", "ValueError: x", "ab12")
    for flaws in ([flaw], [flaw], [], [flaw]):
        log.note(flaws)
    lines = [text for _, text in logged(caplog)]
    assert len(lines) == 2
    assert "target=n1 where=assess" in lines[0]
