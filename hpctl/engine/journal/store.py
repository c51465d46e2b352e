"""The Journal on SQLAlchemy Core: SQLite by default, MariaDB or PostgreSQL for several heads.

One writer. On SQLite the file's directory carries an advisory lock; on every database a lease
row carries an epoch, and each append checks the epoch in its own transaction, so that a daemon
that lost the lease while it slept cannot write any more.

The audit trail is the journal's records of what people asked, chained by SHA-256. Each row's digest
covers the row before it, so that a row that was changed, removed or put in between breaks the chain
from there on. Who may write to the database can make the whole chain anew: the daemon therefore
logs the newest digest with each row (`audit=... digest=...`), and `hpctl audit verify --expect
DIGEST` compares with what the log, or a note elsewhere, says.
"""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import (
    CompoundSelect,
    Connection,
    Engine,
    Select,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.database import make_engine, message_of, migrate, reading, writing
from hpctl.engine.journal.events import ConfigurationTaken, Event, RequestTaken
from hpctl.engine.journal.rows import (
    SCHEMA_VERSION,
    DaemonInfo,
    Holder,
    Row,
    StandbyInfo,
    checked,
    decode,
    encode,
    health_as_heard,
    health_row,
    heard_row,
    info_of,
    request_of,
    standby_of,
    without_ended_jobs,
)
from hpctl.engine.view import Request
from hpctl.toolkit.bounds import natural
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, JournalCorrupt
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import Health

_events = select(t.events.c.seq, t.events.c.kind, t.events.c.payload)
_past = select(t.past.c.seq, t.past.c.kind, t.past.c.payload)
_AT_ONCE = 500
"""Rows named in one statement: databases have limits."""
_NO_EPOCH = -1
STANDBY_GONE_S = 86400.0
"""A standby that was silent for so long is forgotten."""
_schema_row = select(t.meta.c.value).where(t.meta.c.name == "schema")


log = logging.getLogger(__name__)

Proves = Callable[[int], str]
AUDITED: Final = (RequestTaken, ConfigurationTaken)
FIRST: Final = hashlib.sha256(b"hpctl audit trail 1").hexdigest()
"""The digest before the first row."""


class AuditRow(Struct, frozen=True):
    """One row as it is stored."""

    seq: int
    kind: str
    payload: str
    digest: str

    @property
    def event(self) -> Event:
        """What it records. Raises JournalCorrupt."""
        return decode(self.seq, self.kind, self.payload)


def link(before: str, kind: str, payload: str) -> str:
    """The digest of a row, from that of the row before it."""
    return hashlib.sha256(f"{before}\n{kind}\n{payload}".encode()).hexdigest()


def _record_audit(c: Connection, batch: Sequence[Event]) -> None:
    """Add what is audited of a batch, in the batch's own transaction."""
    audited = [encode(e) for e in batch if isinstance(e, AUDITED)]
    if not audited:
        return
    newest = select(t.audit.c.digest).order_by(t.audit.c.seq.desc()).limit(1)
    digest = c.execute(newest).scalar() or FIRST
    for kind, payload in audited:
        digest = link(digest, kind, payload)
        row = c.execute(insert(t.audit).values(kind=kind, payload=payload, digest=digest))
        (seq,) = row.inserted_primary_key or (0,)
        log.info("audit=%d kind=%s digest=%s", seq, kind, digest)


def broken(trail: Iterable[AuditRow]) -> AuditRow | None:
    """The first row whose digest does not follow from the rows before it; None: all do."""
    before = FIRST
    for row in trail:
        if row.digest != link(before, row.kind, row.payload):
            return row
        before = row.digest
    return None


class LeaseHeld(HpctlError):
    """Another daemon owns the journal."""


class LeaseLost(HpctlError):
    """Another daemon took the journal over; this one must stop at once."""


class Store:
    """The journal, the agents' facts, the operators' requests and the lease."""

    def __init__(self, url: str, *, write: bool) -> None:
        """Open by SQLAlchemy URL; a writer makes the tables. Safe to share between threads.

        Raises Unavailable (not there, or no journal in it), JournalCorrupt (not ours), HpctlError
        (a URL without a driver).
        """
        self._engine: Engine = make_engine(url, write=write)
        served = write and self._engine.dialect.name != "sqlite"
        self._writer = make_engine(url, write=True, leader=True) if served else self._engine
        self._name = make_url(url).render_as_string()
        self._write, self._epoch = write, 0
        self.position = 0
        """The number of the last event that `events` gave."""
        database = self._engine.url.database
        here = (
            write
            and self._engine.dialect.name == "sqlite"
            and database not in (None, "", ":memory:")
        )
        self._file = Path(str(database)) if here else None
        try:
            with reading(f"the journal at {self._name}"):
                if write:
                    self._refuse_empty()
                    self._create()
                checked(self._schema(), self._name)
        except BaseException:
            self._engine.dispose()
            raise
        self._inode = self._stat()

    def _refuse_empty(self) -> None:
        if self._file is not None and self._file.exists() and not self._file.stat().st_size:
            raise JournalCorrupt(
                f"the journal {self._file} is an empty file: what was in it is lost",
                "restore the newest good copy; remove it only where no daemon has ever run",
            )

    def _create(self) -> None:
        """Make or migrate what is missing. Two daemons may try at once, on MariaDB table by table:
        whatever one of them finds made by the other, it finds there when it looks again.
        """
        for left in reversed(range(len(t.metadata.tables) + 2)):
            try:
                found = self._schema()
                if 0 < (old := natural(found or "")) < SCHEMA_VERSION:
                    migrate(self._engine, old, self._file)
                    return
                checked(found or str(SCHEMA_VERSION), self._name)
                with self._engine.begin() as c:
                    if self._file is not None:
                        c.execute(text("BEGIN IMMEDIATE"))
                    t.metadata.create_all(c)
                    if c.execute(_schema_row).first() is None:
                        c.execute(insert(t.meta).values(name="schema", value=str(SCHEMA_VERSION)))
                    return
            except DBAPIError:
                if not left or self._file is not None:
                    raise

    def _schema(self) -> str | None:
        if not inspect(self._engine).has_table(t.meta.name):
            return None
        with self._engine.connect() as c:
            row = c.execute(_schema_row).first()
        return None if row is None else str(row[0])

    def _stat(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _still_there(self) -> None:
        if self._stat() != self._inode:
            raise OSError(f"the journal {self._file} was moved or replaced while it was in use")

    def copy_to(self, path: Path) -> None:
        """Make a copy that everybody may read, in place of the one before; SQLite only.

        Raises OSError, Unavailable, JournalCorrupt.
        """
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with reading("the journal"), self._engine.connect() as c:
            alone = c.execution_options(isolation_level="AUTOCOMMIT")
            alone.execute(text("VACUUM INTO :path"), {"path": str(part)})
        part.chmod(0o644)
        part.replace(path)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()
        self._writer.dispose()

    def claim(self, cluster: str) -> None:
        """See that this is that cluster's journal; a writer notes it, once. Raises HpctlError where
        it is another cluster's, Unavailable."""
        owner = select(t.meta.c.value).where(t.meta.c.name == "cluster")
        note = insert(t.meta).values(name="cluster", value=cluster)
        with reading("the journal"):
            if self._write:
                with contextlib.suppress(IntegrityError), self._engine.begin() as c:
                    c.execute(note)
            with self._engine.connect() as c:
                found = c.execute(owner).scalar()
        if found not in (None, cluster):
            raise HpctlError(
                f"the database is that of the cluster {found!r}, and this is {cluster!r}",
                "give each cluster a database_url of its own; where it was renamed:"
                " DELETE FROM hpctl_meta WHERE name = 'cluster'",
            )

    def append(self, batch: Sequence[Event]) -> None:
        """All or nothing, on stable storage when it returns. Raises LeaseLost, OSError."""
        if not batch:
            return
        rows = [dict(zip(("kind", "payload"), encode(e), strict=True)) for e in batch]
        taken = [e.request for e in batch if isinstance(e, RequestTaken)]
        self._still_there()
        with writing("the journal"), self._writer.begin() as c:
            self._still_mine(c)
            c.execute(insert(t.events), rows)
            _record_audit(c, batch)
            if taken:
                c.execute(update(t.requests).where(t.requests.c.id.in_(taken)).values(taken=True))
                c.execute(t.proofs.delete().where(t.proofs.c.request.in_(taken)))

    def events(self, after: int = 0, *, past: bool = False) -> Iterator[Event]:
        """Every event in order, from the one with number `after` + 1 on; with `past` those that
        were retired as well.

        Raises Unavailable, and JournalCorrupt at the first event that cannot be read.
        """
        return (event for _, event in self.numbered(after, past=past))

    def numbered(
        self, after: int = 0, *, past: bool = False, since: datetime | None = None
    ) -> Iterator[tuple[int, Event]]:
        """As `events`, each with its number: what follows the journal goes on after the last. With
        `since` less: see `rows.without_ended_jobs`."""
        query: Select[Any] | CompoundSelect[Any] = _events
        with reading("the journal"), self._engine.connect() as c:
            # A journal that no daemon of this version has opened has no past.
            if past and inspect(c).has_table(t.past.name):
                # In one statement: between two an event might move, and be in neither.
                query = union_all(_past, _events)
            rows = query.subquery()
            ordered = select(rows).where(rows.c.seq > after).order_by(rows.c.seq)
            # Closed at once: an open one would hold the next reader of this connection to its time.
            with c.execute(ordered) as result:
                found: Iterable[Row] = map(tuple, result)
                for row in found if since is None else without_ended_jobs(found, since):
                    event = decode(*row)
                    self.position = row[0]
                    yield row[0], event

    def newer(self, after: int, most: int) -> list[tuple[int, Event]]:
        """The next events with their numbers. Raises Unavailable, JournalCorrupt."""
        query = _events.where(t.events.c.seq > after).order_by(t.events.c.seq).limit(most)
        with reading("the journal"), self._engine.connect() as c:
            return [(row.seq, decode(*row)) for row in c.execute(query)]

    def newest(self) -> int:
        """The number of the last event, 0 where there is none. Raises Unavailable."""
        with reading("the journal"), self._engine.connect() as c:
            found: int = c.execute(select(func.max(t.events.c.seq))).scalar() or 0
            return found

    def retire(self, over: Callable[[Event], datetime | None], most: int | None = None) -> int:
        """Move what is over into the past; answers how many events. `over`: when that ended which
        an event belongs to, the same for all its events; None where it stays. No further day is
        begun, oldest first, once `most` are moved.

        Raises LeaseLost, OSError; Unavailable, JournalCorrupt. What was moved before stays moved.
        """
        days: dict[int, dict[int, str]] = {}
        with reading("the journal"), self._engine.connect() as c:
            for seq, kind, payload in c.execute(_events.order_by(t.events.c.seq)):
                event = decode(seq, kind, payload)
                if (ended := over(event)) is not None:
                    day = ended.astimezone(UTC).toordinal()
                    days.setdefault(day, {})[seq] = getattr(event, "recovery", "")
        moved = 0
        for day in sorted(days):
            if most is not None and moved >= most:
                break
            self._move(day, days[day])
            moved += len(days[day])
        return moved

    def _move(self, day: int, recoveries: Mapping[int, str]) -> None:
        """One day in one transaction: never half of a recovery, which would be corruption."""
        numbers = list(recoveries)
        self._still_there()
        with writing("the journal"), self._writer.begin() as c:
            for first in range(0, len(numbers), _AT_ONCE):
                these = t.events.c.seq.in_(numbers[first : first + _AT_ONCE])
                found = c.execute(_events.where(these)).all()
                rows = [
                    {**row._mapping, "day": day, "recovery": recoveries[row.seq]} for row in found
                ]
                c.execute(insert(t.past), rows)
                c.execute(t.events.delete().where(these))
            # Last, for as long as the lease's row is locked it cannot be renewed.
            self._still_mine(c)

    def retired(self) -> frozenset[RecoveryId]:
        """The ids in the past: no new recovery may have one of them. Raises Unavailable,
        JournalCorrupt."""
        query = select(t.past.c.recovery).where(t.past.c.recovery != "").distinct()
        with reading("the journal"), self._engine.connect() as c:
            return frozenset(map(RecoveryId, c.execute(query).scalars()))

    def forget(self, before: datetime) -> None:
        """Delete for good what was over on a day before that time's. Raises LeaseLost, OSError."""
        self._still_there()
        with writing("the journal"), self._writer.begin() as c:
            self._still_mine(c)
            c.execute(t.past.delete().where(t.past.c.day < before.astimezone(UTC).toordinal()))
            old = t.requests.c.taken.is_(True) & (t.requests.c.at < before.timestamp())
            c.execute(t.requests.delete().where(old))

    def record(self, facts: Sequence[Health]) -> None:
        """Remember what a few agents said last, durably. Raises OSError."""
        rows = {h.generation.node: health_row(h) for h in facts}
        if not rows:
            return
        self._still_there()
        with writing("the agents' facts"), self._writer.begin() as c:
            c.execute(t.agents.delete().where(t.agents.c.node.in_(list(rows))))
            c.execute(insert(t.agents), list(rows.values()))
            self._still_mine(c)

    def note_heard(self, heard: Mapping[NodeName, datetime]) -> None:
        """Remember when each node was last heard, all nodes in one row. Raises OSError."""
        self._still_there()
        with writing("the agents' times"), self._writer.begin() as c:
            c.execute(t.heard.delete())
            c.execute(insert(t.heard).values(**heard_row(heard)))
            self._still_mine(c)

    def health(self) -> Mapping[NodeName, Health]:
        """What the agents said last, by node. Raises Unavailable, JournalCorrupt."""
        with reading("the agents' facts"), self._engine.connect() as c:
            found = c.execute(select(t.agents)).all()
            row = c.execute(select(t.heard)).first()
        return health_as_heard(found, row)

    def ask(
        self, verb: str, target: str, by: str, at: datetime, prove: Proves | None = None
    ) -> int:
        """Append a request for the daemon; answers its number. `prove` makes the credential of a
        number, where a row alone proves nothing. Raises HpctlError."""
        values = {"at": at.timestamp(), "verb": verb, "target": target, "asked_by": by}
        try:
            with self._engine.begin() as c:
                result = c.execute(insert(t.requests).values(**values, taken=False))
                number = int((result.inserted_primary_key or (0,))[0])
                if prove is not None and c.dialect.name != "sqlite":
                    c.execute(insert(t.proofs).values(request=number, credential=prove(number)))
                return number
        except SQLAlchemyError as error:
            raise HpctlError(
                f"the request cannot be written: {message_of(error)}",
                "run this as the daemon's user (try sudo)",
            ) from error

    def requests(self) -> list[Request]:
        """The requests that nobody has taken yet, oldest first. One in a SQLite file is root's or
        the daemon's user's; in a database that several hosts write to, a row proves nothing.

        Raises Unavailable, JournalCorrupt.
        """
        local = self._engine.dialect.name == "sqlite"
        proof = "written to the journal's file" if local else ""
        query = select(t.requests).where(t.requests.c.taken.is_(False)).order_by(t.requests.c.id)
        with reading("the requests"), self._engine.connect() as c:
            return [request_of(row, proof) for row in c.execute(query)]

    def proofs(self) -> dict[int, str]:
        """The credentials of requests that nobody has taken yet. Raises Unavailable,
        JournalCorrupt."""
        with reading("the requests' proofs"), self._engine.connect() as c:
            return {row.request: str(row.credential) for row in c.execute(select(t.proofs))}

    def answer(self, request: int) -> RequestTaken | None:
        """What the daemon answered to a request, once it did.

        Raises Unavailable, JournalCorrupt.
        """
        taken = select(t.requests.c.taken).where(t.requests.c.id == request)
        newest = _events.where(t.events.c.kind == RequestTaken.__name__).order_by(
            t.events.c.seq.desc()
        )
        with reading("the journal"), self._engine.connect() as c:
            if not c.execute(taken).scalar():
                return None
            for seq, kind, payload in c.execute(newest):
                event = decode(seq, kind, payload)
                if isinstance(event, RequestTaken) and event.request == request:
                    return event
        return None

    def audit_trail(self) -> list[AuditRow]:
        """Who asked what, oldest first. Raises Unavailable, JournalCorrupt."""
        with reading("the audit trail"), self._engine.connect() as c:
            # A journal that no daemon of this version has opened has none.
            if not inspect(c).has_table(t.audit.name):
                return []
            query = select(t.audit).order_by(t.audit.c.seq)
            return [AuditRow(r.seq, r.kind, r.payload, r.digest) for r in c.execute(query)]

    def outbox(self) -> str | None:
        """What `keep_outbox` has kept. Raises Unavailable, JournalCorrupt."""
        with reading("the outbox"), self._engine.connect() as c:
            # A journal that no daemon of this version has opened has none.
            there = inspect(c).has_table(t.outbox.name)
            return c.execute(select(t.outbox.c.payload)).scalar() if there else None

    def keep_outbox(self, payload: str) -> None:
        """Keep it in place of the one before. Raises LeaseLost, OSError."""
        self._still_there()
        with writing("the outbox"), self._writer.begin() as c:
            self._still_mine(c)
            c.execute(t.outbox.delete())
            c.execute(insert(t.outbox).values(id=1, payload=payload))

    def daemon(self) -> DaemonInfo | None:
        """Who holds, or last held, the lease. Raises Unavailable, JournalCorrupt."""
        with reading("the lease"), self._writer.connect() as c:
            row = c.execute(select(t.lease)).first()
            return None if row is None else info_of(row)

    def take_lease(
        self, me: Holder, seen: DaemonInfo | None, now: datetime, lease_s: float
    ) -> None:
        """Become the one writer, under the next epoch. `seen`: the lease as it stood when it was
        found to have run out. Raises LeaseHeld where it was renewed or taken since, Unavailable,
        JournalCorrupt.
        """
        stamp, epoch = now.timestamp(), seen.epoch + 1 if seen else 1
        values = {
            **{name: getattr(me, name) for name in me.__struct_fields__},
            "epoch": epoch,
            "beat": 0,
            "lease_s": lease_s,
            "started": stamp,
            "heartbeat": stamp,
            "until": stamp + lease_s,
            "last_cycle_s": 0.0,
            "trouble": "",
            "successor": "",
        }
        held = LeaseHeld("another daemon holds the journal", "let this one wait")
        try:
            with reading("the lease"), self._writer.begin() as c:
                if seen is None:
                    c.execute(insert(t.lease).values(id=1, **values))
                else:
                    same = (t.lease.c.epoch == seen.epoch) & (t.lease.c.beat == seen.beat)
                    if c.execute(update(t.lease).where(same).values(**values)).rowcount != 1:
                        raise held
                gone = t.standbys.c.heartbeat < stamp - STANDBY_GONE_S
                c.execute(t.standbys.delete().where(gone | (t.standbys.c.address == me.address)))
        except JournalCorrupt as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            raise held from error
        self._epoch = epoch

    def renew_lease(
        self, now: datetime, lease_s: float, last_cycle_s: float, trouble: str, mode: str
    ) -> None:
        """Say that the daemon lives. Raises LeaseLost where another took over, OSError."""
        self._still_there()
        with writing("the lease"), self._writer.begin() as c:
            self._hold_lease(
                c,
                heartbeat=now.timestamp(),
                beat=t.lease.c.beat + 1,
                lease_s=lease_s,
                until=now.timestamp() + lease_s,
                last_cycle_s=last_cycle_s,
                trouble=trouble,
                mode=mode,
            )

    def release_lease(self, now: datetime, successor: str = "") -> None:
        """Let go of it, for the standby at that address first. Raises LeaseLost, OSError."""
        with writing("the lease"), self._writer.begin() as c:
            values = {"lease_s": 0.0, "until": now.timestamp(), "successor": successor}
            self._hold_lease(c, beat=t.lease.c.beat + 1, **values)
        self.stand_by()

    def stand_by(self) -> None:
        """Refuse every write of the daemon's with LeaseLost until the lease is taken."""
        self._epoch = _NO_EPOCH

    def note_standby(self, me: Holder, beat: int, now: datetime) -> None:
        """Say that this standby lives, and how far it has read. Raises OSError."""
        keep = ("host", "address", "pid", "version")
        values = {name: getattr(me, name) for name in keep}
        values |= {"beat": beat, "heartbeat": now.timestamp(), "seq": self.position}
        with writing("the standby's row"), self._writer.begin() as c:
            c.execute(t.standbys.delete().where(t.standbys.c.address == me.address))
            c.execute(insert(t.standbys).values(**values))

    def forget_standby(self, address: str) -> None:
        """Take the row of a standby away that ends. Raises OSError."""
        with writing("the standby's row"), self._writer.begin() as c:
            c.execute(t.standbys.delete().where(t.standbys.c.address == address))

    def standbys(self) -> list[StandbyInfo]:
        """Who stands by, and how far behind. Raises Unavailable, JournalCorrupt."""
        newest = select(func.max(t.events.c.seq)).scalar_subquery()
        query = select(t.standbys, newest.label("newest")).order_by(t.standbys.c.host)
        with reading("the standbys"), self._writer.connect() as c:
            return [standby_of(row) for row in c.execute(query)]

    def _still_mine(self, c: Connection) -> None:
        """In a daemon's transaction: nobody has taken the lease, nor does before it ends."""
        if self._epoch:
            self._hold_lease(c, id=1)

    def _hold_lease(self, c: Connection, **values: object) -> None:
        """Write to our lease row in this transaction, so that nobody takes it before the end."""
        held = c.execute(update(t.lease).where(t.lease.c.epoch == self._epoch).values(**values))
        if held.rowcount != 1:
            raise LeaseLost("another daemon took the journal over", "stop this one")
