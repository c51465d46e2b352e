"""Network mounts that do not answer, and local file systems out of service."""

import pytest

from hpctl.detection.checks import host_mounts, host_readonly
from hpctl.detection.checks.host_filesystems_reading import (
    LOCAL,
    NETWORK,
    read_mountinfo_entries,
    select_mounts_by_file_system_type,
)
from hpctl.detection.checks.host_mounts import MountProbeResult
from hpctl.detection.probe import PendingProbe, ProbeResult, ProbeRunner
from hpctl.vocabulary.model import DeviceVerdict
from tests.detection.host import limits, machine, summary

FSX = "50 22 0:51 / /fsx rw,noatime shared:9 - lustre 10.0.0.1@tcp:/abcd rw,flock"

BIND = "51 22 0:51 /home /home rw - lustre 10.0.0.1@tcp:/abcd rw,flock"

EFS = "52 22 0:52 / /efs rw - nfs4 fs-1.efs.eu-west-1.amazonaws.com:/ rw,hard"

UNDER = "53 22 0:53 / /fsx rw - nfs other:/ rw"


def judged_mounts(*asked):
    return summary(host_mounts.judge_network_mounts(asked, None, limits("host.mounts")))


def points(made):
    return [
        mount.point
        for mount in select_mounts_by_file_system_type(
            read_mountinfo_entries(made), NETWORK, host_readonly.MOST
        )
    ]


def test_each_file_system_that_is_reached_is_found_once(tmp_path):
    assert points(machine(tmp_path, mountinfo(ROOT, UNDER, FSX, BIND, EFS))) == ["/fsx", "/efs"]


def test_no_more_than_can_be_afforded_are_asked(tmp_path):
    lines = [f"{n} 1 0:{n} / /m{n} rw - nfs s:/{n} rw" for n in range(100, 200)]
    assert len(points(machine(tmp_path, mountinfo(*lines)))) == host_readonly.MOST


def ask(tmp_path, args, probes):
    (tmp_path / "fsx").mkdir()
    made = machine(tmp_path, mountinfo(FSX))
    return host_mounts.probe_mounts_with_command(
        made, {m.point: m for m in read_mountinfo_entries(made)}, args, probes
    )


@pytest.mark.parametrize("args", [host_mounts.STATFS, host_mounts.STAT_ROOT])
def test_a_mount_that_answers_is_well(tmp_path, args, probes):
    seen = ask(tmp_path, args, probes)
    assert (seen, judged_mounts(*seen)) == ((MountProbeResult("/fsx", "lustre"),), [])


def stand_in(tmp_path, text):
    program = tmp_path / "stand-in"
    program.write_text(f"#!/bin/sh\necho \"stat: cannot stat '/fsx': {text}\" >&2\nexit 1\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((text, [("error", "/fsx", DeviceVerdict.FAIL)]) for text in host_mounts.BROKEN),
        ("Permission denied", []),
        ("No such file or directory", []),
    ],
)
def test_only_the_error_of_a_server_that_is_gone_is_a_fault(tmp_path, text, found, probes):
    assert judged_mounts(*ask(tmp_path, stand_in(tmp_path, text), probes)) == found


ROOT = "22 1 259:1 / / {own},relatime shared:1 - ext4 /dev/nvme0n1p1 {super},errors=remount-ro"

DATA = r"40 22 259:2 / /opt/my\040data {own} - xfs /dev/nvme1n1 {super},attr2"

TMPFS = "23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw"

FAIL = DeviceVerdict.FAIL

WELL = ProbeResult(0, "/\n", "")


@pytest.fixture(autouse=True)
def probes(monkeypatch):
    made = ProbeRunner(5.0)
    monkeypatch.setattr(host_readonly, "PROBES", made)
    return made


def mountinfo(*lines, own="rw", super="rw"):
    return {"/proc/self/mountinfo": "\n".join(line.format(own=own, super=super) for line in lines)}


def signs(machine, answer=WELL):
    local = select_mounts_by_file_system_type(read_mountinfo_entries(machine), LOCAL, 32)
    return {
        disk.point: disk.sign
        for disk in host_readonly.classify_disk_write_states(machine, local, answer)
    }


def judged(sample):
    return summary(host_readonly.judge_readonly_mounts(sample, None, limits("host.readonly")))


def test_a_healthy_machine_is_silent(tmp_path):
    seen = host_readonly.probe_local_mount_writability(machine(tmp_path, mountinfo(ROOT, TMPFS)))
    assert ([disk.point for disk in seen.disks], judged(seen)) == (["/"], [])


def test_a_root_that_the_kernel_remounted(tmp_path):
    seen = host_readonly.probe_local_mount_writability(
        machine(tmp_path, mountinfo(ROOT, own="ro", super="ro"))
    )
    assert judged(seen) == [("readonly", "/", DeviceVerdict.FAIL)]


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


@pytest.mark.parametrize(("options", "sign"), [("ro,noatime", ""), ("defaults", "ro")])
def test_fstab_says_what_is_meant(tmp_path, options, sign):
    files = mountinfo(ROOT, own="ro", super="ro")
    files["/etc/fstab"] = f"# local\nUUID=1 / ext4 {options} 0 1\n"
    assert signs(machine(tmp_path, files)) == {"/": sign}


def test_xfs_that_shut_down_answers_with_an_error(tmp_path):
    made = machine(tmp_path, mountinfo(ROOT, DATA))
    error = f"stat: cannot statx '{tmp_path}/opt/my data': Input/output error\n"
    assert signs(made, ProbeResult(1, "/\n", error)) == {
        "/": "",
        "/opt/my data": "Input/output error",
    }


def test_a_mount_point_that_went_meanwhile_is_no_fault(tmp_path):
    made = machine(tmp_path, mountinfo(DATA))
    error = f"stat: cannot statx '{tmp_path}/opt/my data': No such file or directory\n"
    assert signs(made, ProbeResult(1, "", error)) == {"/opt/my data": ""}
    assert signs(made, PendingProbe(99)) == {"/opt/my data": ""}


def test_a_byte_is_written_where_the_agent_lives(tmp_path):
    folder = tmp_path / "var/lib/hpctl/agent"
    folder.mkdir(parents=True)
    seen = host_readonly.probe_local_mount_writability(machine(tmp_path, mountinfo(ROOT)))
    assert (seen.write_error, seen.write_s) == ("", 0.0)
    assert ((folder / ".write-probe").read_bytes(), judged(seen)) == (b"\0", [])


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
    monkeypatch.setattr(host_readonly, "WRITE", ("ls", "--", f"/gone/{error}"))

    class Refused(ProbeRunner):
        def ask(self, questions, wait_s):
            reported = super().ask(questions, wait_s)
            assert isinstance(reported["write"], ProbeResult)
            return {**reported, "write": ProbeResult(1, "", f"dd: failed to open 'x': {error}\n")}

    monkeypatch.setattr(host_readonly, "PROBES", Refused(5.0))
    seen = host_readonly.probe_local_mount_writability(machine(tmp_path, mountinfo(ROOT, own=own)))
    assert (seen.write_error, seen.write_point) == (expected, "/")
