"""All outside sources of one node together, as the agent's main loop runs them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.agent.outside.ask import ask
from hpctl.agent.outside.sources import Places, Sources, theirs
from hpctl.core.compat import UTC
from hpctl.core.model import (
    BootId,
    Clears,
    Finding,
    Generation,
    InstanceId,
    NodeName,
    Verdict,
)
from tests.waiting import until

NODE = Generation(NodeName("n1"), InstanceId("i-1"), BootId("b-1"))


class Agent:
    """As much of an agent as the sources need."""

    def __init__(self, place: Path, earlier: tuple[Finding, ...] = ()) -> None:
        self.place = place
        self.changes = 0
        self.socket = place / "agent.sock"
        self.sources = Sources(
            Places(self.socket, place / "hma.log", place / "checks.d"),
            NODE,
            place / "spool",
            lambda: (datetime.now(UTC), self.sources.findings()),
            self.changed,
            earlier,
        )

    def changed(self) -> None:
        self.changes += 1

    def checks(self) -> set[str]:
        return {finding.check for finding in self.sources.findings()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "checks.d").mkdir(mode=0o755)
    return tmp_path


@pytest.fixture
def agent(place: Path) -> Iterator[Agent]:
    agent = Agent(place)
    yield agent
    agent.sources.stop()


def plugin(place: Path, name: str, verdict: str = "fail", describe: str = "") -> Path:
    path = place / "checks.d" / name
    finding = json.dumps({"findings": [{"code": "bad", "verdict": verdict}]})
    path.write_text(
        f"#!/bin/sh\n[ \"$1\" = --describe ] && exec echo '{describe}'\necho '{finding}'\n"
    )
    path.chmod(0o755)
    return path


def test_all_of_them_are_heard(agent: Agent, place: Path) -> None:
    plugin(place, "scratch.sh")
    (place / "checks.d" / "notes").write_text("not executable")
    agent.sources.start()
    ask(str(agent.socket), {"op": "report", "check": "report.nhc", "verdict": "fail"}, 5.0)
    record = {
        "condition: ": "XID Error",
        "data: ": {"ErrNum": 79},
        "HealthMonitoringAgentDetectionEvent": "HealthEvent",
    }
    (place / "hma.log").write_text(json.dumps(record) + "\n")
    until(lambda: agent.checks() >= {"report.nhc", "plugin.scratch", "agent.plugins"})
    assert all(theirs(check) for check in agent.checks())
    assert agent.changes >= 3
    verdict = ask(str(agent.socket), {"op": "verdict"}, 5.0)["verdict"]
    assert verdict["condition"] == "suspect"


def test_the_health_agent_s_file_is_followed(agent: Agent, place: Path) -> None:
    record = {
        "condition: ": "XID Error",
        "data: ": {"ErrNum": 79},
        "HealthMonitoringAgentDetectionEvent": "HealthEvent",
    }
    (place / "hma.log").write_text(json.dumps(record) + "\n")
    agent.sources.start()
    until(lambda: "hma.xid" in agent.checks())


def test_a_plugin_starts_to_count_by_its_own_n_of_m(agent: Agent, place: Path) -> None:
    plugin(place, "slow-to-believe", describe='{"seen": [2, 2], "every_s": 5}')
    plugin(place, "at-once", describe='{"clears": "boot"}')
    agent.sources.start()
    until(lambda: "plugin.at.once" in agent.checks())
    (found,) = [f for f in agent.sources.findings() if f.check == "plugin.at.once"]
    assert (found.code, found.verdict, found.clears) == ("bad", Verdict.FAIL, Clears.BOOT)
    assert "plugin.slow.to.believe" not in agent.checks()


def test_one_finding_of_a_plugin_may_end_otherwise_than_the_others(
    agent: Agent, place: Path
) -> None:
    mine = {"findings": [{"code": "a"}, {"code": "b", "clears": "operator"}]}
    path = place / "checks.d" / "two"
    path.write_text(f"#!/bin/sh\n[ \"$1\" = --describe ] && exit\necho '{json.dumps(mine)}'\n")
    path.chmod(0o755)
    agent.sources.start()
    until(lambda: len(agent.sources.findings()) == 2)
    ends = {f.code: f.clears for f in agent.sources.findings()}
    assert ends == {"a": Clears.GONE, "b": Clears.OPERATOR}


def test_what_plugins_said_before_a_restart_is_known_until_they_run_again(place: Path) -> None:
    then = datetime.now(UTC) - timedelta(minutes=1)
    earlier = (
        Finding("plugin.old", Verdict.FAIL, then, then, code="bad", clears=Clears.BOOT),
        Finding("report.nhc", Verdict.FAIL, then, then),
        Finding("hma.xid", Verdict.FAIL, then, then),
        Finding("kernel.xid", Verdict.FAIL, then, then, code="79"),
    )
    agent = Agent(place, earlier)
    assert agent.checks() == {"plugin.old"}
    plugin(place, "old", "ok")
    agent.sources.start()
    until(lambda: agent.sources._plugins._runner is not None)
    assert agent.checks() == {"plugin.old"}, "until a boot, as it said"
    agent.sources.stop()


def test_a_plugin_that_is_no_longer_there_says_nothing_more(place: Path) -> None:
    then = datetime.now(UTC)
    agent = Agent(place, (Finding("plugin.gone", Verdict.FAIL, then, then),))
    agent.sources.start()
    until(lambda: agent.checks() == set())
    agent.sources.stop()


def test_a_socket_that_cannot_be_had_costs_only_the_reports(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(place)
    agent.socket.write_text("in the way")
    plugin(place, "scratch")
    agent.sources.start()
    until(lambda: "plugin.scratch" in agent.checks())
    agent.sources.stop()
    assert "cannot be had" in caplog.text
    assert agent.socket.read_text() == "in the way"


def test_reports_outlive_a_restart_of_the_agent(place: Path) -> None:
    before = Agent(place)
    before.sources.start()
    ask(str(before.socket), {"op": "report", "check": "report.nhc", "verdict": "fail"}, 5.0)
    before.sources.stop()
    after = Agent(place)
    assert after.checks() == {"report.nhc"}


def test_it_stops_while_a_plugin_runs(place: Path) -> None:
    path = place / "checks.d" / "long"
    path.write_text('#!/bin/sh\n[ "$1" = --describe ] && exit\nexec sleep 15\n')
    path.chmod(0o755)
    agent = Agent(place)
    agent.sources.start()
    until(lambda: agent.sources._plugins._runner is not None)
    time.sleep(0.3)
    begun = time.monotonic()
    agent.sources.stop()
    assert time.monotonic() - begun < 8
