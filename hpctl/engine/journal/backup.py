"""A journal copied to a file."""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.exc import DBAPIError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.copies import AT_ONCE, Tell, count_rows, open_snapshot, read_rows
from hpctl.engine.journal.database import make_engine
from hpctl.toolkit.errors import HpctlError


def copy_rows(source: Connection, target: Connection, tables: Iterable[Table], tell: Tell) -> None:
    """Copy the rows of tables, and tell how far it is."""
    counts, done = count_rows(source), 0
    total = sum(counts.values())
    for table in tables:
        if table.name not in counts:
            continue
        batch: list[dict[str, Any]] = []
        for row in read_rows(source, select(table)):
            batch.append(dict(row._mapping))
            if len(batch) == AT_ONCE:
                target.execute(insert(table), batch)
                done += len(batch)
                batch = []
                tell(done, total)
        if batch:
            target.execute(insert(table), batch)
            done += len(batch)
        tell(done, total)


def file_url(file: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{quote(str(file.absolute()))}"


def backup(url: str, file: Path, tell: Tell) -> None:
    """Copy a journal, also while daemons write it. Raises Unavailable, JournalCorrupt, HpctlError
    where the file exists or cannot be written."""
    if file.exists():
        raise HpctlError(f"{file} exists already", "name a file that does not exist")
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        target = make_engine(file_url(part), write=True)
        try:
            with open_snapshot(url) as source, target.begin() as c:
                t.metadata.create_all(c)
                copy_rows(source, c, t.metadata.sorted_tables, tell)
        finally:
            target.dispose()
        with closing(sqlite3.connect(part)) as plain:
            # One file that can be read where nobody may write beside it.
            plain.execute("PRAGMA journal_mode=DELETE").close()
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        part.rename(file)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        raise HpctlError(
            f"{file} cannot be written: {error}", "is there room on that disk?"
        ) from error
    finally:
        for left in (part, part.with_name(f"{part.name}-wal"), part.with_name(f"{part.name}-shm")):
            with suppress(OSError):
                left.unlink(missing_ok=True)
