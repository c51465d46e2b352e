"""A journal that is missing, foreign, broken or full: said once, with its place; never empty."""

import sys
from contextlib import closing

import pytest
from sqlalchemy import make_url

from hpctl.engine.database_url import mask_database_url_password
from hpctl.engine.journal.reader import JournalReader, open_journal_for_reading
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.source import make_sqlite_url
from hpctl.engine.journal.sqlite_source import SqliteRowSource
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit.errors import CorruptJournalError, HpctlError, ServiceUnavailable
from tests.engine.journal.beds import DatabaseBed
from tests.engine.journal.events import NOW, numbers, signal
from tests.engine.journal.test_facts import WELL
from tests.process import run_text

pytestmark = [pytest.mark.integration, pytest.mark.contract]

TABLES = ["hpctl_events", "hpctl_agents", "hpctl_heard", "hpctl_requests", "hpctl_lease"]
DAMAGE = [
    "payload = '{\"at\": '", "payload = ''", "payload = '{}'", "kind = 'Unheard'",
    "kind = 'HoldLifted'",
]  # fmt: skip
FILLER = """
import os, resource, sys
from hpctl.engine.journal.store import JournalStore
from tests.engine.journal.events import signal
store = JournalStore(sys.argv[1])
store.append([signal(0), signal(1)])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
done = 1
try:
    for batch in range(1, 10_000):
        store.append([signal(batch * 2), signal(batch * 2 + 1)])
        done += 1
except OSError as error:
    print(done, type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        store.record([])
        store.append([signal(0)] * 2000)
    except OSError:
        print("again")
"""


def test_an_event_that_cannot_be_read(database):
    store = database.open()
    for place, damage in enumerate(DAMAGE, 1):
        store.append([signal(0), signal(1), signal(2)])
        bad = 3 * place - 1
        # A colon would be a parameter.
        statement = f"UPDATE hpctl_events SET {damage} WHERE seq = {bad}"
        database.execute(statement.replace(":", "\\:"))
        found = store.events(after=bad - 2)
        assert numbers([next(found)]) == [0]
        with pytest.raises(
            CorruptJournalError, match=f"journal event {bad} cannot be read"
        ) as caught:
            next(found)
        assert "corrupt journal" in caught.value.hint
        assert numbers(store.events(after=bad)) == [2]


def test_findings_that_cannot_be_read(database):
    store = database.open()
    store.record([WELL])
    database.execute("UPDATE hpctl_agents SET findings = '[{}]'")
    with pytest.raises(CorruptJournalError, match="stored findings of node n1") as caught:
        store.health()
    assert "hpctl_agents" in caught.value.hint
    store.record([WELL])
    assert store.health() == {WELL.generation.node: WELL}


def test_times_that_cannot_be_read(database):
    value = "1e300"
    store = database.open()
    store.record([WELL])
    store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), store.daemon(), NOW, 30.0)
    number = store.ask("pause", "", "ann", NOW)
    database.execute(f"UPDATE hpctl_agents SET last_heard = {value}")
    database.execute(f"UPDATE hpctl_requests SET at = {value}")
    database.execute(f"UPDATE hpctl_lease SET heartbeat = {value}")
    with pytest.raises(CorruptJournalError, match="node n1"):
        store.health()
    with pytest.raises(CorruptJournalError, match=f"request {number}"):
        store.requests()
    with pytest.raises(CorruptJournalError, match="the lease"):
        store.daemon()


@pytest.mark.parametrize("column", ["payload", "kind"])
@pytest.mark.parametrize("value", ["x'ff00fe'", "CAST(x'ff00fe' AS TEXT)", "7"])
def test_a_value_of_another_type(sqlite, column, value):
    store = sqlite.open()
    store.append([signal(1), signal(2)])
    sqlite.execute(f"UPDATE hpctl_events SET {column} = {value} WHERE seq = 2")
    with pytest.raises(CorruptJournalError):
        list(store.events())


def test_tables_that_are_gone(database):
    store = database.open()
    store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), store.daemon(), NOW, 30.0)
    for table in TABLES:
        database.execute(f"DROP TABLE {table}")
    for read in (store.health, store.requests, store.daemon, lambda: list(store.events())):
        with pytest.raises(CorruptJournalError, match="cannot be read"):
            read()
    with pytest.raises(CorruptJournalError):
        store.answer(1)
    with pytest.raises(CorruptJournalError):
        store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), None, NOW, 30.0)
    with pytest.raises(HpctlError, match="cannot write the request into"):
        store.ask("pause", "", "ann", NOW)
    for write in (
        lambda: store.append([signal(1)]),
        lambda: store.record([WELL]),
        lambda: store.store_last_heard_times({WELL.generation.node: NOW}),
        lambda: store.renew_lease(NOW, 30.0, 0.0, "", "own"),
    ):
        with pytest.raises(OSError, match="cannot be written"):
            write()


