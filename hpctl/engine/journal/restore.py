"""A journal put back from a copy."""

import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from sqlalchemy import Connection, Engine, func, insert, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.backup import copy_rows, file_url
from hpctl.engine.journal.check import examine_journal
from hpctl.engine.journal.copies import (
    SAME,
    STANDBY_S,
    TRANSIENT_TABLES,
    Checked,
    Tell,
    all_events,
    connect_snapshot,
    open_snapshot,
    ordered_events,
    read_rows,
)
from hpctl.engine.journal.database import make_engine, message_of, reading
from hpctl.engine.journal.rows import utc
from hpctl.engine.journal.store import Store
from hpctl.toolkit.errors import HpctlError


class Target(Struct, frozen=True):
    """Where a backup is to go: the events that are there, and those of them that are younger than
    the backup."""

    journal: str
    events: int
    lost: int


def prepared(file: Path, directory: Path) -> str:
    """The URL of a copy of a backup, of this release's schema. Raises Unavailable, JournalCorrupt,
    HpctlError."""
    copy, hint = directory / "backup.db", "name what `hpctl journal backup` has written"
    place = f"file:{quote(str(file.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True)) as a, closing(sqlite3.connect(copy)) as b:
            a.backup(b)
            found = b.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (t.meta.name,))
            if found.fetchone() is None:
                raise HpctlError(f"{file} is no backup of a journal", hint)
    except sqlite3.Error as error:
        raise HpctlError(f"{file} is no backup of a journal: {error}", hint) from error
    Store(file_url(copy), write=True).close()
    return file_url(copy)


def target(source: str, url: str, now: datetime) -> Target:
    """Where a backup would go. Raises HpctlError where a daemon runs, or another journal is there,
    Unavailable, JournalCorrupt."""
    engine = make_engine(url, write=True)
    name = engine.url.render_as_string()
    try:
        file = _file(engine)
        if file is not None and not file.exists():
            return Target(str(file), 0, 0)
        with open_snapshot(source) as a, reading("the journal"), connect_snapshot(engine) as b:
            if t.meta.name not in inspect(b).get_table_names():
                return Target(name, 0, 0)
            _refuse_running(b, now)
            _refuse_other(a, b, name)
            newest = a.execute(select(func.max(all_events.c.seq))).scalar() or 0
            count = select(func.count()).select_from(all_events)
            lost = b.execute(count.where(all_events.c.seq > newest)).scalar_one()
            return Target(name, b.execute(count).scalar_one(), lost)
    finally:
        engine.dispose()


def _refuse_running(c: Connection, now: datetime) -> None:
    hint = "stop every head node's daemon: systemctl stop hpctl-daemon.socket hpctl-daemon"
    held = c.execute(select(t.lease.c.host, t.lease.c.pid, t.lease.c.until)).first()
    if held is not None and held.until > now.timestamp():
        until = f"{utc(held.until):%H:%M:%S} UTC"
        text_ = f"the daemon on {held.host} (pid {held.pid}) holds the journal until {until}"
        raise HpctlError(text_, hint)
    if t.standbys.name in inspect(c).get_table_names():
        lives = t.standbys.c.heartbeat > now.timestamp() - STANDBY_S
        standby = c.execute(select(t.standbys.c.host).where(lives)).scalar()
        if standby is not None:
            raise HpctlError(f"the daemon on {standby} follows the journal as the standby", hint)


def _refuse_other(source: Connection, there: Connection, name: str) -> None:
    """Two copies of one journal share some of their oldest events."""
    first = {
        row.seq: (row.kind, row.payload) for row in read_rows(there, ordered_events.limit(SAME))
    }
    known = read_rows(source, select(all_events).where(all_events.c.seq.in_(first)))
    if first and not any(first[row.seq] == (row.kind, row.payload) for row in known):
        raise HpctlError(
            f"{name} is another journal: none of its first events is in the backup",
            "restore into a new database (another database_url or state_dir), or name its backup",
        )


def restore(source: str, url: str, now: datetime, tell: Tell) -> Checked:
    """Put a prepared backup in a journal's place, in one transaction. The lease's epoch goes on, so
    that no daemon of before can write. Raises HpctlError where nothing was changed."""
    Store(url, write=True).close()
    engine = make_engine(url, write=True)
    name = engine.url.render_as_string()
    try:
        with open_snapshot(source) as a, engine.begin() as b:
            if engine.dialect.name == "sqlite":
                b.execute(text("BEGIN IMMEDIATE"))
            b.execute(update(t.lease).values(id=1))  # no daemon takes it meanwhile
            _refuse_running(b, now)
            _overwrite(a, b, tell)
            done, wanted = examine_journal(b, name, tell), examine_journal(a, name, tell)
            if done.problem or done.digest != wanted.digest:
                why = done.problem.why if done.problem else "its events are not those of the backup"
                raise HpctlError(f"what was restored is not whole: {why}", "nothing was changed")
        if (file := _file(engine)) is not None and os.geteuid() == 0:
            _hand_over(file)
        return done
    except SQLAlchemyError as error:
        raise HpctlError(
            f"{name} cannot be written: {message_of(error)}",
            "nothing was changed; run this as the daemon's user (try sudo)",
        ) from error
    finally:
        engine.dispose()


def _file(engine: Engine) -> Path | None:
    database = engine.url.database
    return Path(database) if database and engine.dialect.name == "sqlite" else None


def _hand_over(file: Path) -> None:
    """What root has made in the daemon's directory is the daemon's user's."""
    owner = file.parent.stat()
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        with suppress(FileNotFoundError):
            os.chown(file.with_name(name), owner.st_uid, owner.st_gid)


def _overwrite(source: Connection, target: Connection, tell: Tell) -> None:
    epochs = [e for c in (source, target) for e in c.execute(select(t.lease.c.epoch)).scalars()]
    tables = [table for table in t.metadata.sorted_tables if table.name not in TRANSIENT_TABLES]
    for table in reversed(tables):
        target.execute(table.delete())
    copy_rows(source, target, tables, tell)
    if epochs and not target.execute(update(t.lease).values(epoch=max(epochs) + 1)).rowcount:
        row = source.execute(select(t.lease)).mappings().one()
        target.execute(insert(t.lease).values(**{**row, "epoch": max(epochs) + 1, "until": 0.0}))
    _number_on(target)


def _number_on(c: Connection) -> None:
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
