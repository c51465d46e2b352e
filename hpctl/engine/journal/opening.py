"""Open the database of a journal to read it."""

from __future__ import annotations

from hpctl.engine.journal.source import DatabaseRowSource, get_sqlite_path_from_url


def open_journal_row_source(url: str) -> DatabaseRowSource:
    """Open a journal's database to read it: a SQLite file by Python's own module, which costs less
    than importing SQLAlchemy. Raises Unavailable, CorruptJournalError, HpctlError."""
    path = get_sqlite_path_from_url(url)
    if path is not None:
        from hpctl.engine.journal.sqlite_source import SqliteRowSource

        return SqliteRowSource(path)
    from hpctl.engine.journal.database import EngineRowSource, make_database_engine

    return EngineRowSource(make_database_engine(url))
