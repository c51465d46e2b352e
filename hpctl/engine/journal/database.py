"""The journal's database: its tables, its migrations, and what its errors mean to us.

The tables are the same on SQLite, MariaDB and PostgreSQL. No caller outside this package sees an
SQLAlchemy error: a failed write is an OSError (the daemon must stop), a failed read is Unavailable
(ask again) or CorruptJournalError (never ask again).

Migrations go from each released schema to the next, forward only. A migration adds: what a former
release wrote stays as it is. On SQLite it is tried on a copy first, and the copy of before is kept
beside the journal. One transaction on SQLite and PostgreSQL; MariaDB commits each change of a table
separately, so a step that finds its columns there continues.
"""

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from hpctl.engine.database_url import mask_database_url_password, parse_database_url
from hpctl.engine.journal import sqlite_source
from hpctl.engine.journal.source import DatabaseRowSource, get_sqlite_path_from_url, make_sqlite_url
from hpctl.toolkit.errors import CorruptJournalError, HpctlError, ServiceUnavailable

log = logging.getLogger(__name__)

ANSWER_S = 30
"""How long a database server may take to answer before the call counts as failed."""

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgresql+psycopg": ("postgresql+psycopg", "postgresql"),
    "mariadb": ("mariadb+pymysql", "mariadb"),
    "mysql": ("mysql+pymysql", "mariadb"),
    "mariadb+pymysql": ("mariadb+pymysql", "mariadb"),
    "mysql+pymysql": ("mysql+pymysql", "mariadb"),
}
"""URL scheme -> the driver that is tested, and the extra that installs it."""

_CONNECT: dict[str, dict[str, Any]] = {
    # Without these, TCP gives up on a dead server only after a quarter of an hour.
    "postgresql": {"connect_timeout": 10, "tcp_user_timeout": ANSWER_S * 1000},
    "mariadb": {
        "connect_timeout": 10,
        "read_timeout": ANSWER_S,
        "write_timeout": ANSWER_S,
        # Refuse a value that does not fit; without it a server may cut it short and say yes.
        "init_command": "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
    },
}


_CONNECT_LEADER: dict[str, dict[str, Any]] = {
    "postgresql": {
        "connect_timeout": 2,
        "tcp_user_timeout": 5000,
        "options": "-c idle_in_transaction_session_timeout=2000 -c statement_timeout=5000",
    },
    "mariadb": {
        "connect_timeout": 2,
        "read_timeout": 5,
        "write_timeout": 5,
        "init_command": "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'),"
        " SESSION innodb_lock_wait_timeout = 4"
        " /*M!100301 , SESSION idle_transaction_timeout = 2 */",
    },
}
"""For what leaders and standbys write. The server ends the transaction of a leader that was frozen
in the middle of it, as its lock on the lease would keep any standby from taking over. An answer
that comes later than the lease lasts is of no use."""


def make_database_engine(url: str, *, leader: bool = False) -> Engine:
    """Return an engine for the journal at `url`. Connects to nothing yet. Raises HpctlError."""
    try:
        parsed = parse_database_url(url)
    except ValueError as error:
        raise HpctlError(str(error), _get_database_url_example()) from None
    if parsed.get_backend_name() == "sqlite":
        # SQLAlchemy 2.1 takes the path for quoted, 2.0 takes it unchanged.
        path = get_sqlite_path_from_url(url)
        return _make_sqlite_engine(parsed if path is None else parsed.set(database=str(path)))
    driver, extra = _DRIVERS.get(parsed.drivername, ("", ""))
    if not driver:
        raise HpctlError(
            "database_url in hpctl.yaml names a database that hpctl does not support: "
            f"{parsed.drivername!r}",
            _get_database_url_example(),
        )
    try:
        options = (_CONNECT_LEADER if leader else _CONNECT)[extra]
        return create_engine(
            parsed.set(drivername=driver), pool_pre_ping=True, connect_args=options
        )
    except ModuleNotFoundError as error:
        raise HpctlError(
            f"cannot use the database of database_url: the Python package {error.name} is not "
            "installed",
            f"pip install 'hpctl[{extra}]'",
        ) from error


