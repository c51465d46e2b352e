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


def submit(cluster: Cluster, environment: dict[str, str]) -> tuple[str, str]:
    """Submit a resilient job with a resilient step; return what sbatch said, and the job's log."""
    (cluster.base / "out").mkdir(exist_ok=True)
    # slurmstepd may give a job another TMPDIR.
    directories = [f"export {name}={path}" for name, path in environment.items()]
    step = "srun --resilient echo hello; echo rc $?"
    script = cluster.script("\n".join([*directories, step]))
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


@pytest.mark.parametrize("inodes", [False, True], ids=["no inode", "no block"])
def test_a_full_temporary_directory_fails_no_job_and_is_named(
    cluster: Cluster, inodes: bool
) -> None:
    with full_disk(inodes=inodes) as disk:
        said, log = submit(cluster, {"TMPDIR": str(disk)})
        left = [path.name for path in disk.iterdir() if path.name.startswith("hpctl")]
    for text in (said, log):
        assert FULL in text
        assert str(disk) in text
        assert "Traceback" not in text
        assert text.count("going on without it") == 1
    assert log.splitlines()[-2:] == ["hello", "rc 0"]
    assert left == []


def test_a_full_state_directory_fails_no_supervised_job(cluster: Cluster) -> None:
    with full_disk(inodes=True) as disk:
        said, log = submit(cluster, {"XDG_STATE_HOME": str(disk)})
    assert "going on without it" not in said
    assert "hello" in log.splitlines()
    assert log.splitlines()[-1] == "rc 0"
    assert "Traceback" not in log
