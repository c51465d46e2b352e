"""From each released schema of the journal to the next, forward only.

A migration adds: what a former release wrote stays as it is. On SQLite it is tried on a copy
first, and the copy of before is kept beside the journal. One transaction on SQLite and PostgreSQL;
MariaDB commits each change of a table by itself, so a step that finds its columns there goes on.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import Column, Connection, Engine, func, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from hpctl.errors import JournalCorrupt
from hpctl.store import engine as t

log = logging.getLogger(__name__)


def _add(c: Connection, *columns: Column[object]) -> None:
    for column in columns:
        table = column.table.name
        if column.name not in {one["name"] for one in inspect(c).get_columns(table)}:
            wanted = CreateColumn(column).compile(dialect=c.dialect)
            c.execute(text(f"ALTER TABLE {table} ADD COLUMN {wanted}"))


def _to_2(c: Connection) -> None:
    """A leader that standbys watch: what they count, and where agents find it."""
    _add(c, t.lease.c.beat, t.lease.c.lease_s, t.lease.c.address, t.lease.c.successor)


STEPS: Final[dict[int, Callable[[Connection], None]]] = {2: _to_2}
"""What makes a schema of that number from the one before it. New tables need no step."""


def migrate(engine: Engine, found: int, file: Path | None) -> None:
    """Bring a journal of schema `found` up to date. `file`: SQLite's.

    Raises JournalCorrupt where the trial fails: nothing was changed then.
    """
    newest = max(STEPS)
    if file is not None:
        kept = file.with_name(f"{file.name}.schema-{found}")
        try:
            _try(engine, found, file, kept)
        except (SQLAlchemyError, OSError) as error:
            raise JournalCorrupt(
                f"the journal cannot be migrated from schema {found} to {newest}: {error}",
                f"nothing was changed: make room beside {file}, or run the hpctl that wrote it",
            ) from error
        log.info("the journal as it was before its migration is kept in %s", kept)
    _run(engine, found)
    log.warning("the journal was migrated from schema %d to %d", found, newest)


def _run(engine: Engine, found: int) -> None:
    with engine.begin() as c:
        if c.dialect.name == "sqlite":
            c.execute(text("BEGIN IMMEDIATE"))
        t.metadata.create_all(c)
        for number in range(found + 1, max(STEPS) + 1):
            STEPS[number](c)
        row = update(t.meta).where(t.meta.c.name == "schema")
        c.execute(row.values(value=str(max(STEPS))))


def _try(engine: Engine, found: int, file: Path, kept: Path) -> None:
    """Keep a copy, migrate another one, and count what is in it."""
    trial = file.with_name(f"{file.name}.trial")
    for old in (kept, trial):
        old.unlink(missing_ok=True)
    with engine.connect() as c:
        alone = c.execution_options(isolation_level="AUTOCOMMIT")
        alone.execute(text("VACUUM INTO :path"), {"path": str(kept)})
    kept.chmod(file.stat().st_mode & 0o777)
    shutil.copy(kept, trial)
    other = t.make_engine(f"sqlite:///{quote(str(trial))}", write=True)
    count = select(func.count()).select_from(t.events)
    try:
        _run(other, found)
        with engine.connect() as before, other.connect() as after:
            counts = [c.execute(count).scalar() for c in (before, after)]
            after.execute(select(t.lease)).all()
        if counts[0] != counts[1]:
            raise OSError(f"of {counts[0]} events the trial has {counts[1]}")
    finally:
        other.dispose()
        for name in (trial.name, f"{trial.name}-wal", f"{trial.name}-shm"):
            trial.with_name(name).unlink(missing_ok=True)
