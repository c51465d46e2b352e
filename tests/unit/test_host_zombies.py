"""Zombies and the kernel's limits."""

import pytest

from hpctl.agent import procs
from hpctl.agent.check import CannotTell
from hpctl.agent.checks import check_host_processes
from hpctl.agent.checks.check_host_processes import Sample
from hpctl.core.model import Verdict
from tests.unit.host import limits, machine, said

FAIL, WARN = Verdict.FAIL, Verdict.WARN
FILES = {
    "/proc/loadavg": "0.52 0.58 0.59 3/1234 4711\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "65536\n",
    "/proc/sys/fs/file-nr": "2048\t0\t9223372036854775807\n",
}


def stat(pid, state="S", flags=0, comm="sh"):
    return {f"/proc/{pid}/stat": f"{pid} ({comm}) {state} 1 7 7 0 -1 {flags} {'0 ' * 10}1 0 9 0"}


@pytest.fixture(autouse=True)
def scan(monkeypatch):
    monkeypatch.setattr(check_host_processes, "_zombie_scan", procs.Scan())


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Sample(999, 1, 100, 1, 100), []),
        (Sample(1000, 1, 100, 1, 100), [("zombies", "", WARN)]),
        (Sample(0, 79, 100, 79, 100), []),
        (Sample(0, 80, 100, 0, 100), [("tasks", "", WARN)]),
        (Sample(0, 94, 100, 0, 100), [("tasks", "", WARN)]),
        (Sample(0, 95, 100, 0, 100), [("tasks", "", FAIL)]),
        (Sample(0, 0, 100, 80, 100), [("files", "", WARN)]),
        (Sample(0, 0, 100, 95, 100), [("files", "", FAIL)]),
    ],
)
def test_limits(seen, expected):
    assert said(check_host_processes.judge_zombies(seen, None, limits("host.zombies"))) == expected


def test_what_proc_says(tmp_path):
    files = {**FILES, **stat(5, "Z"), **stat(6), **stat(7, "Z")}
    seen = check_host_processes.gather_zombies(machine(tmp_path, files))
    assert seen == Sample(2, 1234, 65536, 2048, 9223372036854775807)
    assert said(check_host_processes.judge_zombies(seen, None, limits("host.zombies"))) == []


@pytest.mark.parametrize("name", ["/proc/loadavg", "/proc/sys/fs/file-nr"])
def test_what_proc_should_not_say(tmp_path, name):
    with pytest.raises(CannotTell):
        check_host_processes.gather_zombies(machine(tmp_path, {**FILES, name: "?"}))


def test_a_scan_reads_a_kernel_thread_once_in_ten_times(tmp_path):
    scan, made = procs.Scan(), machine(tmp_path, {**stat(5), **stat(9, flags=0x200000)})
    assert [t.pid for t in scan.tasks(made)] == [5]
    # Its pid went to a process: seen when the kernel threads are looked at again.
    machine(tmp_path, stat(9))
    assert [[t.pid for t in scan.tasks(made)] for _ in range(10)] == [[5]] * 9 + [[5, 9]]


def test_a_scan_is_bounded_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(procs, "MOST", 3)
    files = {name: text for pid in range(1, 6) for name, text in stat(pid).items()}
    scan, made = procs.Scan(), machine(tmp_path, files)
    assert [[t.pid for t in scan.tasks(made)] for _ in range(3)] == [
        [1, 2, 3],
        [4, 5, 1],
        [2, 3, 4],
    ]
