"""How the journal's database is reached, and what its errors mean to us.

Outside this package nobody sees an SQLAlchemy error: a failed write is an OSError (the daemon
must stop), a failed read is Unavailable (ask again) or JournalCorrupt (never ask again).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

from hpctl.errors import HpctlError, JournalCorrupt, Unavailable
from hpctl.store import lite

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
    # TCP gives up on a dead server after a quarter of an hour if nobody says otherwise.
    "postgresql": {"connect_timeout": 10, "tcp_user_timeout": ANSWER_S * 1000},
    "mariadb": {
        "connect_timeout": 10,
        "read_timeout": ANSWER_S,
        "write_timeout": ANSWER_S,
        # Refuse a value that does not fit; without it a server may cut it short and say yes.
        "init_command": "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
    },
}


def make_engine(url: str, *, write: bool) -> Engine:
    """An engine for the journal at `url`. Connects to nothing yet. Raises HpctlError."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise HpctlError(f"database_url cannot be read: {error}", _example()) from error
    if parsed.get_backend_name() == "sqlite":
        # SQLAlchemy 2.1 takes the path for quoted, 2.0 takes it as it stands.
        path = unquote(url.partition("?")[0].partition("///")[2])
        return _sqlite(parsed.set(database=path), write)
    driver, extra = _DRIVERS.get(parsed.drivername, ("", ""))
    if not driver:
        raise HpctlError(f"database_url: no driver for {parsed.drivername!r}", _example())
    try:
        return create_engine(
            parsed.set(drivername=driver), pool_pre_ping=True, connect_args=_CONNECT[extra]
        )
    except ModuleNotFoundError as error:
        raise HpctlError(
            f"database_url needs the Python package {error.name}, which is not installed",
            f"pip install 'hpctl[{extra}]'",
        ) from error


def _example() -> str:
    return "for example postgresql://hpctl@db.example/hpctl, mariadb://hpctl@db.example/hpctl"


def _sqlite(url: URL, write: bool) -> Engine:
    if write or not url.database or url.database == ":memory:":
        engine = create_engine(url)
    else:
        # A reader must not leave an empty journal behind where there was none.
        path = f"file:{quote(str(Path(url.database).absolute()))}"
        engine = create_engine(url.set(database=path, query={"mode": "ro", "uri": "true"}))
    event.listen(engine, "connect", _writer_pragmas if write else _reader_pragmas)
    return engine


def _reader_pragmas(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA busy_timeout=5000").close()


def _writer_pragmas(connection: Any, _record: object) -> None:
    # FULL: a committed StepStarted must survive power loss, or the effect could be repeated.
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def said(error: SQLAlchemyError) -> str:
    """The database's own words, without the statement and all its values."""
    return str(getattr(error, "orig", None) or error).strip()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn the database's errors into Unavailable (try again) or JournalCorrupt (do not)."""
    try:
        yield
    except SQLAlchemyError as error:
        if passing(error):
            raise Unavailable(
                f"{what} cannot be reached: {said(error)}",
                "is the database up, and its disk well?",
            ) from error
        raise JournalCorrupt(
            f"{what} cannot be read: {said(error)}",
            "stop the daemon, keep a copy, restore the newest good one",
        ) from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn the database's errors into OSError."""
    try:
        yield
    except SQLAlchemyError as error:
        raise OSError(f"{what} cannot be written: {said(error)}") from error


def passing(error: SQLAlchemyError) -> bool:
    """Whether the trouble is with reaching the data, not with the data."""
    if not isinstance(error, DBAPIError):
        return True  # a pool that is exhausted, above all
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    return not isinstance(error.orig, sqlite3.Error) or lite.passing(error.orig)
