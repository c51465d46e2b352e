"""NVMe: the kernel's word for a controller, and the disk's own for its health."""

import json

import pytest

from hpctl.agent.check import CannotTell, NotHere
from hpctl.agent.checks import check_host_disks
from hpctl.agent.checks.check_host_disks import Health as Disk
from hpctl.agent.probe import Answer, Probes
from hpctl.core.model import Verdict
from tests.unit.host import machine, said

FAIL, WARN = Verdict.FAIL, Verdict.WARN


def controller(name="nvme0", state="live", transport="pcie", **files):
    folder = f"/sys/class/nvme/{name}"
    made = {f"{folder}/state": f"{state}\n", f"{folder}/transport": f"{transport}\n"}
    return {**made, f"{folder}/model": "Amazon EC2 NVMe Instance Storage  \n", **files}


def judged(tmp_path, files):
    return said(
        check_host_disks.judge_nvme(
            check_host_disks.gather_nvme(machine(tmp_path, files)), None, {}
        )
    )


ALARM = "/sys/class/nvme/nvme0/hwmon3/temp1_alarm"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (controller(), []),
        (controller(state="dead"), [("dead", "nvme0", FAIL)]),
        (controller(state="deleting (no IO)"), [("dead", "nvme0", FAIL)]),
        (controller(state="resetting"), [("not-live", "nvme0", WARN)]),
        (controller(state="dead", transport=""), [("dead", "nvme0", FAIL)]),
        (controller(**{ALARM: "1"}), [("hot", "nvme0", WARN)]),
        (controller(**{ALARM: "0"}), []),
        (controller() | controller("nvme1", "dead"), [("dead", "nvme1", FAIL)]),
    ],
)
def test_what_the_kernel_says(tmp_path, files, expected):
    assert judged(tmp_path, files) == expected


def test_a_disk_behind_a_network_is_not_this_machine_s(tmp_path):
    with pytest.raises(NotHere):
        judged(tmp_path, controller(state="connecting", transport="tcp"))


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
    assert said(check_host_disks.judge_smart((Disk("nvme0", warning),), None, {})) == expected


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
    assert check_host_disks.parse_smart(Answer(0, out, "")) == warning


@pytest.fixture
def nvme_cli(tmp_path, monkeypatch):
    """A stand-in for nvme-cli that prints what the test writes."""
    program = tmp_path / "nvme"
    program.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$(basename "$1").json"\n')
    program.chmod(0o755)
    monkeypatch.setattr(check_host_disks, "COMMAND", (str(program),))
    monkeypatch.setattr(check_host_disks, "_probes", Probes(5.0))
    return tmp_path


def test_each_live_controller_is_asked(nvme_cli):
    files = {**controller("nvme0"), **controller("nvme1"), **controller("nvme2", "dead")}
    made = machine(nvme_cli, {**files, "/nvme0.json": '{"critical_warning": 0}'})
    machine(nvme_cli, {"/nvme1.json": '{"critical_warning": 8}'})
    assert check_host_disks.gather_smart(made) == (Disk("nvme0", 0), Disk("nvme1", 8))


def test_a_disk_that_keeps_no_such_log(nvme_cli):
    with pytest.raises(CannotTell):
        check_host_disks.gather_smart(machine(nvme_cli, controller()))


@pytest.mark.parametrize("said", ["Operation not permitted", "Permission denied"])
def test_an_agent_that_may_not_ask_is_not_blind(nvme_cli, said):
    (nvme_cli / "nvme").write_text(f'#!/bin/sh\necho "smart log: {said}" >&2\nexit 1\n')
    with pytest.raises(NotHere, match="CAP_SYS_ADMIN"):
        check_host_disks.gather_smart(machine(nvme_cli, controller()))
