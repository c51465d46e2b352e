"""A journal checked row by row."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, select
from sqlalchemy.exc import SQLAlchemyError

from hpctl.engine.journal import database as t
from hpctl.engine.journal.copies import (
    AT_ONCE,
    RESTORE_HINT,
    BadRow,
    Checked,
    Problem,
    Tell,
    count_rows,
    open_snapshot,
    ordered_events,
    read_rows,
)
from hpctl.engine.journal.database import make_engine, message_of
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.rows import decode, health_as_heard, info_of, request_of
from hpctl.engine.journal.state import Corrupt, State
from hpctl.engine.journal.store import FIRST, AuditRow, link
from hpctl.toolkit.errors import JournalCorrupt


class _Walk:
    """Reads every row as its readers do. Raises BadRow at the first that is wrong."""

    def __init__(self, c: Connection, tell: Tell) -> None:
        self._c, self._tell = c, tell
        self.rows = count_rows(c)
        self.seq = -1
        self.done, self.total = 0, sum(self.rows.values())
        self.now, self.all = State(), State()
        self.newest: datetime | None = None
        self.digest, self.audit = hashlib.sha256(), FIRST

    def run(self) -> None:
        """All tables."""
        self._each(t.events, ordered_events, self._event)
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
            for row in read_rows(self._c, query):
                last = row[0]
                read(row)
                self.done += 1
                if self.done % AT_ONCE == 0:
                    self._tell(self.done, self.total)
        except JournalCorrupt as error:
            raise BadRow(table.name, last, error, error.hint) from error
        except SQLAlchemyError as error:
            after = f"after {last}"
            raise BadRow(table.name, after, message_of(error), RESTORE_HINT) from error

    def _event(self, row: Any) -> None:
        table = t.past.name if row.old else t.events.name
        event: Event = decode(row.seq, row.kind, row.payload)
        if row.seq == self.seq:
            raise BadRow(table, row.seq, "two events have this number", RESTORE_HINT)
        self.seq = row.seq
        self.digest.update(f"{row.seq}\n{row.kind}\n{row.payload}\n".encode())
        try:
            self.all.fold(event)
            if not row.old:
                self.now.fold(event)
        except Corrupt as error:
            raise BadRow(
                table, row.seq, f"cannot follow the events before: {error}", RESTORE_HINT
            ) from error
        self.newest = max(event.at, self.newest or event.at)

    def _audit_row(self, row: Any) -> None:
        audited = AuditRow(row.seq, row.kind, row.payload, row.digest)
        if row.digest != link(self.audit, row.kind, row.payload):
            why = "does not follow from the rows before it: the audit trail was changed there"
            fix = (
                "compare with a backup and the daemon's log: journalctl -u hpctl-daemon -g digest="
            )
            raise BadRow(t.audit.name, row.seq, why, fix)
        self.audit = row.digest
        _ = audited.event


def examine_journal(c: Connection, name: str, tell: Tell) -> Checked:
    """Return what a check of every row found."""
    walk, problem = _Walk(c, tell), None
    try:
        walk.run()
    except BadRow as bad:
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
        with open_snapshot(url) as c:
            return examine_journal(c, name, tell)
    except JournalCorrupt as error:
        problem = Problem(str(t.meta.name), "", str(error), error.hint)
        return Checked(name, "", {}, None, 0, "", "", problem)


def events(
    url: str, since: datetime | None, recovery: str | None
) -> Iterator[tuple[int, str, str]]:
    """Number, kind and JSON of each event, ended ones too. Raises as `open_snapshot` does."""
    with open_snapshot(url) as c:
        for row in read_rows(c, ordered_events):
            event = decode(row.seq, row.kind, row.payload)
            if since is not None and event.at < since:
                continue
            if recovery in (None, getattr(event, "recovery", "")):
                yield row.seq, row.kind, row.payload
