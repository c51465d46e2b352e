"""`sbatch --resilient` and `srun --resilient` where a user has filled the disk they write to."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.adversary.bed import drop
from tests.jobs.sbatch.test_spank import ROOT, Cluster
from tests.jobs.sbatch.test_spank import cluster as cluster
from tests.process import room

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.slurm,
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
FULL = "No space left on device"
FILL = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


@contextmanager
def full_disk(*, inodes: bool) -> Iterator[Path]:
    """A small disk that an unprivileged user has filled. `inodes`: a file can still be made on it,
    in which nothing can be written."""
    with room() as base:
        point = base / "disk"
        point.mkdir()
        options = f"size=1m,nr_inodes={64 if inodes else 4},mode=1777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
        try:
            fill = ["/usr/bin/python3", "-I", "-c", FILL, str(point / "ballast")]
            done = subprocess.run(fill, capture_output=True, text=True, check=False, **drop())
            assert FULL in done.stderr
            with suppress(OSError):
                for number in range(0 if inodes else 8):
                    (point / f"file-{number}").touch()
            yield point
        finally:
            subprocess.run(["umount", "--lazy", str(point)], check=True)


STEP = """
mkdir -p {disk} && mount -t tmpfs -o size=1m,nr_inodes={inodes},mode=1777 tmpfs {disk}
for file in ballast b c d; do head -c 2M /dev/zero >{disk}/$file; done 2>/dev/null
export {variable}={disk}
srun --resilient echo hello; echo rc $?
umount --lazy {disk}
"""
"""A job whose step meets a full disk. The nodes of the sandbox do not see mounts of later."""


def submit(cluster: Cluster, script: str, **environment: str) -> tuple[str, str]:
    """Submit a resilient job; return what sbatch said, and the job's log."""
    (cluster.base / "out").mkdir(exist_ok=True)
    settings = {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(cluster.base / "tmp"),
        "XDG_STATE_HOME": str(cluster.base / "state"),
        **environment,
    }
    done = cluster.slurm.run(
        ["sbatch", "--parsable", "--resilient", "-o", f"{cluster.base}/out/%j", script],
        check=False,
        env=settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr, cluster.ended(done.stdout.strip())


def check_plain_run(text: str, disk: Path) -> None:
    """Check that the plugin named the disk and the cause once, and went on without hpctl."""
    assert FULL in text
    assert str(disk) in text
    assert "Traceback" not in text
    assert text.count("going on without it") == 1


@pytest.mark.parametrize("inodes", [False, True], ids=["no inode", "no block"])
def test_a_full_temporary_directory_fails_no_submission(cluster: Cluster, inodes: bool) -> None:
    with full_disk(inodes=inodes) as disk:
        said, log = submit(cluster, cluster.script("echo hello"), TMPDIR=str(disk))
        left = [path.name for path in disk.iterdir() if path.name.startswith("hpctl")]
    check_plain_run(said, disk)
    assert log.splitlines() == ["hello"]
    assert left == []


@pytest.mark.parametrize("inodes", [4, 64], ids=["no inode", "no block"])
def test_a_full_temporary_directory_of_a_node_fails_no_step(cluster: Cluster, inodes: int) -> None:
    disk = cluster.base / f"disk-{inodes}"
    body = STEP.format(disk=disk, inodes=inodes, variable="TMPDIR")
    _, log = submit(cluster, cluster.script(body))
    check_plain_run(log, disk)
    assert log.splitlines()[-2:] == ["hello", "rc 0"]


def test_a_full_state_directory_of_a_node_fails_no_supervised_step(cluster: Cluster) -> None:
    disk = cluster.base / "disk-state"
    body = STEP.format(disk=disk, inodes=64, variable="XDG_STATE_HOME")
    _, log = submit(cluster, cluster.script(body))
    assert "going on without it" not in log
    assert "hello" in log.splitlines()
    assert log.splitlines()[-1] == "rc 0"
    assert "Traceback" not in log
