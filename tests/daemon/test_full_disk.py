"""Another user fills the file system of the state directory under a running daemon."""

import os
from pathlib import Path

import pytest

from hpctl.engine.journal.reserve import BALLAST
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.small_disk import filled_by_another_user, small_disk

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]


def test_recoveries_go_on_while_another_user_keeps_the_disk_full(tmp_path: Path) -> None:
    """A node is drained and its job runs elsewhere; status names the disk; then there is room, and
    the reserve is made again."""
    with small_disk(tmp_path / "small", 400) as small:
        state_dir = small / "hpctl"
        with cluster(nodes=3, config={"state_dir": str(state_dir)}) as live:
            reserve = state_dir / "reserve"
            until(reserve.exists, 30, "the reserve is made")
            pid = live.daemon().pid
            with filled_by_another_user(small):
                heal(live)
                check_status(live, small)
                restart(live)
                heal(live)
            until(lambda: live.daemon().pid != pid, 30, "the daemon writes its lease")
            until(
                lambda: reserve.exists() and reserve.stat().st_size == BALLAST,
                100,
                "the reserve is made again",
            )
            assert "short of room" not in live.hpctl("status", check=False)
            live.settle()


def heal(live: Chaos) -> None:
    """Break the node of a job; wait until the job runs elsewhere and the node has returned."""
    job = live.start("sleep 600", "--time=10")
    (node,) = live.job(job).nodes
    live.xid(str(node))
    until(lambda: live.running(job, 1), 60, f"job {job} runs elsewhere")
    assert node not in live.job(job).nodes
    live.returned(str(node), 120)
    live.sandbox.run(["scancel", str(job)])


def check_status(live: Chaos, small: Path) -> None:
    """Status names the file system and says what still goes on."""
    status = " ".join(live.hpctl("status", check=False).split())
    assert f"the file system {small} (tmpfs) of the state directory {small}/hpctl" in status
    assert "(100 % full, 0 MiB of 400 MiB free)" in status
    assert f"Free space on {small}, or enlarge it" in status


def restart(live: Chaos) -> None:
    """Kill the daemon; it starts on the full disk."""
    live.sandbox.kill_daemon()
    live.sandbox.start_daemon()
