"""The one reader of the journal, with every query that reads it.

It reads from a `DatabaseRowSource`: a SQLite file without SQLAlchemy, or any database through it.
The daemon's `JournalStore` is this reader and writes as well; `snapshot` gives one whose every
answer is of the same moment, for checks, backups and restores.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.audit_chain import AuditTrailRow
from hpctl.engine.journal.events import Event, RequestTaken, format_event_kind
from hpctl.engine.journal.opening import open_journal_row_source
from hpctl.engine.journal.rows import (
    DaemonLeaseInfo,
    Row,
    StandbyInfo,
    check_schema,
    decode_event,
    decode_lease_row,
    decode_node_health_rows,
    decode_operator_request,
    decode_standby_row,
    drop_old_ended_job_events,
)
from hpctl.engine.journal.source import DatabaseRowSource
from hpctl.engine.view import Request
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import NodeHealth

TABLES: Final = (
    "hpctl_agents",
    "hpctl_audit",
    "hpctl_details",
    "hpctl_events",
    "hpctl_heard",
    "hpctl_lease",
    "hpctl_meta",
    "hpctl_outbox",
    "hpctl_past",
    "hpctl_proofs",
    "hpctl_requests",
    "hpctl_standbys",
)
"""All tables. Some are younger than others: a journal that no daemon of this release has opened
lacks them."""

_EVENTS = "SELECT seq, kind, payload FROM hpctl_events"
_PAST = "SELECT seq, kind, payload FROM hpctl_past"


class StoredEvent(Struct, frozen=True):
    """A record as it is stored. `retired`: it ended long ago, and no daemon replays it."""

    seq: int
    kind: str
    payload: str
    retired: bool


class LeaseHolder(Struct, frozen=True):
    """Who holds the lease, as every release has written it. `until`: POSIX seconds."""

    host: str
    pid: int
    until: float


class JournalReader:
    """The events, the agents' facts, the operators' requests and the lease.

    For one thread where the source is for one. Every method raises Unavailable and
    CorruptJournalError.
    """

    def __init__(
        self, source: DatabaseRowSource, lease_source: DatabaseRowSource | None = None
    ) -> None:
        """`lease_source` reads the lease, where another connection is to do so."""
        self._source, self._lease_source = source, lease_source or source
        self.position = 0
        """The number of the last event that `events` gave."""

    @property
    def name(self) -> str:
        """Return the URL of the database without its password."""
        return self._source.name

    def close(self) -> None:
        """Let go of the database."""
        self._source.close()

    @contextmanager
    def snapshot(self) -> Iterator["JournalReader"]:
        """Enter a reader whose every answer is of the same moment. For one thread."""
        with self._source.snapshot() as source:
            yield JournalReader(source)

    def schema(self) -> str | None:
        """Return the number of the schema; None where there is no journal."""
        if "hpctl_meta" not in self._source.tables():
            return None
        row = self._first("SELECT value FROM hpctl_meta WHERE name = 'schema'")
        return None if row is None else str(row.value)

    def check_schema(self) -> None:
        """Raise Unavailable where there is no journal yet, or CorruptJournalError where it is of a
        release that this one cannot read."""
        check_schema(self.schema(), self.name)

    def check_cluster(self, cluster: str) -> None:
        """Raise HpctlError where the journal is another cluster's."""
        row = self._first("SELECT value FROM hpctl_meta WHERE name = 'cluster'")
        if row is not None and row.value != cluster:
            raise HpctlError(
                f"the database belongs to the cluster {row.value!r}, but this daemon is of the "
                f"cluster {cluster!r}",
                "give each cluster a separate database_url; if this cluster was renamed, run:"
                " DELETE FROM hpctl_meta WHERE name = 'cluster'",
            )

    def events(self, after: int = 0, *, past: bool = False) -> Iterator[Event]:
        """Yield every event in order, from the one with number `after` + 1 on; with `past` those
        that were retired as well. Raises CorruptJournalError at the first that cannot be read."""
        return (event for _, event in self.list_numbered_events(after, past=past))

    def list_numbered_events(
        self, after: int = 0, *, past: bool = False, since: datetime | None = None
    ) -> Iterator[tuple[int, Event]]:
        """Yield the events, each with its number: what follows the journal resumes after the last
        one. With `since` less: see `rows.without_ended_jobs`."""
        query = f"{_EVENTS} WHERE seq > :after"
        if past and "hpctl_past" in self._source.tables():
            # In one statement: between two an event might move, and be in neither.
            query = f"SELECT * FROM ({_PAST} WHERE seq > :after UNION ALL {query}) AS stored"
        with self._source.rows(f"{query} ORDER BY seq", {"after": after}) as rows:
            found: Iterable[Row] = rows if since is None else drop_old_ended_job_events(rows, since)
            for row in found:
                event = decode_event(*row)
                self.position = row[0]
                yield row[0], event

    def newer(self, after: int, most: int) -> list[tuple[int, Event]]:
        """Return the next events with their numbers."""
        query = f"{_EVENTS} WHERE seq > :after ORDER BY seq LIMIT :most"
        with self._source.rows(query, {"after": after, "most": most}) as rows:
            return [(row.seq, decode_event(*row)) for row in rows]

    def newest(self) -> int:
        """Return the number of the last event, 0 where there is none."""
        row = self._first("SELECT max(seq) AS newest FROM hpctl_events")
        found: int = row.newest or 0
        return found

    def list_retired_recovery_ids(self) -> frozenset[RecoveryId]:
        """Return the ids of retired recoveries: no new recovery may have one of them."""
        query = "SELECT DISTINCT recovery FROM hpctl_past WHERE recovery <> ''"
        with self._source.rows(query) as rows:
            return frozenset(RecoveryId(row.recovery) for row in rows)

    def stored_events(
        self, until: int | None = None, most: int | None = None
    ) -> Generator[StoredEvent, None, None]:
        """Yield every record as it is stored, retired ones too.

        `until`: the last number. `most`: so many, the oldest first.
        """
        query = "SELECT seq, kind, payload, 0 AS retired FROM hpctl_events"
        if "hpctl_past" in self._source.tables():
            query = f"SELECT seq, kind, payload, 1 AS retired FROM hpctl_past UNION ALL {query}"
        query = f"SELECT * FROM ({query}) AS stored"
        values = {}
        if until is not None:
            query += " WHERE seq <= :until"
            values["until"] = until
        query += " ORDER BY seq"
        if most is not None:
            query += " LIMIT :most"
            values["most"] = most
        with self._source.rows(query, values) as rows:
            for row in rows:
                yield StoredEvent(row.seq, row.kind, row.payload, bool(row.retired))

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table that is there."""
        there = self._source.tables()
        found: dict[str, int] = {}
        for table in TABLES:
            if table in there:
                found[table] = self._first(f"SELECT count(*) AS rows_there FROM {table}").rows_there
        return found

    def table(self, name: str) -> Generator[Any, None, None]:
        """Yield the rows of one of TABLES, in no order."""
        assert name in TABLES
        with self._source.rows(f"SELECT * FROM {name}") as rows:
            yield from rows

    def health(self) -> Mapping[NodeName, NodeHealth]:
        """Return what the agents said last, by node."""
        heard = self._first("SELECT * FROM hpctl_heard")
        with self._source.rows("SELECT * FROM hpctl_agents") as agents:
            return decode_node_health_rows(agents, heard)

    def requests(self) -> list[Request]:
        """Return the requests that no daemon has taken yet, oldest first. One in a SQLite file is
        root's or the daemon's user's; in a database that several hosts write to, a row proves
        nothing."""
        proof = "written to the journal's file" if self._source.is_file else ""
        query = "SELECT * FROM hpctl_requests WHERE NOT taken ORDER BY id"
        with self._source.rows(query) as rows:
            found = [decode_operator_request(row, proof) for row in rows]
        details = self._details() if found else {}
        return [replace(one, detail=details.get(one.id, "")) for one in found]

    def _details(self) -> dict[int, str]:
        """Return what else the requests say that no daemon has taken yet."""
        if "hpctl_details" not in self._source.tables():
            return {}
        with self._source.rows("SELECT * FROM hpctl_details") as rows:
            return {row.request: str(row.detail) for row in rows}

    def proofs(self) -> dict[int, str]:
        """Return the credentials of requests that no daemon has taken yet."""
        with self._source.rows("SELECT * FROM hpctl_proofs") as rows:
            return {row.request: str(row.credential) for row in rows}

    def answer(self, request: int) -> RequestTaken | None:
        """Return what the daemon answered to a request, once it did."""
        query = "SELECT taken FROM hpctl_requests WHERE id = :request"
        row = self._first(query, {"request": request})
        if row is None or not row.taken:
            return None
        query = f"{_EVENTS} WHERE kind = :kind ORDER BY seq DESC"
        with self._source.rows(query, {"kind": format_event_kind(RequestTaken)}) as rows:
            for row in rows:
                event = decode_event(*row)
                if isinstance(event, RequestTaken) and event.request == request:
                    return event
        return None

    def audit_trail(self) -> list[AuditTrailRow]:
        """Return who asked what, oldest first."""
        if "hpctl_audit" not in self._source.tables():
            return []
        return list(self.audit_rows())

    def audit_rows(self) -> Generator[AuditTrailRow, None, None]:
        """Yield the rows of the audit trail, oldest first."""
        with self._source.rows("SELECT * FROM hpctl_audit ORDER BY seq") as rows:
            for row in rows:
                yield AuditTrailRow(row.seq, row.kind, row.payload, row.digest)

    def outbox(self) -> str | None:
        """Return what `Store.save_outbox` has kept."""
        if "hpctl_outbox" not in self._source.tables():
            return None
        row = self._first("SELECT payload FROM hpctl_outbox")
        return None if row is None else row.payload

    def daemon(self) -> DaemonLeaseInfo | None:
        """Return who holds, or last held, the lease."""
        with self._lease_source.rows("SELECT * FROM hpctl_lease") as rows:
            row = next(rows, None)
        return None if row is None else decode_lease_row(row)

    def lease_holder(self) -> LeaseHolder | None:
        """Return who holds, or last held, the lease, of a journal of any release."""
        row = self._first("SELECT host, pid, until FROM hpctl_lease")
        return None if row is None else LeaseHolder(row.host, row.pid, row.until)

    def standbys(self) -> list[StandbyInfo]:
        """Return the standbys, and how far each is behind."""
        newest = "(SELECT max(seq) FROM hpctl_events) AS newest"
        query = f"SELECT hpctl_standbys.*, {newest} FROM hpctl_standbys ORDER BY host"
        with self._lease_source.rows(query) as rows:
            return [decode_standby_row(row) for row in rows]

    def find_standby_heard_since(self, stamp: float) -> str | None:
        """Return the host of a standby that was heard after a time, in POSIX seconds."""
        if "hpctl_standbys" not in self._source.tables():
            return None
        query = "SELECT host FROM hpctl_standbys WHERE heartbeat > :stamp"
        row = self._first(query, {"stamp": stamp})
        return None if row is None else row.host

    def _first(self, query: str, values: Mapping[str, object] | None = None) -> Any:
        """Return the first row, or None."""
        with self._source.rows(query, values) as rows:
            return next(rows, None)


def open_journal_for_reading(url: str) -> JournalReader:
    """Open a journal to read it.

    Raises Unavailable (not there, or no journal in it), CorruptJournalError (of a release that this
    one cannot read), HpctlError (a URL without a driver).
    """
    source = open_journal_row_source(url)
    try:
        reader = JournalReader(source)
        reader.check_schema()
    except BaseException:
        source.close()
        raise
    return reader
