"""A journal in a SQLite file, read by Python's own sqlite3 module.

Importing SQLAlchemy takes longer than all else that `hpctl status` does. What is read, and what an
error means, is the same as through SQLAlchemy: the contract suite reads every journal both ways.
"""

import os
import sqlite3
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable


class SqliteRowSource:
    """One SQLite file, which is not written. For one thread."""

    is_file = True

    def __init__(self, path: Path) -> None:
        """Raises Unavailable where the file is not there."""
        self.name = f"sqlite:///{path}"
        with self._convert_sqlite_read_errors():
            self._db = connect_read_only(path)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def rows(
        self, query: str, values: Mapping[str, object] | None = None
    ) -> Iterator[Iterator[Any]]:
        """Enter the rows, each with its columns as attributes."""
        with (
            self._convert_sqlite_read_errors(),
            closing(self._db.execute(query, values or {})) as cursor,
        ):
            names = [column[0] for column in cursor.description]
            row: Any = namedtuple("row", names)  # type: ignore[misc]
            # As row._make, at a third of its cost: a journal may have a million rows.
            yield map(partial(tuple.__new__, row), cursor)

    def tables(self) -> frozenset[str]:
        """Return the names of the tables that are there."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        with self.rows(query) as rows:
            return frozenset(row.name for row in rows)

    @contextmanager
    def snapshot(self) -> Iterator["SqliteRowSource"]:
        """Enter a read transaction."""
        with self._convert_sqlite_read_errors():
            self._db.execute("BEGIN").close()
        try:
            yield self
        finally:
            self._db.rollback()

    @contextmanager
    def _convert_sqlite_read_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_transient_sqlite_error(error):
                raise ServiceUnavailable(
                    f"cannot open the journal at {self.name}: {error}",
                    "check that its disk works and has free space; until the journal can be read, "
                    "hpctl acts on nothing",
                ) from error
            raise CorruptJournalError(
                f"cannot read the journal at {self.name}, it is damaged: {error}",
                "stop the daemon, keep a copy of the journal, and restore the newest good backup "
                "(docs/operations.md)",
            ) from error


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that makes no file where there is none. Raises sqlite3.Error."""
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)


def is_transient_sqlite_error(error: sqlite3.Error) -> bool:
    """Return whether the trouble is with reaching the file, not with what is in it."""
    if isinstance(error, sqlite3.InterfaceError):
        return True
    # SQLite says OperationalError to a missing table and to a text that is not UTF-8 as well. The
    # first has the generic code, the second is Python's and has none; 3.10 tells no codes.
    unreadable = str(error).startswith(("no such ", "Could not decode "))
    generic = getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR"
    return isinstance(error, sqlite3.OperationalError) and not (unreadable or generic)


def copy_sqlite_file(source: Path, target: Path) -> None:
    """Copy a SQLite file as it is at one moment, also while it is written, and seal the copy.

    Raises sqlite3.Error, OSError; what is left at `target` then is no copy.
    """
    with closing(connect_read_only(source)) as a, closing(sqlite3.connect(target)) as b:
        a.backup(b)
    make_sqlite_file_durable(target)


def publish_world_readable_sqlite_copy(source: Path, copy: Path) -> None:
    """Copy a SQLite file for every user to read, in place of the copy before. Raises as
    `copy_sqlite_file`."""
    copy.parent.mkdir(exist_ok=True)
    copy.parent.chmod(0o755)
    part = copy.with_suffix(".part")
    part.unlink(missing_ok=True)
    copy_sqlite_file(source, part)
    part.chmod(0o644)
    part.replace(copy)


def make_sqlite_file_durable(path: Path) -> None:
    """Make a closed SQLite file durable, and readable where no user may write beside it.

    Raises sqlite3.Error, OSError.
    """
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA journal_mode=DELETE").close()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
