"""A journal put back from a copy."""

import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from hpctl.engine.database_url import mask_database_url_password
from hpctl.engine.journal import database as t
from hpctl.engine.journal.backup import copy_rows
from hpctl.engine.journal.check import JournalSummary, Tell, check_all_journal_rows
from hpctl.engine.journal.database import (
    ConnectionRowSource,
    get_database_error_message,
    make_database_engine,
)
from hpctl.engine.journal.opening import open_journal_row_source
from hpctl.engine.journal.reader import JournalReader, open_journal_for_reading
from hpctl.engine.journal.rows import convert_timestamp
from hpctl.engine.journal.source import get_sqlite_path_from_url, make_sqlite_url
from hpctl.engine.journal.sqlite_source import SqliteRowSource, copy_sqlite_file
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit.errors import CorruptJournalError, HpctlError

STANDBY_S = 30.0
"""For how long a standby's word says that it lives."""

SAME = 200
"""So many of the oldest events tell one journal from another."""

TRANSIENT_TABLES = (t.lease.name, t.standbys.name)
"""Tables of daemons that run: not of the journal that is put back."""


class JournalRestoreTarget(Struct, frozen=True):
    """Where a backup is to go: the events that are there, and those of them that are younger than
    the backup."""

    journal: str
    events: int
    lost: int


def prepare_backup_copy(file: Path, directory: Path) -> str:
    """Return the URL of a copy of a backup, of this release's schema. Raises Unavailable,
    CorruptJournalError, HpctlError."""
    copy, hint = directory / "backup.db", "name a file that `hpctl journal backup` has written"
    try:
        copy_sqlite_file(file, copy)
        with closing(SqliteRowSource(copy)) as source:
            if t.meta.name not in source.tables():
                raise HpctlError(f"the file {file} is not a backup of hpctl's journal", hint)
    except (sqlite3.Error, CorruptJournalError) as error:
        raise HpctlError(
            f"the file {file} is not a backup of hpctl's journal: {error}", hint
        ) from error
    JournalStore(make_sqlite_url(copy)).close()
    return make_sqlite_url(copy)


def find_journal_restore_target(source: str, url: str, now: datetime) -> JournalRestoreTarget:
    """Return where a backup would go. Raises HpctlError where a daemon runs, or another journal is
    there, Unavailable, CorruptJournalError."""
    file = get_sqlite_path_from_url(url)
    if file is not None and not file.exists():
        return JournalRestoreTarget(str(file), 0, 0)
    with closing(open_journal_row_source(url)) as there:
        if t.meta.name not in there.tables():
            return JournalRestoreTarget(there.name, 0, 0)
        with (
            closing(open_journal_for_reading(source)) as wanted,
            wanted.snapshot() as a,
            JournalReader(there).snapshot() as b,
        ):
            _refuse_running_daemon(b, now)
            _refuse_backup_of_other_journal(a, b)
            newest = max((event.seq for event in a.stored_events()), default=0)
            numbers = [event.seq for event in b.stored_events()]
            return JournalRestoreTarget(
                there.name, len(numbers), sum(seq > newest for seq in numbers)
            )


def _refuse_running_daemon(there: JournalReader, now: datetime) -> None:
    hint = "stop every head node's daemon: systemctl stop hpctl-daemon.socket hpctl-daemon"
    held = there.lease_holder()
    if held is not None and held.until > now.timestamp():
        until = f"{convert_timestamp(held.until):%H:%M:%S} UTC"
        why = (
            f"cannot restore while a daemon uses the journal: the daemon on {held.host} (pid "
            f"{held.pid}) holds it until {until}"
        )
        raise HpctlError(why, hint)
    standby = there.find_standby_heard_since(now.timestamp() - STANDBY_S)
    if standby is not None:
        raise HpctlError(
            "cannot restore while a daemon uses the journal: the standby daemon on "
            f"{standby} follows it",
            hint,
        )


