"""The daemon and slurmctld are stopped, killed, starved and misconfigured in the middle of it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.chaos import Chaos, cluster, stays
from tests.integration.live import until

pytestmark = pytest.mark.slurm


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of a few megabytes. Needs root, as the sandbox's network namespaces do."""
    path = Path(tempfile.mkdtemp(prefix="hpctl-disk-"))
    what = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    subprocess.run(what, check=True, capture_output=True, timeout=10)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True, timeout=10)
        path.rmdir()


@pytest.fixture(scope="module")
def shared() -> Iterator[Chaos]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    with small_disk(4) as disk:
        config = {"state_dir": str(disk / "state"), "loop": {"lease_s": 3.0}}
        with cluster(config, nodes=4) as live:
            yield live


@pytest.fixture
def live(shared: Chaos) -> Iterator[Chaos]:
    yield shared
    shared.settle()


def test_slurmctld_restarts_in_the_middle_of_a_drain(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[0])
    live.xid(victim)
    until(lambda: bool(live.of(victim)), 10, "a recovery")
    # SIGTERM saves the state, as a restart does; after a SIGKILL Slurm forgets its last seconds.
    live.sandbox.signal_service("slurmctld", "SIGTERM")
    time.sleep(1)
    live.sandbox.start_slurmctld()
    until(lambda: live.running(job, restarts=1), 40, "the job runs again")
    # On the victim only if that was healed by then, which a slow slurmctld gives it time for.
    assert victim not in live.job(job).nodes or live.phase(victim) == "returned"
    assert live.job(job).restarts == 1
    live.returned(victim)


@pytest.mark.nightly
def test_a_slurmctld_that_does_not_answer_moves_nothing(live: Chaos) -> None:
    (victim,) = live.victims(1)
    live.sandbox.signal_service("slurmctld", "SIGSTOP")
    try:
        live.xid(victim)
        time.sleep(15)
        steps = [s for r in live.of(victim) for s in r.steps]
        assert all(s.outcome is None or s.outcome.kind != "accepted" for s in steps)
    finally:
        live.sandbox.signal_service("slurmctld", "SIGCONT")
    live.returned(victim)


@pytest.mark.nightly
def test_a_daemon_that_slept_past_its_lease_goes_on(live: Chaos) -> None:
    (victim,) = live.victims(1)
    pid = live.daemon().pid
    live.sandbox.signal_service("daemon", "SIGSTOP")
    live.xid(victim)
    time.sleep(5)
    live.sandbox.signal_service("daemon", "SIGCONT")
    live.returned(victim)
    assert live.daemon().pid == pid


@pytest.mark.nightly
@pytest.mark.parametrize("harm", ["event", "header", "pages"])
def test_a_corrupt_journal_is_refused_and_nothing_is_done(live: Chaos, harm: str) -> None:
    (victim,) = live.victims(1)
    journal = live.config.state_dir / "journal.db"
    live.sandbox.signal_service("daemon", "SIGTERM")
    # The last connection's end folds the write-ahead log in: one file is the whole journal.
    keep = Path(live.sandbox.state_dir) / "journal.keep"
    shutil.copy(journal, keep)
    live.mark(victim)
    try:
        spoil(journal, harm)
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


def spoil(journal: Path, harm: str) -> None:
    if harm == "event":
        with sqlite3.connect(journal) as c:
            c.execute("UPDATE hpctl_events SET payload = substr(payload, 2) WHERE seq = 3")
        c.close()
        return
    with journal.open("r+b") as f:
        if harm == "header":
            f.write(os.urandom(100))
        else:
            size = journal.stat().st_size
            for page in range(4096, size, 4096):
                f.seek(page)
                f.write(os.urandom(64))


@pytest.mark.nightly
def test_a_broken_file_keeps_the_last_good_configuration(live: Chaos) -> None:
    good = live.sandbox.config_path.read_text()
    live.sandbox.config_path.write_text(good + "\nmodee: own\n")
    try:
        live.sandbox.signal_service("daemon", "SIGHUP")
        until(lambda: "not reloaded" in live.daemon().trouble, 10, "the trouble is told")
        assert "modee" in live.daemon().trouble
        (victim,) = live.victims(1)
        live.xid(victim)
        live.returned(victim)
    finally:
        live.sandbox.config_path.write_text(good)
        live.sandbox.signal_service("daemon", "SIGHUP")
    until(lambda: "modee" not in live.daemon().trouble, 10, "it is reloaded")


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_sigterm_is_an_orderly_end_and_the_next_daemon_goes_on(live: Chaos) -> None:
    (victim,) = live.victims(1)
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: live.phase(victim) == "remedying", 15, "remedying")
    live.sandbox.signal_service("daemon", signal.SIGTERM.name)
    live.sandbox.inject_api("clear")
    live.sandbox.start_daemon()
    recovery = live.returned(victim)
    assert len(live.asked(str(recovery.opened_for.instance))) == 1
