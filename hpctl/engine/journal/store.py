"""The Journal on SQLAlchemy Core: SQLite by default, MariaDB or PostgreSQL for several heads.

One writer. On SQLite the file's directory carries an advisory lock; on every database a lease
row carries an epoch, and each append checks the epoch in its own transaction, so that a daemon
that lost the lease while it slept can no longer write. It reads as a `JournalReader`.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.audit_chain import AUDITED, FIRST, compute_audit_digest
from hpctl.engine.journal.database import (
    EngineRowSource,
    convert_database_read_errors,
    convert_database_write_errors,
    get_database_error_message,
    make_database_engine,
    migrate_journal,
)
from hpctl.engine.journal.events import Event, RequestTaken
from hpctl.engine.journal.reader import JournalReader
from hpctl.engine.journal.rows import (
    SCHEMA_VERSION,
    DaemonIdentity,
    DaemonLeaseInfo,
    check_schema,
    encode_event,
    encode_last_heard_row,
    encode_node_health_row,
)
from hpctl.engine.journal.source import get_sqlite_path_from_url
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import CorruptJournalError, HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import NodeHealth

_events = select(t.events.c.seq, t.events.c.kind, t.events.c.payload)
_AT_ONCE = 500
"""Rows named in one statement: databases have limits."""
_NO_EPOCH = -1
STANDBY_GONE_S = 86400.0
"""A standby that was silent for so long is forgotten."""
_schema_row = select(t.meta.c.value).where(t.meta.c.name == "schema")


log = logging.getLogger(__name__)

Proves = Callable[[int], str]


def _add_audit_rows(c: Connection, batch: Sequence[Event]) -> None:
    """Add what is audited of a batch, in the batch's own transaction."""
    audited = [encode_event(e) for e in batch if isinstance(e, AUDITED)]
    if not audited:
        return
    newest = select(t.audit.c.digest).order_by(t.audit.c.seq.desc()).limit(1)
    digest = c.execute(newest).scalar() or FIRST
    for kind, payload in audited:
        digest = compute_audit_digest(digest, kind, payload)
        row = c.execute(insert(t.audit).values(kind=kind, payload=payload, digest=digest))
        (seq,) = row.inserted_primary_key or (0,)
        log.info("audit=%d kind=%s digest=%s", seq, kind, digest)


class LeaseHeldByOtherError(HpctlError):
    """Another daemon owns the journal."""


class LeaseLostError(HpctlError):
    """Another daemon took the journal over; this one must stop at once."""