def _get_database_url_example() -> str:
    return "use one such as postgresql://hpctl@db.example/hpctl, mariadb://hpctl@db.example/hpctl"


def _make_sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url)
    event.listen(engine, "connect", _set_sqlite_writer_pragmas)
    return engine


def _set_sqlite_writer_pragmas(connection: Any, _record: object) -> None:
    # FULL: a committed StepStarted must survive power loss, or the effect could be repeated.
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def get_database_error_message(error: SQLAlchemyError) -> str:
    """Return the database's own words, without the statement and all its values."""
    return str(getattr(error, "orig", None) or error).strip()


@contextmanager
def convert_database_read_errors(what: str) -> Iterator[None]:
    """Turn the database's errors into Unavailable (try again) or CorruptJournalError (do not)."""
    try:
        yield
    except SQLAlchemyError as error:
        if is_transient_database_error(error):
            raise ServiceUnavailable(
                f"{what} cannot be reached: {get_database_error_message(error)}",
                "check that the database runs and that its disk works and has free space; until "
                "it answers, hpctl acts on nothing",
            ) from error
        raise CorruptJournalError(
            f"{what} cannot be read: {get_database_error_message(error)}",
            "stop the daemon, keep a copy of the journal, and restore the newest good backup "
            "(docs/operations.md)",
        ) from error


@contextmanager
def convert_database_write_errors(what: str) -> Iterator[None]:
    """Turn the database's errors into OSError."""
    try:
        yield
    except SQLAlchemyError as error:
        raise OSError(f"{what} cannot be written: {get_database_error_message(error)}") from error


def is_transient_database_error(error: SQLAlchemyError) -> bool:
    """Return whether the trouble is with reaching the data, not with the data."""
    if not isinstance(error, DBAPIError):
        return True  # a pool that is exhausted, above all
    # PostgreSQL's classes: of state, of rollback, of resources, of an operator, of the system. A
    # server that was demoted is read-only (25006) until its successor is reached.
    if str(getattr(error.orig, "sqlstate", "") or "")[:2] in ("25", "40", "53", "55", "57", "58"):
        return True
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    return not isinstance(error.orig, sqlite3.Error) or sqlite_source.is_transient_sqlite_error(
        error.orig
    )


_STREAMED = 500
"""Rows that a snapshot fetches at once: a journal may be larger than the memory."""


class ConnectionRowSource:
    """Rows by one connection, which is the caller's, in the caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.name = mask_database_url_password(connection.engine.url)
        self.is_file = connection.dialect.name == "sqlite"

    def close(self) -> None:
        """Do nothing: the connection is the caller's."""

    @contextmanager
    def rows(
        self, query: str, values: Mapping[str, object] | None = None
    ) -> Iterator[Iterator[Any]]:
        """Enter the rows, which are not all held at once."""
        statement = text(query).execution_options(yield_per=_STREAMED)
        with (
            convert_database_read_errors(f"the journal at {self.name}"),
            closing(self._connection.execute(statement, values or {})) as found,
        ):
            yield iter(found)

    def tables(self) -> frozenset[str]:
        """Return the names of the tables that are there."""
        with convert_database_read_errors(f"the journal at {self.name}"):
            return frozenset(inspect(self._connection).get_table_names())

    @contextmanager
    def snapshot(self) -> Iterator[DatabaseRowSource]:
        """Enter the transaction that the caller has begun."""
        yield self


