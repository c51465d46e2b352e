"""Local file systems out of service, and the read-only ones that are meant to be."""

import pytest

from hpctl.agent.checks import check_host_filesystems
from hpctl.agent.checks.check_host_filesystems import LOCAL, Disk, Sample, mounts, one_each
from hpctl.agent.probe import Answer, Probes, Waiting
from hpctl.core.model import Verdict
from tests.unit.host import limits, machine, said

ROOT = "22 1 259:1 / / {own},relatime shared:1 - ext4 /dev/nvme0n1p1 {super},errors=remount-ro"
DATA = r"40 22 259:2 / /opt/my\040data {own} - xfs /dev/nvme1n1 {super},attr2"
TMPFS = "23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw"
FAIL = Verdict.FAIL
WELL = Answer(0, "/\n", "")


@pytest.fixture(autouse=True)
def probes(monkeypatch):
    monkeypatch.setattr(check_host_filesystems, "_probes", Probes(5.0))


def mountinfo(*lines, own="rw", super="rw"):
    text = "\n".join(line.format(own=own, super=super) for line in lines)
    return {"/proc/self/mountinfo": text}


def signs(machine, answer=WELL):
    local = one_each(mounts(machine), LOCAL, 32)
    return {disk.point: disk.sign for disk in check_host_filesystems.disks(machine, local, answer)}


def judged(sample):
    return said(check_host_filesystems.judge_readonly(sample, None, limits("host.readonly")))


def test_a_healthy_machine_is_silent(tmp_path):
    seen = check_host_filesystems.gather_readonly(machine(tmp_path, mountinfo(ROOT, TMPFS)))
    assert [disk.point for disk in seen.disks] == ["/"]
    assert judged(seen) == []


def test_a_root_that_the_kernel_remounted(tmp_path):
    seen = check_host_filesystems.gather_readonly(
        machine(tmp_path, mountinfo(ROOT, own="ro", super="ro"))
    )
    assert judged(seen) == [("readonly", "/", Verdict.FAIL)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (mountinfo(ROOT, super="rw,emergency_ro"), {"/": "emergency_ro"}),
        (mountinfo(ROOT, super="rw,shutdown"), {"/": "shutdown"}),
        # A view that systemd gives a service, and a data disk mounted so by hand, are no fault.
        (mountinfo(ROOT, own="ro", super="rw"), {"/": ""}),
        (mountinfo(DATA, own="ro", super="ro"), {"/opt/my data": ""}),
    ],
)
def test_signs_of_a_file_system_out_of_service(tmp_path, files, expected):
    assert signs(machine(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Sample((Disk("/", "ext4", True),), "", "/", 110), [("write-hangs", "/", Verdict.WARN)]),
        (Sample((Disk("/", "ext4", True),), "", "/", 109.9), []),
        (Sample((Disk("/", "ext4", True, "ro"),), "Read-only", "/"), [("readonly", "/", FAIL)]),
        (Sample((Disk("/", "ext4", True),), "Read-only", "/var"), [("readonly", "/var", FAIL)]),
    ],
)
def test_what_is_told(seen, expected):
    assert judged(seen) == expected


@pytest.mark.parametrize(("options", "sign"), [("ro,noatime", ""), ("defaults", "ro")])
def test_fstab_says_what_is_meant(tmp_path, options, sign):
    files = mountinfo(ROOT, own="ro", super="ro")
    files["/etc/fstab"] = f"# local\nUUID=1 / ext4 {options} 0 1\n"
    assert signs(machine(tmp_path, files)) == {"/": sign}


def test_xfs_that_shut_down_answers_with_an_error(tmp_path):
    made = machine(tmp_path, mountinfo(ROOT, DATA))
    error = f"stat: cannot statx '{tmp_path}/opt/my data': Input/output error\n"
    assert signs(made, Answer(1, "/\n", error)) == {"/": "", "/opt/my data": "Input/output error"}


def test_a_mount_point_that_went_meanwhile_is_no_fault(tmp_path):
    made = machine(tmp_path, mountinfo(DATA))
    error = f"stat: cannot statx '{tmp_path}/opt/my data': No such file or directory\n"
    assert signs(made, Answer(1, "", error)) == {"/opt/my data": ""}
    assert signs(made, Waiting(99)) == {"/opt/my data": ""}


def test_a_byte_is_written_where_the_agent_lives(tmp_path):
    folder = tmp_path / "var/lib/hpctl/agent"
    folder.mkdir(parents=True)
    seen = check_host_filesystems.gather_readonly(machine(tmp_path, mountinfo(ROOT)))
    assert (seen.write_error, seen.write_s) == ("", 0.0)
    assert (folder / ".write-probe").read_bytes() == b"\0"
    assert judged(seen) == []


@pytest.mark.parametrize(
    ("own", "error", "expected"),
    [
        ("rw", "Read-only file system", "Read-only file system"),
        ("rw", "Input/output error", "Input/output error"),
        ("rw", "No space left on device", ""),
        ("rw", "Permission denied", ""),
        ("ro", "Read-only file system", ""),
    ],
)
def test_what_a_refused_write_says(tmp_path, monkeypatch, own, error, expected):
    (tmp_path / "var/lib/hpctl/agent").mkdir(parents=True)
    monkeypatch.setattr(check_host_filesystems, "WRITE", ("ls", "--", f"/gone/{error}"))

    class Refused(Probes):
        def ask(self, questions, wait_s):
            told = super().ask(questions, wait_s)
            assert isinstance(told["write"], Answer)
            return {**told, "write": Answer(1, "", f"dd: failed to open 'x': {error}\n")}

    monkeypatch.setattr(check_host_filesystems, "_probes", Refused(5.0))
    seen = check_host_filesystems.gather_readonly(machine(tmp_path, mountinfo(ROOT, own=own)))
    assert (seen.write_error, seen.write_point) == (expected, "/")
