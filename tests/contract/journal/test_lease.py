"""One writer: the lease on every database, the directory's lock beside SQLite's file."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from hpctl.daemon.main import AlreadyRunning, lock_state_dir
from hpctl.errors import Unavailable
from hpctl.store.sql import LeaseHeld, LeaseLost, Store
from tests.contract.journal.beds import DatabaseBed
from tests.contract.journal.events import NOW, numbers, signal

LEASE_S = 30.0
MOMENT = timedelta(microseconds=1)


def take(journal: Store, host: str, at: timedelta = timedelta()) -> None:
    journal.take_lease(host, 7, "0.1", "own", NOW + at, LEASE_S)


def test_nobody_held_it_at_first(database: DatabaseBed) -> None:
    assert database.open().daemon() is None


def test_the_holder_can_be_read_exactly(database: DatabaseBed) -> None:
    holder, reader = database.open(), database.open()
    take(holder, "head-1")
    info = reader.daemon()
    assert (info.host, info.pid, info.version, info.mode) == ("head-1", 7, "0.1", "own")
    assert (info.started, info.heartbeat) == (NOW, NOW)
    assert info.until == NOW + timedelta(seconds=LEASE_S)
    later = NOW + timedelta(seconds=11)
    holder.renew_lease(later, LEASE_S, 0.25, "slurmctld is ✗", "observe")
    info = reader.daemon()
    assert (info.started, info.heartbeat) == (NOW, later)
    assert info.until == later + timedelta(seconds=LEASE_S)
    assert (info.last_cycle_s, info.trouble, info.mode) == (0.25, "slurmctld is ✗", "observe")


def test_another_host_waits_until_it_has_run_out(database: DatabaseBed) -> None:
    first, second = database.open(), database.open()
    take(first, "head-1")
    for after in (timedelta(), timedelta(seconds=LEASE_S) - MOMENT):
        with pytest.raises(LeaseHeld, match="head-1"):
            take(second, "head-2", after)
    first.append([signal(1)])
    take(second, "head-2", timedelta(seconds=LEASE_S))
    assert first.daemon().host == "head-2"


def test_the_same_host_takes_over_at_once(database: DatabaseBed) -> None:
    first, second = database.open(), database.open()
    take(first, "head-1")
    take(second, "head-1")
    second.append([signal(1)])
    with pytest.raises(LeaseLost):
        first.append([signal(2)])
    assert numbers(first.events()) == [1]


def test_who_lost_it_can_write_no_more(database: DatabaseBed) -> None:
    old, new = database.open(), database.open()
    take(old, "head-1")
    old.append([signal(1)])
    take(new, "head-2", timedelta(seconds=LEASE_S + 1))
    with pytest.raises(LeaseLost):
        old.append([signal(2), signal(3)])
    with pytest.raises(LeaseLost):
        old.renew_lease(NOW, LEASE_S, 0.0, "", "own")
    new.append([signal(4)])
    assert numbers(new.events()) == [1, 4]
    assert new.daemon().host == "head-2"


def race(one):
    """Let two hosts do the same thing at the same moment."""
    start = Barrier(2)

    def run(host: str) -> bool:
        start.wait()
        return one(host)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, ["head-1", "head-2"]))


def test_of_two_first_daemons_one_wins(database: DatabaseBed) -> None:
    stores = {host: database.open() for host in ("head-1", "head-2")}

    def start(host: str) -> bool:
        try:
            take(stores[host], host)
        except (LeaseHeld, Unavailable):
            return False
        stores[host].append([signal(int(host[-1]))])
        return True

    won = race(start)
    assert sorted(won) == [False, True]
    assert numbers(database.open().events()) == [won.index(True) + 1]


def test_two_may_make_the_tables_at_once(served: DatabaseBed) -> None:
    assert race(lambda host: served.open().daemon() is None) == [True, True]


def test_one_daemon_a_directory_until_it_is_dead(tmp_path) -> None:
    script = (
        "import sys, pathlib; from hpctl.daemon.main import lock_state_dir\n"
        "held = lock_state_dir(pathlib.Path(sys.argv[1])); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyRunning, match=f"pid {other.pid} "):
            lock_state_dir(tmp_path)
        other.kill()
    with lock_state_dir(tmp_path):
        pass