class EngineRowSource:
    """Rows by an engine, a connection for each answer. Safe in any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = mask_database_url_password(engine.url)
        self.is_file = engine.dialect.name == "sqlite"

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def rows(
        self, query: str, values: Mapping[str, object] | None = None
    ) -> Iterator[Iterator[Any]]:
        """Enter the rows."""
        with (
            convert_database_read_errors(f"the journal at {self.name}"),
            self._engine.connect() as c,
            closing(c.execute(text(query), values or {})) as found,
        ):
            yield iter(found)

    def tables(self) -> frozenset[str]:
        """Return the names of the tables that are there."""
        with convert_database_read_errors(f"the journal at {self.name}"):
            return frozenset(inspect(self._engine).get_table_names())

    @contextmanager
    def snapshot(self) -> Iterator[DatabaseRowSource]:
        """Enter a transaction whose every look is at the same moment."""
        level = "AUTOCOMMIT" if self.is_file else "REPEATABLE READ"
        with (
            convert_database_read_errors(f"the journal at {self.name}"),
            self._engine.connect() as plain,
        ):
            c = plain.execution_options(isolation_level=level)
            if self.is_file:
                c.exec_driver_sql("BEGIN").close()
            try:
                yield ConnectionRowSource(c)
            finally:
                if self.is_file:
                    c.exec_driver_sql("ROLLBACK").close()


metadata = MetaData()
_id = BigInteger().with_variant(Integer, "sqlite")
# MariaDB's TEXT ends at 64 KiB, its FLOAT has 24 bits, and its default collation takes Node1
# for node1.
_text = Text().with_variant(LONGTEXT, "mysql", "mariadb")
_server: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


def _define_journal_table(name: str, *columns: Column[Any] | Index, **more: Any) -> Table:
    return Table(name, metadata, *columns, **more, **_server)


meta = _define_journal_table(
    "hpctl_meta",
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
)

events = _define_journal_table(
    "hpctl_events",
    Column("seq", _id, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Index("hpctl_events_kind", "kind"),
    sqlite_autoincrement=True,
)

past = _define_journal_table(
    # What ended long ago: read to explain it, and never replayed by a daemon. It came later than
    # the other tables and changes none of them, so the schema's number is still the same.
    "hpctl_past",
    Column("seq", _id, primary_key=True, autoincrement=False),
    # Of the end of the whole that an event belongs to, so that all of it is deleted at once: days
    # since 0001-01-01, UTC.
    Column("day", Integer, nullable=False),
    Column("recovery", String(32), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Index("hpctl_past_day", "day"),
    Index("hpctl_past_recovery", "recovery"),
)

audit = _define_journal_table(
    # Who asked what, and by which configuration the daemon acted: each row's digest covers the
    # one before it, and nothing here is ever retired. Later than the other tables, like `past`.
    "hpctl_audit",
    Column("seq", _id, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Column("digest", String(64), nullable=False),
    sqlite_autoincrement=True,
)

outbox = _define_journal_table(
    # The notifications not yet sent, one row for all. Later than the other tables, like `past`.
    "hpctl_outbox",
    Column("id", Integer, primary_key=True),
    Column("payload", _text, nullable=False),
)

agents = _define_journal_table(
    "hpctl_agents",
    Column("node", String(255), primary_key=True),
    Column("instance", String(64), nullable=False),
    Column("boot", String(64), nullable=False),
    Column("last_heard", Double, nullable=False),
    Column("findings", _text, nullable=False),
)

heard = _define_journal_table(
    "hpctl_heard",
    Column("id", Integer, primary_key=True),
    # One row for all nodes: ten thousand of them are heard every ten seconds.
    Column("times", _text, nullable=False),
)

requests = _define_journal_table(
    "hpctl_requests",
    Column("id", _id, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("verb", String(32), nullable=False),
    Column("target", String(255), nullable=False),
    Column("asked_by", String(255), nullable=False),
    Column("taken", Boolean, nullable=False, default=False),
    sqlite_autoincrement=True,
)

proofs = _define_journal_table(
    # By what the next leader believes a request that this one did not take. Later than the other
    # tables, like `past`; a file's requests need none.
    "hpctl_proofs",
    Column("request", _id, primary_key=True, autoincrement=False),
    Column("credential", _text, nullable=False),
)

details = _define_journal_table(
    # What else a request says. Later than the other tables, like `past`; most requests have none.
    "hpctl_details",
    Column("request", _id, primary_key=True, autoincrement=False),
    Column("detail", _text, nullable=False),
)

lease = _define_journal_table(
    "hpctl_lease",
    Column("id", Integer, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("until", Double, nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", String(32), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("started", Double, nullable=False),
    Column("heartbeat", Double, nullable=False),
    Column("last_cycle_s", Double, nullable=False),
    Column("trouble", _text, nullable=False),
    # Counts renewals: a standby sees by it that the leader lives, whatever any clock says.
    Column("beat", BigInteger, nullable=False, server_default="0"),
    Column("lease_s", Double, nullable=False, server_default="30"),
    Column("address", String(255), nullable=False, server_default=""),
    Column("successor", String(255), nullable=False, server_default=""),
)

standbys = _define_journal_table(
    "hpctl_standbys",
    Column("address", String(255), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", String(32), nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("heartbeat", Double, nullable=False),
    # The newest event that it has replayed.
    Column("seq", _id, nullable=False),
)


def _add_missing_table_columns(c: Connection, *columns: Column[object]) -> None:
    for column in columns:
        table = column.table.name
        if column.name not in {one["name"] for one in inspect(c).get_columns(table)}:
            wanted = CreateColumn(column).compile(dialect=c.dialect)
            c.execute(text(f"ALTER TABLE {table} ADD COLUMN {wanted}"))


def _migrate_to_schema_2(c: Connection) -> None:
    """A leader that standbys watch: what they count, and where agents find it."""
    _add_missing_table_columns(c, lease.c.beat, lease.c.lease_s, lease.c.address, lease.c.successor)


STEPS: Final[dict[int, Callable[[Connection], None]]] = {2: _migrate_to_schema_2}
"""What makes a schema of that number from the one before it. New tables need no step."""


def migrate_journal(engine: Engine, found: int, file: Path | None) -> None:
    """Bring a journal of schema `found` up to date. `file`: SQLite's.

    Raises CorruptJournalError where the trial fails: nothing was changed then.
    """
    newest = max(STEPS)
    if file is not None:
        kept = file.with_name(f"{file.name}.schema-{found}")
        try:
            _test_migration_on_copy(engine, found, file, kept)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise CorruptJournalError(
                f"cannot migrate the journal from schema version {found} to {newest}: {error}",
                f"nothing was changed: free space in the directory of {file} and start again, or "
                "install the hpctl release that wrote it",
            ) from error
        log.info("the journal as it was before its migration is kept in %s", kept)
    _run_migrations(engine, found)
    log.warning("the journal was migrated from schema %d to %d", found, newest)


def _run_migrations(engine: Engine, found: int) -> None:
    with engine.begin() as c:
        if c.dialect.name == "sqlite":
            c.execute(text("BEGIN IMMEDIATE"))
        metadata.create_all(c)
        for number in range(found + 1, max(STEPS) + 1):
            STEPS[number](c)
        row = update(meta).where(meta.c.name == "schema")
        c.execute(row.values(value=str(max(STEPS))))


def _test_migration_on_copy(engine: Engine, found: int, file: Path, kept: Path) -> None:
    """Keep a copy, migrate another one, and count what is in it."""
    trial = file.with_name(f"{file.name}.trial")
    for old in (kept, trial):
        old.unlink(missing_ok=True)
    sqlite_source.copy_sqlite_file(file, kept)
    kept.chmod(file.stat().st_mode & 0o777)
    shutil.copy(kept, trial)
    other = make_database_engine(make_sqlite_url(trial))
    count = select(func.count()).select_from(events)
    try:
        _run_migrations(other, found)
        with engine.connect() as before, other.connect() as after:
            counts = [c.execute(count).scalar() for c in (before, after)]
            after.execute(select(lease)).all()
        if counts[0] != counts[1]:
            raise OSError(f"of {counts[0]} events the trial has {counts[1]}")
    finally:
        other.dispose()
        for name in (trial.name, f"{trial.name}-wal", f"{trial.name}-shm"):
            trial.with_name(name).unlink(missing_ok=True)