def _refuse_backup_of_other_journal(source: JournalReader, there: JournalReader) -> None:
    """Two copies of one journal share some of their oldest events."""
    first = set(there.stored_events(most=SAME))
    if not first:
        return
    last = max(event.seq for event in first)
    known = {replace(event, retired=False) for event in source.stored_events(until=last)}
    if not any(replace(event, retired=False) in known for event in first):
        raise HpctlError(
            f"the backup is of another journal than {there.name}: their first events differ",
            "restore into a new journal (another database_url or state_dir), or give a backup of "
            "this one",
        )


def restore_journal(source: str, url: str, now: datetime, tell: Tell) -> JournalSummary:
    """Put a prepared backup in a journal's place, in one transaction. The lease's epoch grows, so
    that no daemon of before can write. Raises HpctlError where nothing was changed."""
    JournalStore(url).close()
    engine = make_database_engine(url)
    name = mask_database_url_password(engine.url)
    try:
        with (
            closing(open_journal_for_reading(source)) as wanted,
            wanted.snapshot() as a,
            engine.begin() as b,
        ):
            if engine.dialect.name == "sqlite":
                b.execute(text("BEGIN IMMEDIATE"))
            b.execute(update(t.lease).values(id=1))  # no daemon takes it meanwhile
            there = JournalReader(ConnectionRowSource(b))
            _refuse_running_daemon(there, now)
            _replace_tables(a, b, tell)
            done = check_all_journal_rows(there, name, tell)
            if done.problem or done.digest != check_all_journal_rows(a, name, tell).digest:
                why = done.problem.why if done.problem else "its events are not those of the backup"
                raise HpctlError(
                    f"cannot restore: the copy made from the backup is incomplete: {why}",
                    "nothing was changed; try another backup",
                )
        file = get_sqlite_path_from_url(url)
        if file is not None and os.geteuid() == 0:
            chown_journal_files(file)
        return done
    except SQLAlchemyError as error:
        raise HpctlError(
            f"cannot write the restored journal {name}: {get_database_error_message(error)}",
            "nothing was changed; run the command as the daemon's user or with sudo",
        ) from error
    finally:
        engine.dispose()


def chown_journal_files(file: Path) -> None:
    """Give the daemon's user what root has made in that user's directory.

    The user can put a link there, which must not lead root to another file.
    """
    owner = file.parent.stat()
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        place = file.with_name(name)
        with suppress(FileNotFoundError):
            os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _replace_tables(source: JournalReader, target: Connection, tell: Tell) -> None:
    leases = [row._asdict() for row in source.table(t.lease.name)]
    epochs = [row["epoch"] for row in leases]
    epochs += target.execute(select(t.lease.c.epoch)).scalars()
    tables = [table for table in t.metadata.sorted_tables if table.name not in TRANSIENT_TABLES]
    for table in reversed(tables):
        target.execute(table.delete())
    copy_rows(source, target, tables, tell)
    if epochs and not target.execute(update(t.lease).values(epoch=max(epochs) + 1)).rowcount:
        row = {**leases[0], "epoch": max(epochs) + 1, "until": 0.0}
        target.execute(insert(t.lease).values(**row))
    _skip_used_row_numbers(target)


def _skip_used_row_numbers(c: Connection) -> None:
    """Have the database give the next row a number that none of these rows ever had."""
    highest = {}
    for table in (t.events, t.past, t.audit, t.requests):
        (key,) = table.primary_key
        highest[table] = c.execute(select(func.max(key))).scalar() or 0
    highest[t.events] = max(highest[t.events], highest.pop(t.past))
    for table, top in highest.items():
        (key,) = table.primary_key
        if c.dialect.name == "postgresql" and top:
            of = func.pg_get_serial_sequence(table.name, key.name)
            c.execute(select(func.setval(of, top)))
    if c.execute(select(t.events.c.seq).where(t.events.c.seq == highest[t.events])).first() is None:
        # It went to the past: SQLite and MariaDB count on from what was ever inserted.
        c.execute(insert(t.events).values(seq=highest[t.events], kind="", payload=""))
        c.execute(t.events.delete().where(t.events.c.seq == highest[t.events]))
