"""Network mounts: which are asked, and what their answers mean."""

import pytest

from hpctl.agent.checks import check_host_filesystems
from hpctl.agent.checks.check_host_filesystems import NETWORK, Asked, mounts, one_each
from hpctl.agent.probe import Probes
from hpctl.core.model import Verdict
from tests.unit.host import limits, machine, said

FSX = "50 22 0:51 / /fsx rw,noatime shared:9 - lustre 10.0.0.1@tcp:/abcd rw,flock"
BIND = "51 22 0:51 /home /home rw - lustre 10.0.0.1@tcp:/abcd rw,flock"
EFS = "52 22 0:52 / /efs rw - nfs4 fs-1.efs.eu-west-1.amazonaws.com:/ rw,hard"
UNDER = "53 22 0:53 / /fsx rw - nfs other:/ rw"
ROOT = "22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw"


@pytest.fixture
def probes():
    return Probes(5.0)


def mountinfo(*lines):
    return {"/proc/self/mountinfo": "\n".join(lines)}


def judged(*asked):
    return said(check_host_filesystems.judge_mounts(asked, None, limits("host.mounts")))


def points(made):
    return [mount.point for mount in one_each(mounts(made), NETWORK, check_host_filesystems.MOST)]


def test_each_file_system_that_is_reached_is_found_once(tmp_path):
    assert points(machine(tmp_path, mountinfo(ROOT, UNDER, FSX, BIND, EFS))) == ["/fsx", "/efs"]


def test_no_more_than_can_be_afforded_are_asked(tmp_path):
    lines = [f"{n} 1 0:{n} / /m{n} rw - nfs s:/{n} rw" for n in range(100, 200)]
    assert len(points(machine(tmp_path, mountinfo(*lines)))) == check_host_filesystems.MOST


def ask(tmp_path, words, probes):
    (tmp_path / "fsx").mkdir()
    made = machine(tmp_path, mountinfo(FSX))
    chosen = {m.point: m for m in mounts(made)}
    return check_host_filesystems.ask(made, chosen, words, probes)


@pytest.mark.parametrize("words", [check_host_filesystems.STATFS, check_host_filesystems.STAT_ROOT])
def test_a_mount_that_answers_is_well(tmp_path, words, probes):
    seen = ask(tmp_path, words, probes)
    assert seen == (Asked("/fsx", "lustre"),)
    assert judged(*seen) == []


def stand_in(tmp_path, text):
    program = tmp_path / "stand-in"
    program.write_text(f"#!/bin/sh\necho \"stat: cannot stat '/fsx': {text}\" >&2\nexit 1\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize("text", ["Permission denied", "No such file or directory"])
def test_errors_that_are_no_fault(tmp_path, text, probes):
    assert judged(*ask(tmp_path, stand_in(tmp_path, text), probes)) == []


@pytest.mark.parametrize("text", check_host_filesystems.BROKEN)
def test_a_server_that_is_gone(tmp_path, text, probes):
    seen = ask(tmp_path, stand_in(tmp_path, text), probes)
    assert judged(*seen) == [("error", "/fsx", Verdict.FAIL)]


@pytest.mark.parametrize(("silent_s", "codes"), [(10, ["hangs"]), (9.9, []), (0, [])])
def test_how_long_a_silence_counts(silent_s, codes):
    assert [c for c, _, _ in judged(Asked("/fsx", "lustre", silent_s=silent_s))] == codes