class JournalStore(JournalReader):
    """The journal, the agents' facts, the operators' requests and the lease, to write them."""

    def __init__(self, url: str) -> None:
        """Open by SQLAlchemy URL, and make the tables that are missing. Safe in any thread.

        Raises Unavailable, CorruptJournalError (not ours), HpctlError (a URL without a driver).
        """
        self._engine: Engine = make_database_engine(url)
        self._file = get_sqlite_path_from_url(url)
        served = self._engine.dialect.name != "sqlite"
        self._writer = make_database_engine(url, leader=True) if served else self._engine
        super().__init__(EngineRowSource(self._engine), EngineRowSource(self._writer))
        self._epoch = 0
        try:
            with convert_database_read_errors(f"the journal at {self.name}"):
                self._refuse_empty_journal_file()
                self._create_or_migrate_schema()
                self.check_schema()
        except BaseException:
            self._engine.dispose()
            raise
        self._inode = self._read_journal_file_identity()

    def _refuse_empty_journal_file(self) -> None:
        if self._file is not None and self._file.exists() and not self._file.stat().st_size:
            raise CorruptJournalError(
                f"the journal {self._file} is an empty file: its contents were lost",
                "restore the newest good backup (hpctl journal restore FILE); remove the empty "
                "file only if no daemon ever ran here",
            )

    def _create_or_migrate_schema(self) -> None:
        """Make or migrate what is missing. Two daemons may try at once, on MariaDB table by table:
        whatever one of them finds made by the other, it finds there when it looks again.
        """
        for left in reversed(range(len(t.metadata.tables) + 2)):
            try:
                found = self.schema()
                old = parse_count(found or "")
                if 0 < old < SCHEMA_VERSION:
                    migrate_journal(self._engine, old, self._file)
                    return
                check_schema(found or str(SCHEMA_VERSION), self.name)
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

    def _read_journal_file_identity(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_journal_file_unmoved(self) -> None:
        if self._read_journal_file_identity() != self._inode:
            raise OSError(f"the journal {self._file} was moved or replaced while it was in use")

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()
        self._writer.dispose()

    def claim(self, cluster: str) -> None:
        """Note once that this is that cluster's journal. Raises HpctlError where it is another
        cluster's, Unavailable."""
        note = insert(t.meta).values(name="cluster", value=cluster)
        with (
            convert_database_read_errors("the journal"),
            contextlib.suppress(IntegrityError),
            self._engine.begin() as c,
        ):
            c.execute(note)
        self.check_cluster(cluster)

    def append(self, batch: Sequence[Event]) -> None:
        """Append all events or none, on stable storage when it returns. Raises LeaseLostError,
        OSError."""
        if not batch:
            return
        rows = [dict(zip(("kind", "payload"), encode_event(e), strict=True)) for e in batch]
        taken = [e.request for e in batch if isinstance(e, RequestTaken)]
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the journal"), self._writer.begin() as c:
            self._require_lease(c)
            c.execute(insert(t.events), rows)
            _add_audit_rows(c, batch)
            if taken:
                c.execute(update(t.requests).where(t.requests.c.id.in_(taken)).values(taken=True))
                c.execute(t.proofs.delete().where(t.proofs.c.request.in_(taken)))
                c.execute(t.details.delete().where(t.details.c.request.in_(taken)))

    def retire(self, over: Callable[[Event], datetime | None], most: int | None = None) -> int:
        """Move what is over into the past; answers how many events. `over`: when that ended which
        an event belongs to, the same for all its events; None where it stays. No further day is
        begun, oldest first, once `most` are moved.

        Raises LeaseLostError, OSError; Unavailable, CorruptJournalError. What was moved before
        stays moved.
        """
        days: dict[int, dict[int, str]] = {}
        for seq, event in JournalReader(self._source).list_numbered_events():
            ended = over(event)
            if ended is not None:
                day = ended.astimezone(UTC).toordinal()
                days.setdefault(day, {})[seq] = getattr(event, "recovery", "")
        moved = 0
        for day in sorted(days):
            if most is not None and moved >= most:
                break
            self._retire_day_events(day, days[day])
            moved += len(days[day])
        return moved

    def _retire_day_events(self, day: int, recoveries: Mapping[int, str]) -> None:
        """One day in one transaction: never half of a recovery, which would be corruption."""
        numbers = list(recoveries)
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the journal"), self._writer.begin() as c:
            for first in range(0, len(numbers), _AT_ONCE):
                these = t.events.c.seq.in_(numbers[first : first + _AT_ONCE])
                found = c.execute(_events.where(these)).all()
                rows = [
                    {**row._mapping, "day": day, "recovery": recoveries[row.seq]} for row in found
                ]
                c.execute(insert(t.past), rows)
                c.execute(t.events.delete().where(these))
            # Last, for as long as the lease's row is locked it cannot be renewed.
            self._require_lease(c)

    def forget(self, before: datetime) -> None:
        """Delete for good what was over on a day before that time's. Raises LeaseLostError,
        OSError."""
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the journal"), self._writer.begin() as c:
            self._require_lease(c)
            c.execute(t.past.delete().where(t.past.c.day < before.astimezone(UTC).toordinal()))
            old = t.requests.c.taken.is_(True) & (t.requests.c.at < before.timestamp())
            c.execute(t.requests.delete().where(old))

    def record(self, facts: Sequence[NodeHealth]) -> None:
        """Remember what a few agents said last, durably. Raises OSError."""
        rows = {h.generation.node: encode_node_health_row(h) for h in facts}
        if not rows:
            return
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the agents' facts"), self._writer.begin() as c:
            c.execute(t.agents.delete().where(t.agents.c.node.in_(list(rows))))
            c.execute(insert(t.agents), list(rows.values()))
            self._require_lease(c)

    def store_last_heard_times(self, heard: Mapping[NodeName, datetime]) -> None:
        """Remember when each node was last heard, all nodes in one row. Raises OSError."""
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the agents' times"), self._writer.begin() as c:
            c.execute(t.heard.delete())
            c.execute(insert(t.heard).values(**encode_last_heard_row(heard)))
            self._require_lease(c)

    def ask(  # noqa: PLR0913 -- a row of its table
        self,
        verb: str,
        target: str,
        by: str,
        at: datetime,
        prove: Proves | None = None,
        *,
        detail: str = "",
    ) -> int:
        """Append a request for the daemon; answers its number. `prove` makes the credential of a
        number, where a row alone proves nothing. Raises HpctlError."""
        values = {"at": at.timestamp(), "verb": verb, "target": target, "asked_by": by}
        try:
            with self._engine.begin() as c:
                result = c.execute(insert(t.requests).values(**values, taken=False))
                number = int((result.inserted_primary_key or (0,))[0])
                if detail:
                    c.execute(insert(t.details).values(request=number, detail=detail))
                if prove is not None and c.dialect.name != "sqlite":
                    c.execute(insert(t.proofs).values(request=number, credential=prove(number)))
                return number
        except SQLAlchemyError as error:
            raise HpctlError(
                "cannot write the request into hpctl's journal:"
                f" {get_database_error_message(error)}",
                "run the command as the daemon's user or with sudo",
            ) from error

    def save_outbox(self, payload: str) -> None:
        """Keep it in place of the one before. Raises LeaseLostError, OSError."""
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the outbox"), self._writer.begin() as c:
            self._require_lease(c)
            c.execute(t.outbox.delete())
            c.execute(insert(t.outbox).values(id=1, payload=payload))

    def take_lease(
        self, me: DaemonIdentity, seen: DaemonLeaseInfo | None, now: datetime, lease_s: float
    ) -> None:
        """Become the one writer, under the next epoch. `seen`: the lease as it stood when it was
        found to have run out. Raises LeaseHeldByOtherError where it was renewed or taken since,
        Unavailable, CorruptJournalError.
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
        held = LeaseHeldByOtherError(
            "this daemon waits: another hpctl daemon works on the journal",
            "Nothing to do: this daemon takes over when the other one stops.",
        )
        try:
            with convert_database_read_errors("the lease"), self._writer.begin() as c:
                if seen is None:
                    c.execute(insert(t.lease).values(id=1, **values))
                else:
                    same = (t.lease.c.epoch == seen.epoch) & (t.lease.c.beat == seen.beat)
                    if c.execute(update(t.lease).where(same).values(**values)).rowcount != 1:
                        raise held
                gone = t.standbys.c.heartbeat < stamp - STANDBY_GONE_S
                c.execute(t.standbys.delete().where(gone | (t.standbys.c.address == me.address)))
        except CorruptJournalError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            raise held from error
        self._epoch = epoch

    def renew_lease(
        self, now: datetime, lease_s: float, last_cycle_s: float, trouble: str, mode: str
    ) -> None:
        """Say that the daemon lives. Raises LeaseLostError where another took over, OSError."""
        self._check_journal_file_unmoved()
        with convert_database_write_errors("the lease"), self._writer.begin() as c:
            self._update_lease_row(
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
        """Let go of it, for the standby at that address first. Raises LeaseLostError, OSError."""
        with convert_database_write_errors("the lease"), self._writer.begin() as c:
            values = {"lease_s": 0.0, "until": now.timestamp(), "successor": successor}
            self._update_lease_row(c, beat=t.lease.c.beat + 1, **values)
        self.block_writes_until_lease()

    def block_writes_until_lease(self) -> None:
        """Refuse every write of the daemon's with LeaseLostError until the lease is taken."""
        self._epoch = _NO_EPOCH

    def record_standby_heartbeat(self, me: DaemonIdentity, beat: int, now: datetime) -> None:
        """Say that this standby lives, and how far it has read. Raises OSError."""
        keep = ("host", "address", "pid", "version")
        values = {name: getattr(me, name) for name in keep}
        values |= {"beat": beat, "heartbeat": now.timestamp(), "seq": self.position}
        with convert_database_write_errors("the standby's row"), self._writer.begin() as c:
            c.execute(t.standbys.delete().where(t.standbys.c.address == me.address))
            c.execute(insert(t.standbys).values(**values))

    def delete_standby(self, address: str) -> None:
        """Take the row of a standby away that ends. Raises OSError."""
        with convert_database_write_errors("the standby's row"), self._writer.begin() as c:
            c.execute(t.standbys.delete().where(t.standbys.c.address == address))

    def _require_lease(self, c: Connection) -> None:
        """In a daemon's transaction: the lease is still ours, and stays so until the end."""
        if self._epoch:
            self._update_lease_row(c, id=1)

    def _update_lease_row(self, c: Connection, **values: object) -> None:
        """Write to our lease row in this transaction, so that no standby takes it meanwhile."""
        held = c.execute(update(t.lease).where(t.lease.c.epoch == self._epoch).values(**values))
        if held.rowcount != 1:
            raise LeaseLostError(
                "another hpctl daemon took over the journal, so this one may not change it",
                "stop this daemon if you did not start both on purpose",
            )
