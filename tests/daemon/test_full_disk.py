"""The file system of the state directory fills up under a running daemon, and has room again."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
MIB = 2**20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=755", "tmpfs", str(point)]
    made = subprocess.run(mount, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(point: Path, leave: int) -> Path:
    """Write a file that leaves so many bytes free."""
    ballast = point / "ballast"
    with ballast.open("ab") as file:
        stat = os.statvfs(point)
        free = stat.f_bavail * stat.f_frsize
        os.posix_fallocate(file.fileno(), 0, free - leave)
    return ballast


def test_status_names_a_full_disk_and_the_daemon_goes_on_once_there_is_room(small: Path) -> None:
    with cluster(nodes=2, config={"state_dir": str(small / "hpctl")}) as live:
        run(live, small)


def run(live: Chaos, small: Path) -> None:
    assert "short of room" not in live.hpctl("status", check=False)
    pid = live.daemon().pid
    ballast = fill(small, leave=0)
    (victim,) = live.victims(1)
    live.xid(victim)
    until(lambda: "cannot be written" in live.log(), 60, "the daemon says what fails")
    status = " ".join(live.hpctl("status", check=False).split())
    assert f"the file system {small} (tmpfs) of the state directory {small}/hpctl" in status
    assert "(100 % full, 0 MiB of 300 MiB free)" in status
    assert f"Free space on {small}, or enlarge it" in status
    assert not live.node(victim).drained, "nothing is done that is not in the journal"
    ballast.unlink()
    until(lambda: live.phase(victim) != "", 60, "a recovery")
    live.returned(victim, 120)
    assert live.daemon().pid == pid, "the same process"
    assert "short of room" not in live.hpctl("status", check=False)
    live.settle()
