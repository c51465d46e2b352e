"""A directory for fast saves that another user made first, on every node of a real job."""

import os
import shutil
from pathlib import Path

import pytest

from tests.adversary.bed import STRANGER
from tests.daemon.chaos import cluster
from tests.live import until
from tests.process import room
from tests.soak.jobs import BESIDE, submit

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user"),
]
FAST = BESIDE[1]
STEPS = 20


def make_first(disk: Path) -> Path:
    """Make the job's directory on a node's disk as the stranger does, open to everybody."""
    place = disk / "run"
    place.mkdir()
    shutil.chown(place, STRANGER.pw_uid, STRANGER.pw_gid)
    place.chmod(0o777)
    return place


def test_a_job_saves_nothing_into_a_directory_that_another_user_made_first() -> None:
    with room() as base, cluster(nodes=2, disks=True) as live:
        disks = sorted(live.sandbox.spec.layout.state.glob("nodes/*/disk-i-*"))
        assert len(disks) == 2
        places = [make_first(disk) for disk in disks]
        job = submit(live, base, FAST, STEPS, 0)
        until(lambda: job.look(live), 150, "the job ends complete")
        (log,) = base.glob(f"*-{job.number}.log")
        said = log.read_text()
        assert "is not a directory of this user" in said
        assert "HPCTL_FAST_DIR is not set" in said
        assert [path for place in places for path in place.iterdir()] == []
        assert list(job.directory.glob(f"step-{STEPS:08d}")), "it saved where all nodes can read"
        owners = {(place.stat().st_uid, place.stat().st_mode & 0o777) for place in places}
        assert owners == {(STRANGER.pw_uid, 0o777)}
