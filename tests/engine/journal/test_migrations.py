"""A journal of a released schema is brought up to date, once, and nothing in it is lost."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy.exc import OperationalError

from hpctl.engine.journal.database import STEPS
from hpctl.engine.journal.rows import SCHEMA_VERSION, DaemonIdentity
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable
from tests.engine.journal.beds import DatabaseBed
from tests.engine.journal.events import NOW, numbers, signal

pytestmark = [pytest.mark.integration, pytest.mark.contract]

ME = DaemonIdentity("head-1", 7, "0.1", "own", "head-1:8470")


def schema_1(bed: DatabaseBed) -> None:
    """What the release with schema 1 left: three events and a lease, in that release's tables."""
    store = bed.open()
    store.append([signal(1), signal(2), signal(3)])
    store.take_lease(ME, None, NOW, 30.0)
    store.close()
    for column in ("beat", "lease_s", "address", "successor"):
        bed.execute(f"ALTER TABLE hpctl_lease DROP COLUMN {column}")
    bed.execute("DROP TABLE hpctl_standbys")
    bed.execute("UPDATE hpctl_meta SET value = '1'")


def test_migration_exists_for_every_schema() -> None:
    assert list(STEPS) == list(range(2, SCHEMA_VERSION + 1))


def test_a_reader_leaves_it_as_it_is(database: DatabaseBed) -> None:
    schema_1(database)
    with pytest.raises(
        ServiceUnavailable, match=("schema version 1, but this release of hpctl reads")
    ) as caught:
        database.read()
    assert "systemctl restart hpctl-daemon" in caught.value.hint


def test_migration_keeps_all_content(database: DatabaseBed) -> None:
    schema_1(database)
    with ThreadPoolExecutor(2) as pool:  # two heads that start at once
        stores = list(pool.map(lambda _: database.open(), range(2 if database.server else 1)))
    for store in (*stores, database.read()):
        assert numbers(store.events()) == [1, 2, 3]
        info = store.daemon()
        assert (info.host, info.epoch, info.beat, info.lease_s) == ("head-1", 1, 0, 30.0)
    stores[0].take_lease(ME, stores[0].daemon(), NOW, 3.0)
    stores[0].append([signal(4)])
    stores[0].record_standby_heartbeat(ME, 1, NOW)
    assert numbers(database.open().events()) == [1, 2, 3, 4]


def test_a_file_is_tried_on_a_copy_and_kept(sqlite: DatabaseBed, monkeypatch) -> None:
    schema_1(sqlite)
    sqlite.file.chmod(0o600)
    file, kept = sqlite.file, sqlite.file.with_name("journal.db.schema-1")

    def breaks(c):
        raise OperationalError("ALTER TABLE", None, sqlite3.OperationalError("disk I/O error"))

    def schema(path) -> str:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return str(db.execute("SELECT value FROM hpctl_meta").fetchone()[0])

    with monkeypatch.context() as patch:
        patch.setitem(STEPS, 2, breaks)
        with pytest.raises(
            CorruptJournalError, match="cannot migrate the journal from schema version 1 to 2"
        ):
            sqlite.open()
    assert schema(file) == "1"
    sqlite.open()
    assert (schema(file), schema(kept)) == ("2", "1")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not list(file.parent.glob("*.trial*"))
