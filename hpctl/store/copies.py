"""A journal as a whole: checked row by row, copied to a file, and put back from one.

The same on every database: rows are read in one transaction, so that a copy is of one moment, and
written by table. A copy is a SQLite file, whatever it is a copy of.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from sqlalchemy import (
    Connection,
    Engine,
    Table,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from hpctl.core.journal import Corrupt, Event, State
from hpctl.errors import HpctlError, JournalCorrupt
from hpctl.store import engine as t
from hpctl.store.engine import make_engine, message_of, reading
from hpctl.store.rows import decode, health_as_heard, info_of, request_of, utc
from hpctl.store.sql import FIRST, AuditRow, Store, link

AT_ONCE = 500
"""Rows that are written, and counted, at once."""
SAME = 200
"""So many of the oldest events tell one journal from another."""

Tell = Callable[[int, int], None]
"""How many rows are done, of how many."""

_RESTORE = (
    "keep a copy of the journal, stop the daemons, and put the newest good one back:"
    " hpctl journal restore FILE"
)
_events = union_all(
    select(t.past.c.seq, t.past.c.kind, t.past.c.payload, literal(1).label("old")),
    select(t.events.c.seq, t.events.c.kind, t.events.c.payload, literal(0).label("old")),
).subquery()
_in_order = select(_events).order_by(_events.c.seq)
_TRANSIENT = ("hpctl_lease", "hpctl_standbys")
"""Tables of daemons that run: not of the journal that is put back."""


class Problem(Struct, frozen=True):
    """The first row that is wrong: its table and key, why, and what to do."""

    table: str
    row: str
    why: str
    fix: str


class Checked(Struct, frozen=True):
    """What a journal holds. `digest`: of all events, so that two journals can be compared."""

    journal: str
    schema: str
    rows: dict[str, int]
    newest: datetime | None
    open_recoveries: int
    audit_digest: str
    digest: str
    problem: Problem | None = None


class _Bad(Exception):
    def __init__(self, table: str, row: object, why: object, fix: str) -> None:
        super().__init__(why)
        self.problem = Problem(str(table), str(row), str(why), fix)  # SQLAlchemy's names are no str


@contextmanager
def _snapshot(engine: Engine) -> Iterator[Connection]:
    """A connection whose every look is at the same moment."""
    lite = engine.dialect.name == "sqlite"
    with engine.connect() as plain:
        level = "AUTOCOMMIT" if lite else "REPEATABLE READ"
        c = plain.execution_options(isolation_level=level)
        if lite:
            c.exec_driver_sql("BEGIN").close()
        try:
            yield c
        finally:
            if lite:
                c.exec_driver_sql("ROLLBACK").close()


@contextmanager
def _opened(url: str) -> Iterator[Connection]:
    """A snapshot of a journal. Raises Unavailable, JournalCorrupt, HpctlError."""
    Store(url, write=False).close()
    engine = make_engine(url, write=False)
    try:
        with reading("the journal"), _snapshot(engine) as c:
            yield c
    finally:
        engine.dispose()


def _tables(c: Connection) -> list[Table]:
    """The journal's tables that are there: some are younger than others."""
    there = set(inspect(c).get_table_names())
    return [table for table in t.metadata.sorted_tables if table.name in there]


def _rows(c: Connection, query: Any) -> Iterator[Any]:
    with closing(c.execute(query.execution_options(yield_per=AT_ONCE))) as found:
        yield from found


def _counts(c: Connection) -> dict[str, int]:
    tables = _tables(c)
    return {
        one.name: c.execute(select(func.count()).select_from(one)).scalar_one() for one in tables
    }


# --- checking ---


