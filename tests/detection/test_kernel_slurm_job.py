"""Which job a process belongs to, on a /proc made for the test and on this machine's own."""

import os
import shutil
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.detection import slurm_jobs
from hpctl.detection.slurm_jobs import ProcessJobFinder, is_slurmstepd_process, parse_cgroup_job_id
from hpctl.toolkit.compat import UTC
from tests.proc_files import add_slurmstepd
from tests.waiting import until

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/slurm/uid_1000/job_4711/step_0/task_0", "4711"),
        ("/slurm_node1/uid_1000/job_4711", "4711"),
        ("/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0", "4711"),
        ("/system.slice/node1_slurmstepd.scope/job_7/step_extern/user", "7"),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "7"),
        ("12:memory:/slurm/uid_0/job_9/step_0\n1:name=systemd:/user.slice\n", "9"),
        ("/user.slice/user-1000.slice/session-3.scope", ""),
        # A directory that a user made for himself is no job of Slurm's.
        ("/user.slice/user-1000.slice/job_9/x", ""),
        ("/docker/job_9", ""),
        ("", ""),
    ],
)
def test_the_job_in_a_control_groups_path(path, job):
    assert parse_cgroup_job_id(path) == job


class Proc:
    """A /proc with the processes that a test puts there."""

    def __init__(self, root):
        self.root = root
        self.reads = 0

    def add(self, pid, parent=1, name="python", cgroup="0::/", line=b"", age_s=60.0):
        directory = self.root / str(pid)
        directory.mkdir()
        began = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * TICKS)
        rest = ["S", str(parent), *["0"] * 17, str(began), "0"]
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}\n")
        (directory / "cgroup").write_text(f"{cgroup}\n")
        (directory / "cmdline").write_bytes(line)


@pytest.fixture
def proc(tmp_path) -> Proc:
    return Proc(tmp_path)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("program", ["slurmstepd", "slurmstepd-wlm"])
def test_by_the_step_daemon_above_it(proc, program):
    proc.add(40, name="slurmstepd", line=b"slurmstepd: [13.batch]\0")
    add_slurmstepd(proc.root / "40", proc.root / "sbin" / program)
    proc.add(41, 40, name="bash")
    proc.add(42, 41, name="a) 1 (b")
    assert ProcessJobFinder(proc.root).of(42, now()) == "13"


def test_a_step_daemon_without_a_title_says_nothing(proc):
    proc.add(40, name="slurmstepd", line=b"something else")
    add_slurmstepd(proc.root / "40", proc.root / "sbin/slurmstepd")
    proc.add(41, 40)
    assert ProcessJobFinder(proc.root).of(41, now()) == ""


@pytest.mark.parametrize(
    ("program", "uids", "mode"),
    [
        ("slurmstepd", "1000\t0\t0\t0", 0o755),  # a setuid program that a user has started
        ("su", "", 0o755),  # a link named slurmstepd to another program
        ("slurmstepd", "", 0o4755),  # such a program under that name
        ("slurmstepd", "", 0o777),  # one that others may write
        ("slurmstepd", "1000\t1000\t1000\t1000", 0o755),  # the real one, started by a user
    ],
)
def test_a_process_named_like_the_step_daemon_says_nothing(proc, program, uids, mode):
    proc.add(60, name="slurmstepd", line=b"slurmstepd: [99.0]")
    add_slurmstepd(proc.root / "60", proc.root / "sbin" / program, uids=uids)
    (proc.root / "sbin" / program).chmod(mode)
    proc.add(61, 60)
    assert ProcessJobFinder(proc.root).of(61, now()) == ""


def test_a_step_daemon_outlives_the_upgrade_of_its_file(proc):
    add_slurmstepd(proc.root / "60", proc.root / "sbin/slurmstepd (deleted)")
    assert is_slurmstepd_process(proc.root / "60")


def test_a_setuid_program_under_the_name_is_no_step_daemon(tmp_path):
    """Root alone can start a program as another user."""
    if os.geteuid() != 0:
        pytest.skip("the test starts a program as another user, which takes root")
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and len(folder.parts) > 2:
            folder.chmod(folder.stat().st_mode | 0o011)
    link = home / "slurmstepd"
    link.symlink_to(shutil.which("su") or "/bin/su")
    with subprocess.Popen(
        ["slurmstepd: [99.0]"], executable=link, user=65534, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, extra_groups=[], cwd="/",
    ) as started:  # fmt: skip
        place = Path("/proc") / str(started.pid)
        until(lambda: (place / "comm").read_text() == "slurmstepd\n", 60)
        until(lambda: place.stat().st_uid == 0, 60)
        assert ProcessJobFinder().of(started.pid, now()) == ""
        assert not is_slurmstepd_process(place)
        started.kill()


def test_a_loop_of_parents_ends(proc):
    proc.add(40, 41)
    proc.add(41, 40)
    assert ProcessJobFinder(proc.root).of(40, now()) == ""


def test_a_process_that_began_after_the_line_is_another(proc):
    proc.add(50, cgroup="0::/system.slice/slurmstepd.scope/job_12/step_0/user", age_s=10)
    jobs = ProcessJobFinder(proc.root)
    assert (jobs.of(50, now() - timedelta(seconds=60)), jobs.of(50, now())) == ("", "12")


def test_an_answer_outlives_its_process_for_a_while(proc, monkeypatch):
    proc.add(50, cgroup="0::/system.slice/slurmstepd.scope/job_12/step_0/user")
    clock = [1000.5]
    monkeypatch.setattr(slurm_jobs.time, "monotonic", lambda: clock[0])
    jobs = ProcessJobFinder(proc.root)
    assert jobs.of(50, now()) == "12"
    for name in ("stat", "cgroup", "cmdline"):
        (proc.root / "50" / name).unlink()
    assert jobs.of(50, now()) == "12"
    clock[0] += slurm_jobs.REMEMBERED_S + 1
    assert jobs.of(50, now()) == ""


JOB_GROUP = "0::/system.slice/slurmstepd.scope/job_12/step_0/user"


def test_a_storm_of_processes_is_looked_up_only_so_often(proc, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(slurm_jobs.time, "monotonic", lambda: clock[0])
    jobs = ProcessJobFinder(proc.root)
    at, most = now(), slurm_jobs.LOOKS_A_SECOND
    for pid in range(2, 2 + 4 * most):
        proc.add(pid, cgroup=JOB_GROUP)
    answers = [jobs.of(pid, at) for pid in range(2, 2 + 2 * most)]
    assert answers == ["12"] * most + [""] * most
    clock[0] += 1
    answers = [jobs.of(pid, at) for pid in range(2 + 2 * most, 2 + 4 * most)]
    assert answers == ["12"] * most + [""] * most


def test_a_storm_of_processes_costs_a_bounded_memory(proc, monkeypatch):
    """The oldest answer is forgotten: of a process that has ended meanwhile nothing is known."""
    clock = [1000.0]
    monkeypatch.setattr(slurm_jobs.time, "monotonic", lambda: clock[0])
    jobs = ProcessJobFinder(proc.root)
    last = 2 + slurm_jobs.REMEMBERED
    for pid in range(2, last + 1):
        proc.add(pid, cgroup=JOB_GROUP)
        assert jobs.of(pid, now()) == "12"
        clock[0] += 1 / slurm_jobs.LOOKS_A_SECOND
    for pid in (2, last):
        shutil.rmtree(proc.root / str(pid))
    assert [jobs.of(pid, now()) for pid in (2, last)] == ["", "12"]
