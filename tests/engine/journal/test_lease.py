"""One writer: the lease on every database, the directory's lock beside SQLite's file."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Barrier

import pytest
from click.testing import CliRunner
from sqlalchemy.exc import SQLAlchemyError

from hpctl.daemon.command import config
from hpctl.daemon.locks import DaemonAlreadyRunningError, lock_state_dir
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.journal.rows import DaemonIdentity, DaemonLeaseInfo
from hpctl.engine.journal.store import LeaseHeldByOtherError, LeaseLostError
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import FOLLOW_S, STUCK_S, Leadership, LeaseTerms
from hpctl.engine.view import Request
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import NodeHealth
from tests.engine.journal.events import NOW, numbers, signal

pytestmark = [pytest.mark.integration, pytest.mark.contract]

HEALTH = NodeHealth(NodeGeneration("n1", "i-1", "b"), NOW, ())

LEASE_S = 3.0
POLL_S = 0.25


class Ticks:
    """A host's own seconds, which go on when a test says so; and its wall clock, which jumps."""

    def __init__(self) -> None:
        self.at, self.wall = 1000.0, NOW

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.at


class Host:
    """One daemon's store and leadership. Its thread is the test: `renew` is called by hand."""

    def __init__(self, bed, name, ticks, monkeypatch):
        monkeypatch.setattr(Leadership, "_renew_lease_until_stopped", lambda _: None)
        self.store, self.ticks = bed.open(), ticks
        self.me = DaemonIdentity(name, 7, "0.1", "own", f"{name}:8470")
        terms = LeaseTerms(LEASE_S, shared=True)
        self.leadership = Leadership(self.store, self.me, terms, ticks, ticks.monotonic)

    def acts(self, number: int) -> bool:
        """Do what an executor does: append, ask, act."""
        try:
            self.store.append([signal(number)])
        except LeaseLostError:
            return False
        return self.leadership.may_act()

    def waits(self, seconds: float) -> float | None:
        """Poll until it leads; answers after how long it did, None where it never did."""
        begun = self.ticks.at
        while self.ticks.at - begun <= seconds:
            if self.leadership.try_to_lead():
                return self.ticks.at - begun
            self.ticks.at += POLL_S
        return None


def test_the_lease_in_memory_is_the_row(database, monkeypatch):
    ticks = Ticks()
    host = Host(database, "head-1", ticks, monkeypatch)
    assert host.leadership.lease is None
    assert host.leadership.try_to_lead()
    assert host.leadership.lease == host.store.daemon()
    ticks.at, ticks.wall = ticks.at + 1, NOW + timedelta(seconds=1)
    host.leadership.note(0.25, "trouble", "assist")
    host.leadership.renew()
    assert host.leadership.lease == host.store.daemon()
    assert host.leadership.lease.beat == 1


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def hosts(database, ticks, monkeypatch):
    return lambda name: Host(database, name, ticks, monkeypatch)


def test_lease_has_no_holder_at_first(database):
    journal = database.open()
    assert journal.daemon() is None


def test_the_holder_can_be_read_exactly(database, hosts, ticks):
    head = hosts("head-1")
    assert head.leadership.try_to_lead()
    head.leadership.note(0.25, "slurmctld is ✗", "observe")
    ticks.wall += timedelta(seconds=11)
    head.leadership.renew()
    info = database.read().daemon()
    until = ticks.wall + timedelta(seconds=LEASE_S)
    assert info == DaemonLeaseInfo(
        "head-1", 7, "0.1", "observe", NOW, ticks.wall, until, 0.25, "slurmctld is ✗",
        epoch=1, beat=1, lease_s=LEASE_S, address="head-1:8470",
    )  # fmt: skip