def test_request_refuses_values_that_do_not_fit(served):
    with pytest.raises(HpctlError, match="cannot write the request into"):
        served.open().ask("v" * 33, "n1", "ann", NOW)
    assert served.open().requests() == []


@pytest.mark.parametrize("opens", [DatabaseBed.open, DatabaseBed.read])
def test_journal_with_another_schema_is_refused(database, opens):
    database.open().append([signal(1)])
    database.execute("UPDATE hpctl_meta SET value = '99'")
    with pytest.raises(
        CorruptJournalError, match=("schema version 99, but this release of hpctl reads version 2")
    ):
        opens(database)


def test_a_database_without_a_journal_is_not_an_empty_journal(served):
    with pytest.raises(ServiceUnavailable, match="no journal yet"):
        served.read()


def test_reading_what_is_not_there_makes_nothing(sqlite):
    with pytest.raises(ServiceUnavailable):
        sqlite.read()
    assert list(sqlite.file.parent.iterdir()) == []


def test_a_reader_changes_nothing(sqlite):
    sqlite.open().append([signal(1)])
    with closing(SqliteRowSource(sqlite.file)) as source:
        with (
            pytest.raises(ServiceUnavailable, match="readonly"),
            source.rows("DELETE FROM hpctl_events"),
        ):
            pass
        assert numbers(JournalReader(source).events()) == [1]


def test_a_journal_that_is_read_after_its_writer_has_gone(sqlite):
    writer = sqlite.open()
    writer.append([signal(1)])
    writer.close()
    assert [p.name for p in sqlite.file.parent.iterdir()] == ["journal.db"]
    assert numbers(sqlite.read().events()) == [1]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ServiceUnavailable, match=str(tmp_path)):
        JournalStore(f"sqlite:///{tmp_path}/none/journal.db")


@pytest.mark.parametrize("opens", [JournalStore, open_journal_for_reading])
@pytest.mark.parametrize("name", ["journal.db", "a #b c.db"])
def test_a_file_that_is_no_database(tmp_path, name, opens):
    file = tmp_path / name
    file.write_text("not a database, " * 1000)
    with pytest.raises(CorruptJournalError, match="not a database"):
        opens(make_sqlite_url(file))
    assert file.read_text() == "not a database, " * 1000


def test_a_file_that_was_cut_to_nothing(sqlite):
    sqlite.file.touch()
    with pytest.raises(CorruptJournalError, match="is an empty file: its contents were lost"):
        sqlite.open()
    assert sqlite.file.stat().st_size == 0


def test_a_file_that_was_replaced_while_in_use(sqlite):
    store = sqlite.open()
    store.append([signal(1)])
    sqlite.file.rename(sqlite.file.with_name("old.db"))
    for _ in ("gone", "another"):
        with pytest.raises(OSError, match="moved or replaced"):
            store.append([signal(2)])
        with pytest.raises(OSError, match="moved or replaced"):
            store.record([WELL])
        sqlite.file.write_bytes(sqlite.file.with_name("old.db").read_bytes())


def test_a_full_disk_fails_the_whole_batch(sqlite):
    done = run_text([sys.executable, "-c", FILLER, sqlite.url], timeout=240, check=True)
    first, again = done.stdout.splitlines()
    assert again == "again"
    acknowledged, kind, _ = first.split(" ", 2)
    assert kind == "OSError"
    assert numbers(sqlite.open().events()) == list(range(int(acknowledged) * 2))


def test_a_url_that_no_driver_serves():
    with pytest.raises(HpctlError, match="does not support: 'oracle'") as caught:
        JournalStore("oracle://hpctl@db.example/hpctl")
    assert "postgresql://" in caught.value.hint
    with pytest.raises(HpctlError, match="is no URL"):
        JournalStore("journal.db")


@pytest.mark.parametrize(("url", "module"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
def test_a_driver_that_is_not_installed(url, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HpctlError, match=module) as caught:
        JournalStore(f"{url}://hpctl@db.example/hpctl")
    assert caught.value.hint == f"pip install 'hpctl[{url}]'"


def test_a_password_is_never_shown(served):
    secret = served.url.replace("@", ":hunter2@", 1).replace("hpctl_", "nowhere_")
    with pytest.raises(ServiceUnavailable) as caught:
        JournalStore(secret)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql+psycopg://hp:s3cret@h:5432/db", "postgresql+psycopg://hp@h:5432/db"),
        ("mysql+pymysql://hp@h/db?ssl_ca=a&password=s3cret", "mysql+pymysql://hp@h/db?ssl_ca=a"),
        ("sqlite:////var/lib/hpctl/journal.db", "sqlite:////var/lib/hpctl/journal.db"),
    ],
)
def test_the_name_of_a_database_has_no_place_for_a_password(url, name):
    assert mask_database_url_password(make_url(url)) == name
