"""A journal copied to a SQLite file, whatever database keeps it.

A SQLite journal is copied by SQLite's own backup. A server's rows are copied in one transaction:
its dump tools may be missing on a head node, and a dump can be read and put back by that server
alone (docs/adr/0051).
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy.exc import DBAPIError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.check import Tell
from hpctl.engine.journal.database import make_database_engine
from hpctl.engine.journal.reader import JournalReader, open_journal_for_reading
from hpctl.engine.journal.source import get_sqlite_path_from_url, make_sqlite_url
from hpctl.engine.journal.sqlite_source import copy_sqlite_file, make_sqlite_file_durable
from hpctl.toolkit.errors import HpctlError

AT_ONCE = 500
"""Rows that are written at once."""


def copy_rows(
    source: JournalReader, target: Connection, tables: Iterable[Table], tell: Tell
) -> None:
    """Copy the rows of tables, and tell how far it is."""
    counts, done = source.counts(), 0
    total = sum(counts.values())
    for table in tables:
        if table.name not in counts:
            continue
        batch: list[dict[str, Any]] = []
        for row in source.table(table.name):
            batch.append(row._asdict())
            if len(batch) == AT_ONCE:
                target.execute(insert(table), batch)
                done += len(batch)
                batch = []
                tell(done, total)
        if batch:
            target.execute(insert(table), batch)
            done += len(batch)
        tell(done, total)


def back_up_journal_to_file(url: str, file: Path, tell: Tell) -> None:
    """Copy a journal, also while daemons write it. Raises Unavailable, CorruptJournalError,
    HpctlError where the file exists or cannot be written."""
    if file.exists():
        raise HpctlError(
            f"cannot write the backup: {file} exists already", "name a file that does not exist"
        )
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(open_journal_for_reading(url)) as reader:
            _copy_journal_database(reader, url, part, tell)
        part.rename(file)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        raise HpctlError(
            f"cannot write the journal's backup {file}: {error}",
            "check the free space and your permissions in its directory",
        ) from error
    finally:
        for left in (part, part.with_name(f"{part.name}-wal"), part.with_name(f"{part.name}-shm")):
            with suppress(OSError):
                left.unlink(missing_ok=True)


def _copy_journal_database(reader: JournalReader, url: str, target: Path, tell: Tell) -> None:
    path = get_sqlite_path_from_url(url)
    if path is not None:
        copy_sqlite_file(path, target)
        return
    engine = make_database_engine(make_sqlite_url(target))
    try:
        with reader.snapshot() as moment, engine.begin() as c:
            t.metadata.create_all(c)
            copy_rows(moment, c, t.metadata.sorted_tables, tell)
    finally:
        engine.dispose()
    make_sqlite_file_durable(target)
