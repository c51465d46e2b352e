"""Who would lead next, and whether a lease that looks old is one that nobody renews."""

import time
from contextlib import closing
from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.cli.failover import preview_daemon_failover
from hpctl.engine import world_offline
from hpctl.engine.journal.rows import DaemonIdentity, DaemonLeaseInfo, StandbyInfo
from hpctl.engine.status_view import make_standby_daemon_views
from tests.cli import worlds

pytestmark = pytest.mark.integration

NOW = worlds.at(0)
LEADER = DaemonLeaseInfo(
    "head-1", 7, "0.1", "own", NOW, NOW, NOW + timedelta(seconds=0.2), 0.0,
    epoch=3, beat=9, lease_s=0.2, address="head-1:8470",
)  # fmt: skip


@pytest.mark.parametrize(
    ("to", "silent_s", "ok", "answer"),
    [
        ("", 1, True, "head-1 would hand over to head-2"),
        ("head-2", 1, True, "head-1 would hand over to head-2"),
        ("head-2:8470", 1, True, "head-1 would hand over to head-2"),
        ("head-9", 1, False, "no standby is ready there; ready: head-2"),
        ("", 31, False, "no standby is ready there; ready: none"),
    ],
)
def test_a_dry_run_says_who_would_lead(to, silent_s, ok, answer):
    heard = NOW - timedelta(seconds=silent_s)
    found = make_standby_daemon_views(
        [StandbyInfo("head-2", "head-2:8470", 8, "0.1", 4, heard, 0)], NOW
    )
    view = preview_daemon_failover(LEADER, found, to)
    assert (view.ok, view.answer, view.done) == (ok, answer, False)


def test_a_file_has_one_head(history):
    done = history.run("daemon", "failover")
    assert done.exit_code == 2
    assert "database_url" in done.output


def test_a_leader_whose_hosts_clock_is_late_is_not_called_silent():
    late = NOW + timedelta(seconds=60)

    class Renewed:
        looks = 0

        def daemon(self):
            self.looks += 1
            return replace(LEADER, beat=LEADER.beat + self.looks)

    found = world_offline.read_leader_lease(Renewed(), late, wait=True)
    assert found.until > late
    assert world_offline.read_leader_lease(Renewed(), late, wait=False).until < late

    class Dead:
        def daemon(self):
            return LEADER

    begun = time.monotonic()
    for _ in range(5):
        assert world_offline.read_leader_lease(Dead(), late, wait=True) == LEADER
    assert time.monotonic() - begun < 2 * LEADER.lease_s, "it is waited for once"


def test_a_standby_that_is_lost_is_a_problem(history):
    with closing(history.store()) as store:
        store.record_standby_heartbeat(
            DaemonIdentity("head-2", 8, "0.1", "own", "head-2:8470"), 1, worlds.at(0)
        )
    shown = history.run("status").output
    assert "LOST" in shown
    assert "the standby on head-2 has been silent for" in shown
