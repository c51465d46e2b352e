"""The clock: what the kernel and chrony say of it."""

import struct
import time

import pytest

from hpctl.agent.checks import check_host_services
from hpctl.agent.checks.check_host_services import Clock as Sample
from hpctl.agent.probe import Probes
from hpctl.core.model import Verdict
from tests.unit.host import limits, machine, said

FAIL, WARN = Verdict.FAIL, Verdict.WARN
KEPT = "A9FEA97B,169.254.169.123,4,1700000000.1,-0.000012,0.1,0.1,-9.1,0,0,0.1,0.1,16.1,Normal"
LOST = "7F7F0101,,0,0.000000000,-90.5,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Sample(True, 0.0), []),
        (Sample(True, 0.1), []),
        (Sample(True, 0.101), [("offset", "", WARN)]),
        (Sample(True, 60), [("offset", "", WARN)]),
        (Sample(True, 60.1), [("skewed", "", FAIL)]),
        (Sample(False, 0.0), [("unsynchronised", "", WARN)]),
        (Sample(False, 61), [("skewed", "", FAIL), ("unsynchronised", "", WARN)]),
    ],
)
def test_limits(seen, expected):
    assert said(check_host_services.judge_clock(seen, None, limits("host.clock"))) == expected


@pytest.mark.parametrize(
    ("line", "offset_s"),
    [
        (KEPT, 0.000012),
        (KEPT.replace("-0.000012", "75.25"), 75.25),
        (LOST, 0.0),
        ("506 Cannot talk to daemon", 0.0),
        ("", 0.0),
    ],
)
def test_what_chrony_prints(line, offset_s):
    assert check_host_services.tracking(line) == offset_s


@pytest.fixture
def booted(tmp_path, monkeypatch):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(check_host_services, "_probes", Probes(5.0))
    return machine(tmp_path)


def test_the_kernel_of_this_machine_answers(booted, monkeypatch):
    monkeypatch.setattr(check_host_services, "CHRONY", ("/no/such/chronyc",))
    kept, offset_s = check_host_services.kernel()
    # The kernel keeps half a second at most; a wrong layout of the structure gives more.
    assert 0 <= offset_s <= 0.5
    assert check_host_services.gather_clock(booted).kept is kept


def test_the_structure_is_the_kernel_s():
    """The kernel writes its time behind the fields that are named: it stands where it should."""
    timex = check_host_services.Timex(modes=0)
    assert check_host_services._libc.adjtimex(check_host_services.ctypes.byref(timex)) >= 0
    (seconds,) = struct.unpack_from("q", bytes(timex.rest), 28)
    assert abs(seconds - time.time()) < 5


def test_chrony_s_offset_counts_where_it_is_larger(booted, monkeypatch, tmp_path):
    program = tmp_path / "chronyc"
    program.write_text(f"#!/bin/sh\necho '{KEPT.replace('-0.000012', '75.25')}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(check_host_services, "CHRONY", (str(program),))
    assert check_host_services.gather_clock(booted).offset_s == 75.25
