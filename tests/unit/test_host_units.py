"""Units: which are missed, which were stopped by somebody, which are not for this machine."""

import pytest

from hpctl.agent.check import CannotTell
from hpctl.agent.checks import check_host_services
from hpctl.agent.probe import Probes
from hpctl.core.model import Verdict
from tests.unit.host import machine, said
from tests.waiting import until

WARN = Verdict.WARN
FM = check_host_services.FABRIC_MANAGER
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
    seen = check_host_services.parse_units("\n".join(blocks), nvswitch=nvswitch)
    assert len(seen) == len(blocks)
    return said(check_host_services.judge_units(seen, None, {}))


@pytest.mark.parametrize(
    ("told", "code"),
    [
        *((block(name), "") for name in check_host_services.UNITS),
        *((block(name, FAILED), code) for name, code in check_host_services.UNITS.items()),
        (block("munge.service", LOOP), "munge"),
        (block("munge.service", ("reloading", "reload", "success")), ""),
        # What somebody stopped is told and not mended, but nothing runs without this one.
        (block("slurmd.service", STOPPED), "stopped"),
        (block(FM, STOPPED), "fabricmanager"),
        (block(FM, STOPPED, condition="no"), "fabricmanager"),
        # Not for this machine.
        (block("slurmd.service", STOPPED, load="not-found", enabled=""), ""),
        (block("slurmd.service", STOPPED, load="masked", enabled="masked"), ""),
        (block("slurmd.service", FAILED, enabled="disabled"), ""),
        (block("slurmd.service", STOPPED, condition="no"), ""),
        # Started by udev: missed only where it is enabled.
        (block("nvidia-persistenced.service", FAILED, enabled="static"), ""),
    ],
)
def test_a_unit(told, code):
    found = judged(told)
    assert [c for c, _, _ in found] == ([code] if code else [])
    assert all((verdict is WARN) == (code == "stopped") for _, _, verdict in found)


def test_without_an_nvswitch_nobody_misses_the_fabric_manager():
    assert judged(block(FM, FAILED), nvswitch=False) == []


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
    assert check_host_services.has_nvswitch(machine(tmp_path, instance_type=name)) is has


def test_the_driver_knows_its_nvswitches(tmp_path):
    folder = tmp_path / check_host_services.NVSWITCH.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "bind").touch()
    assert not check_host_services.has_nvswitch(machine(tmp_path))
    (folder / "0000:86:00.0").touch()
    assert check_host_services.has_nvswitch(machine(tmp_path))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Failed to connect to bus >&2; exit 1", "exited with 1: Failed to connect to bus"),
        ("exec sleep 60", "has not answered for 0 s"),
    ],
)
def test_a_systemctl_that_fails_or_hangs_is_no_verdict(tmp_path, monkeypatch, script, said):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(check_host_services, "SHOW", ("sh", "-c", script))
    monkeypatch.setattr(check_host_services, "TIMEOUT_S", 0.3)
    probes = Probes(0.0)
    monkeypatch.setattr(check_host_services, "_probes", probes)
    with pytest.raises(CannotTell, match=said):
        check_host_services.gather_units(machine(tmp_path))
    probes.forget(frozenset())
    until(lambda: not probes.out())
