"""acceptance.command on a real Slurm: that of the sandbox runs, and a wrong one is named."""

import json

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
NO_SUCH = "/opt/none/python -m hpctl.nodes.acceptance.run"
REBOOTED = {"xid-79": {"ladder": ["reboot"]}}


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as live:
        yield live


def check_command(live: Chaos) -> dict[str, str]:
    shown = json.loads(live.hpctl("acceptance", "check", "--json", check=False))
    (row,) = shown["checks"]
    return row


def ask_doctor(live: Chaos) -> dict[str, str]:
    shown = json.loads(live.hpctl("doctor", "--json", check=False))
    (row,) = (check for check in shown["checks"] if check["name"] == "acceptance")
    return row


def test_a_command_that_cannot_run_is_named_with_its_output(live: Chaos):
    live.reconfigure(acceptance={"reboot": "quick", "command": NO_SUCH}, catalogue=REBOOTED)
    assert ask_doctor(live)["fix"] == "hpctl acceptance check"
    row = check_command(live)
    assert row["verdict"] == "fail", row
    assert "/opt/none/python" in row["what"]
    (victim,) = live.victims(1)
    live.xid(victim)
    until(lambda: live.phase(victim) == "escalated", 120, "a person is called")
    why = live.last(victim).trail[-1].why
    assert "acceptance.command failed without a result" in why
    assert "/opt/none/python" in why
    assert "exit code 127" in why
    assert ask_doctor(live)["verdict"] == "fail"
    live.order("undrain", victim)
    until(lambda: live.node(victim).in_service, 60, "it is given back")


def test_the_command_that_the_sandbox_sets_tests_a_node(live: Chaos):
    live.reconfigure(acceptance={"reboot": "quick"}, catalogue=REBOOTED)
    row = check_command(live)
    assert row["verdict"] == "ok", row
    assert "cpu.speed: runs" in row["what"]
    (victim,) = live.victims(1)
    live.xid(victim)
    recovery = live.returned(victim, timeout_s=120)
    assert "test_passed" in [move.signal for move in recovery.trail]
    assert ask_doctor(live)["verdict"] == "ok"
