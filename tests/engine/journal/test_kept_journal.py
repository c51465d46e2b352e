"""A journal that hpctl wrote with schema 1, before the first release, is read and migrated.

`schema_1.sql` is that file as SQLite dumps it: two changes of capacity, one of them a removal in
the form of then, nodes and jobs under treatment, holds, a request that waits, reports and a lease.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpctl.engine.journal.check import check_journal_at_url
from hpctl.engine.journal.state import replay_events
from hpctl.engine.journal.store import JournalStore
from hpctl.vocabulary.identity import RecoveryId

DUMP = Path(__file__).with_name("schema_1.sql")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(DUMP.read_text())
    return path


@pytest.fixture
def store(file: Path) -> Iterator[JournalStore]:
    with closing(JournalStore(f"sqlite:///{file}")) as opened:
        yield opened


def test_every_event_is_read_and_nothing_that_was_open_is_lost(store: JournalStore) -> None:
    state = replay_events(store.events())
    assert state.events == 66
    assert {str(rid): str(rec.phase) for rid, rec in state.nodes.items()} == {
        "s-22222222": "removed",
        "n-11111111": "returned",
        "n-66666666": "escalated",
        "n-44444444": "vacated",
    }
    assert {str(rid): str(rec.phase) for rid, rec in state.jobs.items()} == {
        "j-22222222": "resumed",
        "j-55555555": "starting",
        "j-77777777": "starting",
    }
    assert {str(rid): str(change.phase) for rid, change in state.changes.items()} == {
        "s-11111111": "done"
    }
    assert set(state.holds) == {"ip-10-1-0-5", "4444"}


def test_the_reboot_in_doubt_is_still_in_doubt(store: JournalStore) -> None:
    steps = replay_events(store.events()).nodes[RecoveryId("n-44444444")].steps
    (step,) = [one for one in steps if one.in_doubt]
    assert (str(step.kind), step.target) == ("reboot", "i-00000000000000004")


def test_reports_requests_and_the_lease_are_kept(store: JournalStore) -> None:
    assert len(store.health()) == 7
    assert [(one.verb, one.by) for one in store.requests()] == [("pause", "dora")]
    lease = store.daemon()
    assert lease is not None
    assert (lease.host, lease.pid, lease.epoch, lease.beat) == ("head-1", 4711, 1, 0)


def test_the_file_as_it_was_is_kept_beside_the_new_one(store: JournalStore, file: Path) -> None:
    with closing(sqlite3.connect(file.with_name("journal.db.schema-1"))) as kept:
        assert kept.execute("SELECT value FROM hpctl_meta").fetchall() == [("1",)]
        assert kept.execute("SELECT count(*) FROM hpctl_events").fetchall() == [(66,)]


def test_the_migrated_journal_passes_the_check(store: JournalStore, file: Path) -> None:
    found = check_journal_at_url(f"sqlite:///{file}", lambda *_: None)
    assert (found.schema, found.problem) == ("2", None)
