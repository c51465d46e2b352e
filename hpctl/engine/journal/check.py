"""A journal checked row by row, as a daemon and its commands would read it."""

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

from msgspec import Struct

from hpctl.engine.journal.audit_chain import FIRST, AuditTrailRow, compute_audit_digest
from hpctl.engine.journal.opening import open_journal_row_source
from hpctl.engine.journal.reader import JournalReader, StoredEvent, open_journal_for_reading
from hpctl.engine.journal.rows import (
    decode_event,
    decode_lease_row,
    decode_node_health_rows,
    decode_operator_request,
)
from hpctl.engine.journal.state import EngineState, InconsistentEventError
from hpctl.toolkit.errors import CorruptJournalError

TELL_EVERY = 500
"""Rows from one word about how far it is to the next."""

Tell = Callable[[int, int], None]
"""How many rows are done, of how many."""

RESTORE_HINT = (
    "keep a copy of the journal, stop the daemons, and put the newest good one back:"
    " hpctl journal restore FILE"
)


class JournalProblem(Struct, frozen=True):
    """The first row that is wrong: its table and key, why, and what to do."""

    table: str
    row: str
    why: str
    fix: str


class JournalSummary(Struct, frozen=True):
    """What a journal holds. `digest`: of all events, so that two journals can be compared."""

    journal: str
    schema: str
    rows: dict[str, int]
    newest: datetime | None
    open_recoveries: int
    audit_digest: str
    digest: str
    problem: JournalProblem | None = None


class InvalidRowError(Exception):
    """A row that no journal can hold."""

    def __init__(self, table: str, row: object, why: object, fix: str) -> None:
        super().__init__(why)
        self.problem = JournalProblem(table, str(row), str(why), fix)


class _JournalChecker:
    """Reads every row as its readers do. Raises InvalidRowError at the first that is wrong."""

    def __init__(self, reader: JournalReader, tell: Tell) -> None:
        self._reader, self._tell = reader, tell
        self.rows = reader.counts()
        self.seq = -1
        self.done, self.total = 0, sum(self.rows.values())
        self.now, self.all = EngineState(), EngineState()
        self.newest: datetime | None = None
        self.digest, self.audit = hashlib.sha256(), FIRST

    def run(self) -> None:
        """Read all tables."""
        self._check_table_rows_and_close(
            "hpctl_events", self._reader.stored_events(), self._check_event_row
        )
        if "hpctl_audit" in self.rows:
            self._check_table_rows_and_close(
                "hpctl_audit", self._reader.audit_rows(), self._check_audit_row
            )
        readers: dict[str, Callable[[Any], object]] = {
            "hpctl_agents": lambda row: decode_node_health_rows([row], None),
            "hpctl_heard": lambda row: decode_node_health_rows((), row),
            "hpctl_requests": lambda row: decode_operator_request(row, ""),
            "hpctl_lease": decode_lease_row,
        }
        for table, read in readers.items():
            self._check_table_rows_and_close(table, self._reader.table(table), read)

    def _check_table_rows_and_close(
        self, table: str, rows: Generator[Any, None, None], read: Callable[[Any], object]
    ) -> None:
        with closing(rows):
            self._check_table_rows(table, rows, read)

    def _check_table_rows(
        self, table: str, rows: Iterator[Any], read: Callable[[Any], object]
    ) -> None:
        last: object = "the first"
        while True:
            try:
                row = next(rows, None)
            except CorruptJournalError as error:
                raise InvalidRowError(table, f"after {last}", error, RESTORE_HINT) from error
            if row is None:
                return
            last = row.seq if isinstance(row, StoredEvent | AuditTrailRow) else row[0]
            try:
                read(row)
            except CorruptJournalError as error:
                raise InvalidRowError(table, last, error, error.hint) from error
            self.done += 1
            if self.done % TELL_EVERY == 0:
                self._tell(self.done, self.total)

    def _check_event_row(self, row: StoredEvent) -> None:
        table = "hpctl_past" if row.retired else "hpctl_events"
        event = decode_event(row.seq, row.kind, row.payload)
        if row.seq == self.seq:
            raise InvalidRowError(table, row.seq, "two events have this number", RESTORE_HINT)
        self.seq = row.seq
        self.digest.update(f"{row.seq}\n{row.kind}\n{row.payload}\n".encode())
        try:
            self.all.fold(event)
            if not row.retired:
                self.now.fold(event)
        except InconsistentEventError as error:
            why = f"cannot follow the events before: {error}"
            raise InvalidRowError(table, row.seq, why, RESTORE_HINT) from error
        self.newest = max(event.at, self.newest or event.at)

    def _check_audit_row(self, row: AuditTrailRow) -> None:
        if row.digest != compute_audit_digest(self.audit, row.kind, row.payload):
            why = "does not follow from the rows before it: the audit trail was changed there"
            fix = (
                "compare with a backup and the daemon's log: journalctl -u hpctl-daemon -g digest="
            )
            raise InvalidRowError("hpctl_audit", row.seq, why, fix)
        self.audit = row.digest
        _ = row.event


def check_all_journal_rows(reader: JournalReader, name: str, tell: Tell) -> JournalSummary:
    """Return what a check of every row found."""
    walk, problem = _JournalChecker(reader, tell), None
    try:
        walk.run()
    except InvalidRowError as bad:
        problem = bad.problem
    state = walk.now
    opened = len(state.open_nodes) + len(state.open_jobs) + len(state.open_changes)
    digest = walk.digest.hexdigest()
    schema = reader.schema() or ""
    return JournalSummary(name, schema, walk.rows, walk.newest, opened, walk.audit, digest, problem)


def check_journal_at_url(url: str, tell: Tell) -> JournalSummary:
    """Read everything, as a daemon and its commands would. Raises Unavailable, HpctlError."""
    with closing(open_journal_row_source(url)) as source:
        reader = JournalReader(source)
        try:
            reader.check_schema()
            with reader.snapshot() as moment:
                return check_all_journal_rows(moment, reader.name, tell)
        except CorruptJournalError as error:
            problem = JournalProblem("hpctl_meta", "", str(error), error.hint)
            return JournalSummary(reader.name, "", {}, None, 0, "", "", problem)


def list_journal_events(
    url: str, since: datetime | None, recovery: str | None
) -> Iterator[tuple[int, str, str]]:
    """Yield number, kind and JSON of each event, ended ones too. Raises as
    `open_journal_for_reading` does."""
    with closing(open_journal_for_reading(url)) as reader, reader.snapshot() as moment:
        for row in moment.stored_events():
            event = decode_event(row.seq, row.kind, row.payload)
            if since is not None and event.at < since:
                continue
            if recovery in (None, getattr(event, "recovery", "")):
                yield row.seq, row.kind, row.payload