@pytest.mark.parametrize("jump", [timedelta(), timedelta(days=1), timedelta(days=-1)])
def test_a_standby_takes_over_after_the_old_leader_stopped_by_its_own_clock(jump, hosts, ticks):
    old, new = hosts("head-1"), hosts("head-2")
    assert not old.acts(1), "who has not taken the lease writes nothing"
    assert old.leadership.try_to_lead()
    assert old.acts(1)
    assert not old.leadership.serves, "before it knows what the former leader knew"
    old.leadership.mark_leader_state_caught_up()
    assert old.leadership.serves
    assert new.leadership.try_to_lead() is False
    assert new.leadership.leader_address == "head-1:8470"
    for _ in range(20):
        ticks.at += LEASE_S / 4
        old.leadership.renew()
        assert not new.leadership.try_to_lead()
    assert old.acts(2)
    ticks.wall += jump
    ticks.at += LEASE_S * 0.95
    assert (old.leadership.leads, new.leadership.try_to_lead()) == (False, False)
    assert old.acts(3) is False, "written down, and not done"
    took = new.waits(10)
    assert took is not None
    assert took <= LEASE_S * 0.05 + POLL_S
    assert (new.leadership.leads, new.store.daemon().epoch) == (True, 2)
    old.leadership.renew()
    assert old.leadership.lost
    with pytest.raises(LeaseLostError):
        old.leadership.progress()
    for write in (
        lambda: old.store.append([signal(4)]),
        lambda: old.store.record([HEALTH]),
        lambda: old.store.store_last_heard_times({HEALTH.generation.node: NOW}),
        lambda: old.store.save_outbox("[]"),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert new.leadership.silent() == {"head-1"}
    assert new.acts(5)
    assert numbers(new.store.events()) == [1, 2, 3, 5]
    assert not new.store.health()


def test_a_renewal_that_comes_late_is_no_second_leader(hosts, ticks):
    """A standby may have seen the row before the last renewal, and no other one may win as well."""
    old, new, third = (hosts(f"head-{n}") for n in (1, 2, 3))
    old.leadership.try_to_lead()
    new.leadership.try_to_lead()
    third.leadership.try_to_lead()
    ticks.at += LEASE_S
    seen = new.store.daemon()
    old.leadership.renew()
    with pytest.raises(LeaseHeldByOtherError):
        new.store.take_lease(new.me, seen, NOW, LEASE_S)
    assert old.leadership.leads
    ticks.at += LEASE_S
    assert not new.leadership.try_to_lead(), "the row has changed since it looked"
    ticks.at += LEASE_S
    assert [new.leadership.try_to_lead(), third.leadership.try_to_lead()] == [True, False]


def test_a_loop_that_hangs_loses_the_lease_though_its_thread_lives(hosts, ticks):
    head = hosts("head-1")
    head.leadership.try_to_lead()
    ticks.at += STUCK_S - 1
    head.leadership.renew()
    assert head.leadership.may_act(), "an order is progress"
    ticks.at += STUCK_S + 1
    head.leadership.renew()
    assert not head.leadership.leads


def test_leader_that_ends_in_order_is_followed_at_once(hosts):
    old, new = hosts("head-1"), hosts("head-2")
    old.leadership.try_to_lead()
    new.leadership.try_to_lead()
    old.leadership.release()
    assert new.waits(10) == 0.0
    assert not old.acts(1)
    assert new.leadership.silent() == set()


@pytest.fixture
def followed(hosts):
    """A leader and two standbys. slurmctld is active beside the first standby."""
    old, near, far = three = [hosts(f"head-{n}") for n in (1, 2, 3)]
    for one in three:
        one.leadership.set_active_controller("HEAD-2.example")
        one.leadership.try_to_lead()
    return old, near, far


def test_a_standby_beside_the_controller_leads_before_another(followed, ticks):
    _, near, far = followed
    near.leadership.record_standby_heartbeat()
    ticks.at += LEASE_S - 0.1
    assert [one.leadership.try_to_lead() for one in (far, near)] == [False, False]
    ticks.at += 0.1
    assert [one.leadership.try_to_lead() for one in (far, near)] == [False, True]


def test_a_standby_elsewhere_leads_at_once_where_no_other_stands_by(followed, ticks):
    _, _, far = followed
    ticks.at += LEASE_S
    assert far.leadership.try_to_lead()


def test_a_standby_elsewhere_leads_where_the_other_lets_a_second_pass(followed, ticks):
    _, near, far = followed
    near.leadership.record_standby_heartbeat()
    ticks.at += LEASE_S + 0.9
    assert not far.leadership.try_to_lead()
    ticks.at += 0.1
    assert far.leadership.try_to_lead()


def test_the_active_slurmctlds_host_comes_first(hosts, ticks):
    old, near, far = (hosts(f"head-{n}") for n in (1, 2, 3))
    for one in (old, near, far):
        assert not one.leadership.is_on_controller_host(), "nobody knows where it is"
        one.leadership.set_active_controller("HEAD-2.example")
        one.leadership.try_to_lead()
    assert [one.leadership.is_on_controller_host() for one in (old, near, far)] == [
        False,
        True,
        False,
    ]
    for _ in range(2):
        for one in (near, far):
            one.leadership.record_standby_heartbeat()
        old.leadership.renew()
        old.leadership.hand_over_to_active_controller_host()
        assert bool(old.leadership.hand_over_to) == (ticks.at >= 1000 + FOLLOW_S)
        ticks.at += FOLLOW_S
        old.leadership.progress()
    assert old.leadership.hand_over_to == "head-2:8470"


@pytest.mark.parametrize(
    ("target", "proof", "ok", "answer"),
    [
        ("", "MUNGE", True, "head-1 hands over to head-2"),
        ("head-3", "MUNGE", True, "head-1 hands over to head-3"),
        ("head-3:8470", "MUNGE", True, "head-1 hands over to head-3"),
        ("head-1", "MUNGE", False, "head-1 leads already"),
        ("head-9", "MUNGE", False, "no standby is ready there; ready: head-2, head-3"),
        ("", "", False, "'anna' is not authenticated"),
    ],
)
def test_an_operator_names_the_next_leader(target, proof, ok, answer, hosts):
    old, *others = (hosts(f"head-{n}") for n in (1, 2, 3))
    old.leadership.try_to_lead()
    for one in others:
        one.leadership.try_to_lead()
        one.leadership.record_standby_heartbeat()
    old.leadership.renew()
    old.leadership.take(
        Request(1, NOW, "failover", target, "anna", proof), JournaledState(old.store)
    )
    (written,) = list(old.store.events())
    assert isinstance(written, RequestTaken)
    assert (written.ok, written.answer[: len(answer)]) == (ok, answer)
    assert bool(old.leadership.hand_over_to) is ok
    old.leadership.release()
    if ok:
        chosen = 1 if target.startswith("head-3") else 0
        assert others[1 - chosen].leadership.try_to_lead() is False, "it waits for the other one"
        assert others[chosen].leadership.try_to_lead()


def test_standbys_are_seen_while_they_live(hosts, ticks):
    old, new = hosts("head-1"), hosts("head-2")
    old.leadership.try_to_lead()
    old.acts(1)
    new.leadership.record_standby_heartbeat()
    old.leadership.renew()
    assert [(one.host, one.behind) for one in old.leadership.ready()] == [("head-2", 1)]
    assert old.leadership.silent() == set()
    list(new.store.events())
    new.leadership.record_standby_heartbeat()
    assert [one.behind for one in old.store.standbys()] == [0]
    old.leadership.renew()
    ticks.at += LEASE_S
    old.leadership.renew()
    assert old.leadership.ready() == []
    assert old.leadership.silent() == {"head-2"}
    new.leadership.release()
    assert old.store.standbys() == []


def test_a_database_is_one_clusters(database):
    for _ in range(2):
        database.open().claim("prod")
    with pytest.raises(
        HpctlError, match="belongs to the cluster 'prod', but this daemon is of the cluster 'test'"
    ):
        database.read().check_cluster("test")


def test_config_check_tries_the_database(served, tmp_path):
    path = tmp_path / "hpctl.yaml"

    def problem(url: str) -> str:
        cluster = {"provider": "none", "name": "test"}
        path.write_text(json.dumps({"database_url": url, "cluster": cluster}))
        done = CliRunner().invoke(config, ["check", str(path), "--json"])
        found: list[str] = json.loads(done.output)["problems"]
        assert done.exit_code == len(found)
        return " ".join(found)

    assert problem(served.url) == "", "the daemon makes a journal there"
    served.open().claim("prod")
    assert "belongs to the cluster 'prod'" in problem(served.url)
    served.execute("UPDATE hpctl_meta SET value = '99' WHERE name = 'schema'")
    assert "schema version 99, but this release of hpctl reads" in problem(served.url)
    assert "cannot be reached" in problem(served.url.replace("/hpctl_", "/other_"))


def test_leader_frozen_in_a_write_does_not_block_a_standby(served):
    """The server ends its transaction, which has the lease's row locked."""
    head, other = served.open(), served.open()
    me = DaemonIdentity("head-1", 7, "0.1", "own", "head-1:8470")
    head.take_lease(me, None, NOW, LEASE_S)
    with contextlib.suppress(SQLAlchemyError), head._writer.begin() as c:
        head._update_lease_row(c, id=1)
        begun = time.monotonic()
        other.take_lease(me, other.daemon(), NOW, LEASE_S)
        # By the server's limit of 2 s; what a busy machine adds is no lock that is kept.
        assert time.monotonic() - begun < 15
    with pytest.raises(LeaseLostError):
        head.append([signal(1)])


def race(one: Callable[[str], bool]) -> list[bool]:
    """Let two hosts do the same thing at the same moment."""
    start = Barrier(2)

    def run(host: str) -> bool:
        start.wait()
        return one(host)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, ["head-1", "head-2"]))


def test_lease_goes_to_one_of_two_first_daemons(hosts):
    heads = {name: hosts(name) for name in ("head-1", "head-2")}

    def start(name: str) -> bool:
        return heads[name].leadership.try_to_lead() and heads[name].acts(int(name[-1]))

    won = race(start)
    assert sorted(won) == [False, True]
    assert numbers(heads["head-1"].store.events()) == [won.index(True) + 1]


def test_two_may_make_the_tables_at_once(served):
    assert race(lambda host: served.open().daemon() is None) == [True, True]


def test_one_daemon_a_directory_until_it_is_dead(tmp_path):
    script = (
        "import sys, pathlib; from hpctl.daemon.locks import lock_state_dir\n"
        "held = lock_state_dir(pathlib.Path(sys.argv[1])); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(DaemonAlreadyRunningError, match=f"pid {other.pid} "):
            lock_state_dir(tmp_path)
        other.kill()
    with lock_state_dir(tmp_path):
        pass