class _Walk:
    """Reads every row as its readers do. Raises _Bad at the first that is wrong."""

    def __init__(self, c: Connection, tell: Tell) -> None:
        self._c, self._tell = c, tell
        self.rows = _counts(c)
        self.seq = -1
        self.done, self.total = 0, sum(self.rows.values())
        self.now, self.all = State(), State()
        self.newest: datetime | None = None
        self.digest, self.audit = hashlib.sha256(), FIRST

    def run(self) -> None:
        """All tables."""
        self._each(t.events, _in_order, self._event)
        audit = select(t.audit).order_by(t.audit.c.seq)
        for table, query, read in (
            (t.audit, audit, self._audit_row),
            (t.agents, select(t.agents), lambda row: health_as_heard([row], None)),
            (t.heard, select(t.heard), lambda row: health_as_heard((), row)),
            (t.requests, select(t.requests), lambda row: request_of(row, "")),
            (t.lease, select(t.lease), info_of),
        ):
            self._each(table, query, read)

    def _each(self, table: Table, query: Any, read: Callable[[Any], object]) -> None:
        last: object = "the first"
        try:
            for row in _rows(self._c, query):
                last = row[0]
                read(row)
                self.done += 1
                if self.done % AT_ONCE == 0:
                    self._tell(self.done, self.total)
        except JournalCorrupt as error:
            raise _Bad(table.name, last, error, error.hint) from error
        except SQLAlchemyError as error:
            after = f"after {last}"
            raise _Bad(table.name, after, message_of(error), _RESTORE) from error

    def _event(self, row: Any) -> None:
        table = t.past.name if row.old else t.events.name
        event: Event = decode(row.seq, row.kind, row.payload)
        if row.seq == self.seq:
            raise _Bad(table, row.seq, "two events have this number", _RESTORE)
        self.seq = row.seq
        self.digest.update(f"{row.seq}\n{row.kind}\n{row.payload}\n".encode())
        try:
            self.all.fold(event)
            if not row.old:
                self.now.fold(event)
        except Corrupt as error:
            raise _Bad(
                table, row.seq, f"cannot follow the events before: {error}", _RESTORE
            ) from error
        self.newest = max(event.at, self.newest or event.at)

    def _audit_row(self, row: Any) -> None:
        audited = AuditRow(row.seq, row.kind, row.payload, row.digest)
        if row.digest != link(self.audit, row.kind, row.payload):
            why = "does not follow from the rows before it: the audit trail was changed there"
            fix = (
                "compare with a backup and the daemon's log: journalctl -u hpctl-daemon -g digest="
            )
            raise _Bad(t.audit.name, row.seq, why, fix)
        self.audit = row.digest
        _ = audited.event


def _examined(c: Connection, name: str, tell: Tell) -> Checked:
    walk, problem = _Walk(c, tell), None
    try:
        walk.run()
    except _Bad as bad:
        problem = bad.problem
    state = walk.now
    opened = len(state.open_nodes) + len(state.open_jobs) + len(state.open_changes)
    digest = walk.digest.hexdigest()
    schema = c.execute(select(t.meta.c.value).where(t.meta.c.name == "schema")).scalar_one()
    return Checked(name, schema, walk.rows, walk.newest, opened, walk.audit, digest, problem)


def check(url: str, tell: Tell) -> Checked:
    """Read everything, as a daemon and its commands would. Raises Unavailable, HpctlError."""
    name = make_engine(url, write=False).url.render_as_string()
    try:
        with _opened(url) as c:
            return _examined(c, name, tell)
    except JournalCorrupt as error:
        problem = Problem(str(t.meta.name), "", str(error), error.hint)
        return Checked(name, "", {}, None, 0, "", "", problem)


def events(
    url: str, since: datetime | None, recovery: str | None
) -> Iterator[tuple[int, str, str]]:
    """Number, kind and JSON of each event, ended ones too. Raises as `_opened` does."""
    with _opened(url) as c:
        for row in _rows(c, _in_order):
            event = decode(row.seq, row.kind, row.payload)
            if since is not None and event.at < since:
                continue
            if recovery in (None, getattr(event, "recovery", "")):
                yield row.seq, row.kind, row.payload


# --- copying ---


def _copy(source: Connection, target: Connection, tables: Iterable[Table], tell: Tell) -> None:
    counts, done = _counts(source), 0
    total = sum(counts.values())
    for table in tables:
        if table.name not in counts:
            continue
        batch: list[dict[str, Any]] = []
        for row in _rows(source, select(table)):
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
            with _opened(url) as source, target.begin() as c:
                t.metadata.create_all(c)
                _copy(source, c, t.metadata.sorted_tables, tell)
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


# --- restoring ---


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
        with _opened(source) as a, reading("the journal"), _snapshot(engine) as b:
            if t.meta.name not in inspect(b).get_table_names():
                return Target(name, 0, 0)
            _refuse_running(b, now)
            _refuse_other(a, b, name)
            newest = a.execute(select(func.max(_events.c.seq))).scalar() or 0
            count = select(func.count()).select_from(_events)
            lost = b.execute(count.where(_events.c.seq > newest)).scalar_one()
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


def _refuse_other(source: Connection, there: Connection, name: str) -> None:
    """Two copies of one journal share some of their oldest events."""
    first = {row.seq: (row.kind, row.payload) for row in _rows(there, _in_order.limit(SAME))}
    known = _rows(source, select(_events).where(_events.c.seq.in_(first)))
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
        with _opened(source) as a, engine.begin() as b:
            if engine.dialect.name == "sqlite":
                b.execute(text("BEGIN IMMEDIATE"))
            b.execute(update(t.lease).values(id=1))  # no daemon takes it meanwhile
            _refuse_running(b, now)
            _overwrite(a, b, tell)
            done, wanted = _examined(b, name, tell), _examined(a, name, tell)
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
    tables = [table for table in t.metadata.sorted_tables if table.name not in _TRANSIENT]
    for table in reversed(tables):
        target.execute(table.delete())
    _copy(source, target, tables, tell)
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
