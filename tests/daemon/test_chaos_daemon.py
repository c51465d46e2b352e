"""The daemon and slurmctld are stopped, killed, starved and misconfigured in the middle of it."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


@contextmanager
def small_disk(megabytes: int):
    """A file system of a few megabytes. Needs root, as the sandbox's network namespaces do."""
    path = Path(tempfile.mkdtemp(prefix="hpctl-disk-"))
    what = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    subprocess.run(what, check=True, capture_output=True, timeout=60)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True, timeout=60)
        path.rmdir()


@pytest.fixture(scope="module")
def shared():
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    with small_disk(4) as disk:
        config = {"state_dir": str(disk / "state"), "loop": {"lease_s": 3.0}}
        with cluster(config, nodes=4) as live:
            yield live


def test_daemon_that_slept_past_its_lease_continues(live: Chaos) -> None:
    (victim,) = live.victims(1)
    pid = live.daemon().pid
    live.sandbox.signal_service("daemon", "SIGSTOP")
    live.xid(victim)
    time.sleep(5)
    live.sandbox.signal_service("daemon", "SIGCONT")
    live.returned(victim)
    assert live.daemon().pid == pid


def test_a_corrupt_journal_is_refused_and_nothing_is_done(live: Chaos) -> None:
    (victim,) = live.victims(1)
    journal = live.config.state_dir / "journal.db"
    live.sandbox.signal_service("daemon", "SIGTERM")
    # The last connection's end folds the write-ahead log in: one file is the whole journal.
    keep = Path(live.sandbox.state_dir) / "journal.keep"
    shutil.copy(journal, keep)
    live.mark(victim)
    try:
        with closing(sqlite3.connect(journal)) as database, database:
            database.execute("UPDATE hpctl_events SET payload = substr(payload, 2) WHERE seq = 3")
        done = live.second_daemon()
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "journal" in done.stderr
        assert "newest good" in done.stderr, "it says what to do"
        live.sandbox.inject(victim, "xid", code=79)
        time.sleep(1)
        assert not live.node(victim).drained
    finally:
        for stale in journal.parent.glob("journal.db*"):
            stale.unlink()
        shutil.copy(keep, journal)
        live.sandbox.start_daemon()
    live.returned(victim)


def test_a_full_disk_loses_no_report_and_heals_when_there_is_room(live: Chaos) -> None:
    (victim,) = live.victims(1)
    pid = live.daemon().pid
    filler = live.config.state_dir.parent / "filler"
    fill(filler)
    try:
        live.xid(victim)
        until(lambda: " 503" in live.log(f"agent.{victim}.log"), 10, "the agent is told 503")
        stays(lambda: not live.node(victim).drained, 3, "what is not written is not done")
    finally:
        filler.unlink()
    live.returned(victim)
    assert live.daemon().pid == pid, "the daemon lived through it"


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with path.open("wb", buffering=0) as f:
        for size in (65536, 4096, 1):
            try:
                while True:
                    f.write(b"\0" * size)
            except OSError:
                continue
