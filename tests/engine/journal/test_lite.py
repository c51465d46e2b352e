"""A SQLite journal read without SQLAlchemy is the journal that the store reads, and as strict."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from hpctl.engine.journal import database as journal_database
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.reader import TABLES, JournalReader, open_journal_for_reading
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.source import make_sqlite_url
from hpctl.engine.journal.sqlite_source import is_transient_sqlite_error
from hpctl.engine.journal.state import replay_events
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable
from tests.cli import worlds
from tests.engine.journal.beds import DatabaseBed
from tests.engine.journal.events import NOW, numbers, signal, values
from tests.engine.journal.test_facts import WELL
from tests.engine.journal.test_past import ended

pytestmark = [pytest.mark.integration, pytest.mark.contract]

Read = Callable[[JournalReader], object]


@given(batch=st.lists(values(Event), max_size=5).map(tuple))
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_reader_reads_the_same_events_as_the_store(
    sqlite: DatabaseBed, batch: tuple[Event, ...]
) -> None:
    store = sqlite.open()
    store.append([signal(1), *batch])
    store.record([WELL])
    store.store_last_heard_times({WELL.generation.node: NOW})
    store.take_lease(DaemonIdentity("head", 7, "1.2", "own", ""), store.daemon(), NOW, 30)
    with closing(sqlite.read()) as reader:
        assert list(reader.events()) == list(store.events())
        assert reader.health() == store.health() != {}
        assert reader.daemon() == store.daemon() is not None
    store.close()


def test_the_reader_knows_every_table() -> None:
    assert list(TABLES) == sorted(journal_database.metadata.tables)


def test_reader_reads_retired_events_in_order(sqlite: DatabaseBed) -> None:
    store = sqlite.open()
    store.append([signal(1), signal(2), signal(1)])
    store.retire(ended({1: NOW}))
    with closing(sqlite.read()) as reader:
        assert numbers(reader.events()) == [2]
        assert numbers(reader.events(past=True)) == [1, 2, 1]
        sqlite.execute("DROP TABLE hpctl_past")
        assert numbers(reader.events(past=True)) == [2]


def test_follower_skips_ended_jobs_and_resumes_at_a_number(database):
    store = database.open()
    store.append([*worlds.healed(), *worlds.troubled()])
    readers = [store]
    if database.server is None:
        readers.append(database.read())
    for reader in readers:
        everything = list(reader.list_numbered_events())
        assert [event for _, event in everything] == list(reader.events())
        whole = replay_events(reader.events())
        (ended,) = {r.id for r in whole.jobs.values() if r.ended}
        for seconds, left_out in ((31, 0), (32, 1), (80, 1)):
            found = replay_events(
                e for _, e in reader.list_numbered_events(since=worlds.at(seconds))
            )
            assert (found.nodes, found.holds) == (whole.nodes, whole.holds)
            assert found.open_jobs == whole.open_jobs
            assert (ended not in found.jobs) == left_out
            assert bool(found.reports) == (seconds < 72)
        last = everything[-3][0]
        assert list(reader.list_numbered_events(last)) == everything[-2:]
        reader.close()


UNREADABLE = "cannot be read|cannot read the journal"


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE hpctl_events SET payload = '{}'", lambda r: list(r.events())),
        ("DROP TABLE hpctl_events", lambda r: list(r.events())),
        ("UPDATE hpctl_agents SET findings = '['", JournalReader.health),
        ("UPDATE hpctl_agents SET findings = CAST(x'ff' AS TEXT)", JournalReader.health),
        ("INSERT INTO hpctl_heard VALUES (1, '[]')", JournalReader.health),
        ("UPDATE hpctl_lease SET until = 'noon'", JournalReader.daemon),
    ],
)
def test_unreadable_row_raises_journal_corrupt(
    sqlite: DatabaseBed, statement: str, read: Read
) -> None:
    store = sqlite.open()
    store.append([signal(1)])
    store.record([WELL])
    store.take_lease(DaemonIdentity("head", 7, "1.2", "own", ""), store.daemon(), NOW, 30)
    sqlite.execute(statement)
    with closing(sqlite.read()) as reader, pytest.raises(CorruptJournalError, match=UNREADABLE):
        read(reader)


def test_missing_journal_is_not_read_as_empty(sqlite: DatabaseBed, tmp_path) -> None:
    with pytest.raises(ServiceUnavailable, match="cannot open the journal"):
        open_journal_for_reading(make_sqlite_url(tmp_path / "none.db"))
    (tmp_path / "empty.db").touch()
    with pytest.raises(ServiceUnavailable, match="no journal yet"):
        open_journal_for_reading(make_sqlite_url(tmp_path / "empty.db"))
    (tmp_path / "text.db").write_text("Dear diary, this is no database at all. " * 99)
    with pytest.raises(CorruptJournalError, match="not a database"):
        open_journal_for_reading(make_sqlite_url(tmp_path / "text.db"))
    sqlite.open()
    for schema, error in (("99", CorruptJournalError), ("1", ServiceUnavailable)):
        sqlite.execute(f"UPDATE hpctl_meta SET value = '{schema}'")
        with pytest.raises(
            error, match=(f"schema version {schema}, but this release of hpctl reads version 2")
        ):
            sqlite.read()


def test_showing_loads_no_sqlalchemy(sqlite: DatabaseBed) -> None:
    sqlite.open()
    code = (
        "import sys; from pathlib import Path; from hpctl.engine.config import Config\n"
        "from hpctl.cli import status, explain, nodes, recoveries\n"
        "from hpctl.engine import adapters, world_reader\n"
        "from hpctl.engine.journal.check import check_journal_at_url, list_journal_events\n"
        "from hpctl.engine.journal.source import make_sqlite_url\n"
        "from hpctl.toolkit import output\n"
        f"config = Config(state_dir=Path({str(sqlite.file.parent)!r}))\n"
        "world_reader.read_world_once(config, output.get_current_utc_time())\n"
        "adapters.open_journal_reader(config).audit_trail()\n"
        f"url = make_sqlite_url(Path({str(sqlite.file)!r}))\n"
        "assert check_journal_at_url(url, print).problem is None\n"
        "list(list_journal_events(url, None, None))\n"
        "assert not {'sqlalchemy', 'boto3', 'asyncio', 'rich'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_server_that_was_demoted_is_no_corrupt_journal() -> None:
    class ReadOnly(Exception):
        sqlstate = "25006"

    assert journal_database.is_transient_database_error(DBAPIError("UPDATE lease", {}, ReadOnly()))
    assert not journal_database.is_transient_database_error(
        DBAPIError("SELECT 1", {}, Exception("no such column"))
    )


@pytest.mark.parametrize(
    ("text", "can_pass"),
    [
        ("database is locked", True),
        ("unable to open database file", True),
        ("no such table: events", False),
        ("Could not decode to UTF-8 column 'body'", False),
    ],
)
def test_transient_failure_is_shown_without_error_codes(text: str, can_pass: bool) -> None:
    """Python 3.10 has no `sqlite_errorname`."""
    assert is_transient_sqlite_error(sqlite3.OperationalError(text)) is can_pass
