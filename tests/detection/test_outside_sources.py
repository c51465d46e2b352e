"""All outside sources of one node together, as the agent's main loop runs them."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.detection.outside.ask import send_agent_request
from hpctl.detection.outside.sources import (
    ExternalFindingSources,
    FindingSourceLocations,
    is_external_source_check,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding
from tests.waiting import until

pytestmark = pytest.mark.integration

NODE = NodeGeneration("n1", "i-1", "b-1")


class Agent:
    """As much of an agent as the sources need."""

    def __init__(self, place: Path, earlier: tuple[Finding, ...] = ()) -> None:
        self.place = place
        self.changes = 0
        self.socket = place / "agent.sock"
        self.sources = ExternalFindingSources(
            FindingSourceLocations(self.socket, place / "hma.log", place / "checks.d"),
            NODE,
            place / "spool",
            self,
            earlier,
        )

    def get_latest_findings(self) -> tuple[datetime, tuple[Finding, ...]]:
        return datetime.now(UTC), self.sources.findings()

    def handle_finding_change(self) -> None:
        self.changes += 1

    def checks(self) -> set[str]:
        return {finding.check for finding in self.sources.findings()}


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "checks.d").mkdir(mode=0o755)
    return tmp_path


@pytest.fixture
def agent(place: Path):
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


def test_all_of_them_are_heard(agent, place):
    plugin(place, "scratch.sh")
    (place / "checks.d" / "notes").write_text("not executable")
    agent.sources.start()
    send_agent_request(
        str(agent.socket), {"op": "report", "check": "report.nhc", "verdict": "fail"}, 5.0
    )
    record = {
        "condition: ": "XID Error",
        "data: ": {"ErrNum": 79},
        "HealthMonitoringAgentDetectionEvent": "HealthEvent",
    }
    (place / "hma.log").write_text(json.dumps(record) + "\n")
    until(lambda: agent.checks() >= {"report.nhc", "plugin.scratch", "agent.plugins"})
    assert all(is_external_source_check(check) for check in agent.checks())
    assert agent.changes >= 3
    verdict = send_agent_request(str(agent.socket), {"op": "verdict"}, 5.0)["verdict"]
    assert verdict["condition"] == "suspect"


def test_what_plugins_reported_before_a_restart_is_known_until_they_run_again(place):
    then = datetime.now(UTC) - timedelta(minutes=1)
    earlier = (
        Finding(
            "plugin.old", DeviceVerdict.FAIL, then, then, code="bad", clears=ClearCondition.BOOT
        ),
        Finding("report.nhc", DeviceVerdict.FAIL, then, then),
        Finding("hma.xid", DeviceVerdict.FAIL, then, then),
        Finding("kernel.xid", DeviceVerdict.FAIL, then, then, code="79"),
    )
    agent = Agent(place, earlier)
    assert agent.checks() == {"plugin.old"}
    again = plugin(place, "old", "ok")
    ran = place / "ran"
    again.write_text(f"{again.read_text()}touch {ran}\n")
    agent.sources.start()
    until(ran.exists)
    assert agent.checks() == {"plugin.old"}, "until a boot, as it said"
    agent.sources.stop()


def test_a_socket_that_cannot_be_had_costs_only_the_reports(place, caplog):
    agent = Agent(place)
    agent.socket.write_text("in the way")
    plugin(place, "scratch")
    agent.sources.start()
    until(lambda: "plugin.scratch" in agent.checks())
    agent.sources.stop()
    assert "cannot create the agent's socket" in caplog.text
    assert agent.socket.read_text() == "in the way"
