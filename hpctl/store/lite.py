"""A SQLite journal read by Python's own sqlite3 module, for the commands that show it.

Importing SQLAlchemy takes longer than all else that `hpctl status` does. What is read, and what an
error means, is as `sql.Store` has it: the contract suite reads every journal both ways.
"""

import sqlite3
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpctl.core.journal import Event
from hpctl.core.model import Health, NodeName
from hpctl.errors import JournalCorrupt, Unavailable
from hpctl.store.rows import (
    DaemonInfo,
    StandbyInfo,
    checked,
    decode,
    health_as_heard,
    info_of,
    standby_of,
    without_ended_jobs,
)

_SCHEMA = "SELECT value FROM hpctl_meta WHERE name = 'schema'"
_EVENTS = "SELECT seq, kind, payload FROM hpctl_events WHERE seq > :after"
_STANDBYS = "SELECT *, (SELECT max(seq) FROM hpctl_events) AS newest FROM hpctl_standbys"
_PAST = "SELECT seq, kind, payload FROM hpctl_past WHERE seq > :after"


class SqliteReader:
    """The events, the agents' facts and the lease of one file. For one thread."""

    def __init__(self, path: Path) -> None:
        """Raises Unavailable (not there, or no journal in it), JournalCorrupt (not ours)."""
        self._name = f"sqlite:///{path}"
        with _reading(f"the journal at {self._name}"):
            self._db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        try:
            found = [row.value for row in self._rows(_SCHEMA)] if self._has("hpctl_meta") else []
            checked(found[0] if found else None, self._name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def events(self, *, past: bool = False) -> Iterator[Event]:
        """As `Store.events`."""
        return (event for _, event in self.numbered(past=past))

    def numbered(
        self, after: int = 0, *, past: bool = False, since: datetime | None = None
    ) -> Iterator[tuple[int, Event]]:
        """As `Store.numbered`."""
        past = past and self._has("hpctl_past")
        query = f"{_PAST} UNION ALL {_EVENTS}" if past else _EVENTS
        with _reading(f"the journal at {self._name}"):
            found: Any = self._db.execute(f"{query} ORDER BY seq", {"after": after})
            for row in found if since is None else without_ended_jobs(found, since):
                yield row[0], decode(*row)

    def health(self) -> Mapping[NodeName, Health]:
        """As `Store.health`."""
        found = self._rows("SELECT * FROM hpctl_agents")
        return health_as_heard(found, next(self._rows("SELECT * FROM hpctl_heard"), None))

    def daemon(self) -> DaemonInfo | None:
        """As `Store.daemon`."""
        row = next(self._rows("SELECT * FROM hpctl_lease"), None)
        return None if row is None else info_of(row)

    def standbys(self) -> list[StandbyInfo]:
        """As `Store.standbys`."""
        return [standby_of(row) for row in self._rows(_STANDBYS)]

    def _has(self, table: str) -> bool:
        return any(self._rows("SELECT 1 AS one FROM sqlite_master WHERE name = ?", table))

    def _rows(self, query: str, *values: str) -> Iterator[Any]:
        """The rows, their columns by name."""
        with _reading(f"the journal at {self._name}"):
            cursor = self._db.execute(query, values)
            row: Any = namedtuple("row", [column[0] for column in cursor.description])  # type: ignore[misc]
            yield from map(row._make, cursor)


def passing(error: sqlite3.Error) -> bool:
    """Whether the trouble is with reaching the file, not with what is in it."""
    if isinstance(error, sqlite3.InterfaceError):
        return True
    # SQLite says OperationalError to a missing table and to a text that is not UTF-8 as well. The
    # first has the generic code, the second is Python's and has none; 3.10 tells no codes.
    unreadable = str(error).startswith(("no such ", "Could not decode "))
    generic = getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR"
    return isinstance(error, sqlite3.OperationalError) and not (unreadable or generic)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if passing(error):
            hint = "is the database up, and its disk well? Until it answers hpctl does nothing"
            raise Unavailable(f"{what} cannot be reached: {error}", hint) from error
        hint = "stop the daemon, keep a copy, restore the newest good one"
        raise JournalCorrupt(f"{what} cannot be read: {error}", hint) from error
