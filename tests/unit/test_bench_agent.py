"""The parts of the agent's benchmark that could lie: what is read, what is built, who is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import agent_machine, agent_rivals
from benchmarks.agent_process import Reading, children, cost, read, tree_mb
from hpctl.agent.check import Expected, Machine
from hpctl.agent.checks import check_efa, check_host_filesystems, check_host_processes
from hpctl.agent.checks.check_efa import DEVICE, PORT, trace
from hpctl.agent.machine import machine
from hpctl.agent.procs import Scan
from hpctl.agent.rdma import efa_devices

pytestmark = pytest.mark.slow


def process(
    proc: Path, pid: int, parent: int, name: str = "a) b (c", times: str = "100 50 20 10"
) -> None:
    folder = proc / str(pid)
    for task in (pid, pid + 1):
        (folder / f"task/{task}").mkdir(parents=True)
        (folder / f"task/{task}/status").write_text("voluntary_ctxt_switches:\t7\n")
    behind = f"S {parent} 1 1 0 -1 0 0 0 0 0 {times} 20 0 2 0 99 0 0"
    (folder / "stat").write_text(f"{pid} ({name}) {behind}\n")
    (folder / "status").write_text("Name:\tx\nVmHWM:\t   4000 kB\nVmRSS:\t   2000 kB\n")
    (folder / "smaps_rollup").write_text("0-1 ---p 0 00:00 0 [rollup]\nPss:  1000 kB\n")


def test_a_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    process(tmp_path, 10, 1)
    seen = read(10, tmp_path)
    assert (seen.own_s, seen.children_s, seen.switches) == (1.5, pytest.approx(0.3), 14)
    assert (seen.peak_mb, seen.resident_mb) == (pytest.approx(4.096), pytest.approx(2.048))


def test_the_cost_is_by_the_hour() -> None:
    before = Reading(100.0, 1.0, 0.5, 30.0, 29.0, 1000)
    after = Reading(160.0, 1.2, 0.6, 31.0, 28.0, 1300)
    used = cost(before, after)
    assert (used.own_s_per_hour, used.children_s_per_hour) == (pytest.approx(12), pytest.approx(6))
    assert used.s_per_hour == pytest.approx(18)
    assert (used.wakeups_per_s, used.peak_mb, used.resident_mb) == (5, 31.0, 28.0)


def test_a_tree_is_counted_whole(tmp_path: Path) -> None:
    process(tmp_path, 10, 1)
    process(tmp_path, 20, 10)
    process(tmp_path, 30, 20)
    process(tmp_path, 40, 1)
    assert children(10, tmp_path) == [20]
    assert tree_mb(10, tmp_path) == pytest.approx(3 * 1.024)


def test_the_machine_has_what_the_bar_speaks_of(tmp_path: Path) -> None:
    agent_machine.build(tmp_path)
    here = machine(tmp_path, Expected())
    assert (here.expected.instance_type, here.expected.gpus) == ("p5.48xlarge", 8)
    devices = efa_devices(here)
    assert len(devices) == 32
    read_now = trace(here).now.devices
    assert sum(len(reading.values) for reading in read_now.values()) == 704
    assert agent_machine.counter_files(tmp_path / "sys", (*DEVICE, *PORT)) == 704
    assert len(list(Scan().tasks(here))) == agent_machine.PROCESSES
    assert check_host_processes.gather_dstate(here) == ()


def test_the_machine_is_healthy_while_it_lives(tmp_path: Path) -> None:
    agent_machine.build(tmp_path)
    clock = iter(range(0, 10_000, 60))
    here = Machine(tmp_path, monotonic=lambda: float(next(clock)))
    before = check_efa.trace(here)
    agent_machine.keep_alive(tmp_path, 1)
    limits = {"still_s": 5.0}
    assert list(check_efa.judge_keepalive(check_efa.trace(here), before, limits)) == []
    asked = check_host_filesystems.gather_mounts(here)
    assert [(a.point, a.error, a.silent_s) for a in asked] == [("/fsx", "", 0), ("/home", "", 0)]


def test_the_exporters_tree_has_as_many_counters(tmp_path: Path) -> None:
    agent_machine.infiniband(tmp_path)
    assert agent_machine.counter_files(tmp_path, agent_machine.INFINIBAND) == 704


def test_a_rival_is_found_by_its_variable_or_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nhc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("HPCTL_BENCH_NHC", raising=False)
    assert agent_rivals.find(agent_rivals.NHC) is None
    monkeypatch.setenv("HPCTL_BENCH_NHC", str(program))
    assert agent_rivals.find(agent_rivals.NHC) == str(program)
    monkeypatch.setenv("HPCTL_BENCH_NHC", str(tmp_path / "missing"))
    assert agent_rivals.find(agent_rivals.NHC) is None
    monkeypatch.delenv("HPCTL_BENCH_NHC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert agent_rivals.find(agent_rivals.NHC) == str(program)


def test_a_rival_that_stops_half_way_is_no_figure(tmp_path: Path) -> None:
    program = tmp_path / "nhc"
    program.write_text("#!/bin/sh\necho ERROR: root is full\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="root is full"):
        agent_rivals.Nhc(str(program), tmp_path, "munged").once()
    program.write_text("#!/bin/sh\nexit 0\n")
    assert agent_rivals.Nhc(str(program), tmp_path, "munged").once().cpu_s < 5
