"""A journal as a whole: checked row by row, copied to a file, and put back from one.

The same on every database: rows are read in one transaction, so that a copy is of one moment, and
written by table. A copy is a SQLite file, whatever it is a copy of.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Engine, Table, func, inspect, literal, select, union_all

from hpctl.engine.journal import database as t
from hpctl.engine.journal.database import make_engine, reading
from hpctl.engine.journal.store import Store

AT_ONCE = 500
"""Rows that are written, and counted, at once."""


STANDBY_S = 30.0
"""For how long a standby's word says that it lives."""


SAME = 200
"""So many of the oldest events tell one journal from another."""


Tell = Callable[[int, int], None]
"""How many rows are done, of how many."""


RESTORE_HINT = (
    "keep a copy of the journal, stop the daemons, and put the newest good one back:"
    " hpctl journal restore FILE"
)


all_events = union_all(
    select(t.past.c.seq, t.past.c.kind, t.past.c.payload, literal(1).label("old")),
    select(t.events.c.seq, t.events.c.kind, t.events.c.payload, literal(0).label("old")),
).subquery()


ordered_events = select(all_events).order_by(all_events.c.seq)


TRANSIENT_TABLES = (t.lease.name, t.standbys.name)
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


class BadRow(Exception):
    """A row that no journal can hold."""

    def __init__(self, table: str, row: object, why: object, fix: str) -> None:
        super().__init__(why)
        self.problem = Problem(str(table), str(row), str(why), fix)  # SQLAlchemy's names are no str


@contextmanager
def connect_snapshot(engine: Engine) -> Iterator[Connection]:
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
def open_snapshot(url: str) -> Iterator[Connection]:
    """A snapshot of a journal. Raises Unavailable, JournalCorrupt, HpctlError."""
    Store(url, write=False).close()
    engine = make_engine(url, write=False)
    try:
        with reading("the journal"), connect_snapshot(engine) as c:
            yield c
    finally:
        engine.dispose()


def _tables(c: Connection) -> list[Table]:
    """The journal's tables that are there: some are younger than others."""
    there = set(inspect(c).get_table_names())
    return [table for table in t.metadata.sorted_tables if table.name in there]


def read_rows(c: Connection, query: Any) -> Iterator[Any]:
    """Yield the rows of a query without holding them all."""
    with closing(c.execute(query.execution_options(yield_per=AT_ONCE))) as found:
        yield from found


def count_rows(c: Connection) -> dict[str, int]:
    """Return the number of rows of each table."""
    tables = _tables(c)
    return {
        one.name: c.execute(select(func.count()).select_from(one)).scalar_one() for one in tables
    }
