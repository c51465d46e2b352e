"""Units: which are missed, which were stopped by somebody, which are not for this machine."""

from __future__ import annotations

import pytest

from hpctl.agent.check import CannotTell, NotHere
from hpctl.agent.checks import check_host_units
from hpctl.agent.probe import Probes
from hpctl.core.model import Verdict
from tests.unit.host import machine, said
from tests.waiting import until

FAIL, WARN = Verdict.FAIL, Verdict.WARN
FM = check_host_units.FABRIC_MANAGER
RUNS = ("active", "running", "success")
FAILED = ("failed", "failed", "exit-code")
LOOP = ("activating", "auto-restart", "exit-code")
STOPPED = ("inactive", "dead", "success")


def block(name, state=RUNS, *, load="loaded", enabled="enabled", condition="yes"):
    active, sub, result = state
    return (
        f"Result={result}\nId={name}\nLoadState={load}\nActiveState={active}\nSubState={sub}\n"
        f"UnitFileState={enabled}\nConditionResult={condition}\n"
    )


def judged(*blocks, nvswitch=True):
    seen = check_host_units.parse("\n".join(blocks), nvswitch=nvswitch)
    assert len(seen) == len(blocks)
    return said(check_host_units.judge(seen, None, {}))


@pytest.mark.parametrize("name", check_host_units.UNITS)
def test_a_unit_that_runs_is_silent(name):
    assert judged(block(name)) == []
    assert judged(block(name, ("reloading", "reload", "success"))) == []


@pytest.mark.parametrize(("name", "code"), check_host_units.UNITS.items())
@pytest.mark.parametrize("state", [FAILED, LOOP])
def test_a_unit_that_failed(name, code, state):
    assert judged(block(name, state)) == [(code, name, FAIL)]


def test_what_somebody_stopped_is_told_and_not_mended():
    name = "slurmd.service"
    assert judged(block(name, STOPPED)) == [("stopped", name, WARN)]


def test_but_nothing_runs_without_the_fabric_manager():
    assert judged(block(FM, STOPPED)) == [("fabricmanager", FM, FAIL)]
    assert judged(block(FM, STOPPED, condition="no")) == [("fabricmanager", FM, FAIL)]


@pytest.mark.parametrize(
    "benign",
    [
        block("slurmd.service", STOPPED, load="not-found", enabled=""),
        block("slurmd.service", STOPPED, load="masked", enabled="masked"),
        block("slurmd.service", FAILED, enabled="disabled"),
        block("slurmd.service", STOPPED, condition="no"),
    ],
)
def test_what_is_not_for_this_machine(benign):
    assert judged(benign) == []


def test_without_an_nvswitch_nobody_misses_the_fabric_manager():
    assert judged(block(FM, FAILED), nvswitch=False) == []


def test_all_in_one_answer():
    blocks = [block(name) for name in check_host_units.UNITS if name != "munge.service"]
    assert judged(*blocks, block("munge.service", FAILED)) == [("munge", "munge.service", FAIL)]


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("ml.p5.48xlarge", True),
        ("p4d.24xlarge", True),
        ("p4de.24xlarge", True),
        ("ml.p5en.48xlarge", True),
        ("ml.p6-b200.48xlarge", True),
        ("ml.p5.4xlarge", False),
        ("ml.g5.48xlarge", False),
        ("ml.trn1.32xlarge", False),
        ("", False),
    ],
)
def test_instance_types_with_nvswitch(tmp_path, name, has):
    assert check_host_units.has_nvswitch(machine(tmp_path, instance_type=name)) is has


def test_the_driver_knows_its_nvswitches(tmp_path):
    folder = tmp_path / check_host_units.NVSWITCH.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "bind").touch()
    assert not check_host_units.has_nvswitch(machine(tmp_path))
    (folder / "0000:86:00.0").touch()
    assert check_host_units.has_nvswitch(machine(tmp_path))


def test_without_systemd(tmp_path):
    with pytest.raises(NotHere):
        check_host_units.gather(machine(tmp_path))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Failed to connect to bus >&2; exit 1", "exited with 1: Failed to connect to bus"),
        ("exec sleep 60", "has not answered for 0 s"),
    ],
)
def test_a_systemctl_that_fails_or_hangs_is_no_verdict(tmp_path, monkeypatch, script, said):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(check_host_units, "SHOW", ("sh", "-c", script))
    monkeypatch.setattr(check_host_units, "TIMEOUT_S", 0.3)
    probes = Probes(0.0)
    monkeypatch.setattr(check_host_units, "_probes", probes)
    with pytest.raises(CannotTell, match=said):
        check_host_units.gather(machine(tmp_path))
    probes.forget(frozenset())
    until(lambda: not probes.out())


def test_the_units_are_read_from_systemctl(tmp_path, monkeypatch):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    text = "Id=munge.service\nLoadState=loaded\nActiveState=active\n"
    monkeypatch.setattr(check_host_units, "SHOW", ("printf", text))
    monkeypatch.setattr(check_host_units, "_probes", Probes(5.0))
    (unit,) = check_host_units.gather(machine(tmp_path))
    assert (unit.name, unit.active) == ("munge.service", "active")


def test_a_service_that_udev_starts_is_missed_only_where_it_is_enabled():
    name = "nvidia-persistenced.service"
    assert judged(block(name, FAILED, enabled="static")) == []
    assert judged(block(name, STOPPED, enabled="static")) == []
    assert judged(block(name, FAILED)) == [("nvidia", name, FAIL)]
