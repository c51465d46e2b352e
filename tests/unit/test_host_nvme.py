"""NVMe: the kernel's word for a controller, and the disk's own for its health."""

from __future__ import annotations

import json

import pytest

from hpctl.agent.check import CannotTell, NotHere
from hpctl.agent.checks import host_nvme, host_nvme_smart
from hpctl.agent.checks.host_nvme_smart import Disk
from hpctl.agent.probe import Answer, Probes
from hpctl.core.model import Verdict
from tests.unit.host import machine, said

FAIL, WARN = Verdict.FAIL, Verdict.WARN


def controller(name="nvme0", state="live", transport="pcie", **files):
    folder = f"/sys/class/nvme/{name}"
    made = {f"{folder}/state": f"{state}\n", f"{folder}/transport": f"{transport}\n"}
    return {**made, f"{folder}/model": "Amazon EC2 NVMe Instance Storage  \n", **files}


def judged(tmp_path, files):
    return said(host_nvme.judge(host_nvme.gather(machine(tmp_path, files)), None, {}))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("live", []),
        ("dead", [("dead", "nvme0", FAIL)]),
        ("deleting", [("dead", "nvme0", FAIL)]),
        ("deleting (no IO)", [("dead", "nvme0", FAIL)]),
        ("resetting", [("not-live", "nvme0", WARN)]),
        ("connecting", [("not-live", "nvme0", WARN)]),
    ],
)
def test_states(tmp_path, state, expected):
    assert judged(tmp_path, controller(state=state)) == expected


def test_one_of_many(tmp_path):
    files = {**controller("nvme0"), **controller("nvme1", "dead"), **controller("nvme2")}
    assert judged(tmp_path, files) == [("dead", "nvme1", FAIL)]


@pytest.mark.parametrize(("alarm", "expected"), [("1", [("hot", "nvme0", WARN)]), ("0", [])])
def test_the_disk_s_own_alarm(tmp_path, alarm, expected):
    files = controller(**{"/sys/class/nvme/nvme0/hwmon3/temp1_alarm": alarm})
    assert judged(tmp_path, files) == expected


def test_older_kernels_have_no_transport(tmp_path):
    files = controller(state="dead")
    del files["/sys/class/nvme/nvme0/transport"]
    assert judged(tmp_path, files) == [("dead", "nvme0", FAIL)]


def test_a_disk_behind_a_network_is_not_this_machine_s(tmp_path):
    with pytest.raises(NotHere):
        judged(tmp_path, controller(state="connecting", transport="tcp"))


@pytest.mark.parametrize("check", [host_nvme, host_nvme_smart])
def test_a_machine_without_nvme(tmp_path, check):
    with pytest.raises(NotHere):
        check.gather(machine(tmp_path))


@pytest.mark.parametrize(
    ("warning", "expected"),
    [
        (0, []),
        (1, [("failing", "nvme0", FAIL)]),
        (2, [("hot", "nvme0", WARN)]),
        (4, [("failing", "nvme0", FAIL)]),
        (8, [("failing", "nvme0", FAIL)]),
        (16, [("failing", "nvme0", FAIL)]),
        (2 | 8, [("failing", "nvme0", FAIL)]),
        (64, []),
    ],
)
def test_critical_warning(warning, expected):
    assert said(host_nvme_smart.judge((Disk("nvme0", warning),), None, {})) == expected


@pytest.mark.parametrize(
    ("out", "warning"),
    [
        (json.dumps({"critical_warning": 4, "temperature": 310}), 4),
        (json.dumps({"critical_warning": {"value": 8, "available_spare": 0}}), 8),
        ("", None),
        ("NVMe status: INVALID_OPCODE", None),
        ("[]", None),
        ("{}", None),
    ],
)
def test_what_nvme_cli_prints(out, warning):
    assert host_nvme_smart.parse(Answer(0, out, "")) == warning


@pytest.fixture
def nvme_cli(tmp_path, monkeypatch):
    """A stand-in for nvme-cli that prints what the test writes."""
    program = tmp_path / "nvme"
    program.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$(basename "$1").json"\n')
    program.chmod(0o755)
    monkeypatch.setattr(host_nvme_smart, "COMMAND", (str(program),))
    monkeypatch.setattr(host_nvme_smart, "_probes", Probes(5.0))
    return tmp_path


def test_each_live_controller_is_asked(nvme_cli):
    files = {**controller("nvme0"), **controller("nvme1"), **controller("nvme2", "dead")}
    made = machine(nvme_cli, {**files, "/nvme0.json": '{"critical_warning": 0}'})
    machine(nvme_cli, {"/nvme1.json": '{"critical_warning": 8}'})
    assert host_nvme_smart.gather(made) == (Disk("nvme0", 0), Disk("nvme1", 8))


def test_a_disk_that_keeps_no_such_log(nvme_cli):
    with pytest.raises(CannotTell):
        host_nvme_smart.gather(machine(nvme_cli, controller()))


@pytest.mark.parametrize("said", ["Operation not permitted", "Permission denied"])
def test_an_agent_that_may_not_ask_is_not_blind(nvme_cli, said):
    (nvme_cli / "nvme").write_text(f'#!/bin/sh\necho "smart log: {said}" >&2\nexit 1\n')
    with pytest.raises(NotHere, match="CAP_SYS_ADMIN"):
        host_nvme_smart.gather(machine(nvme_cli, controller()))


def test_without_nvme_cli(tmp_path, monkeypatch):
    monkeypatch.setattr(host_nvme_smart, "COMMAND", ("/no/such/nvme",))
    with pytest.raises(NotHere):
        host_nvme_smart.gather(machine(tmp_path, controller()))
