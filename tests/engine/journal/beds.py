"""The four journals under one suite: the fake, SQLite, PostgreSQL and MariaDB."""

from pathlib import Path
from typing import Protocol

from sqlalchemy import text

from hpctl.engine.journal.database import make_database_engine
from hpctl.engine.journal.reader import JournalReader, open_journal_for_reading
from hpctl.engine.journal.store import JournalStore
from tests.engine.journal.servers import Server
from tests.fakes.journal import Disk, MemoryJournal

AnyJournal = JournalStore | MemoryJournal


class Bed(Protocol):
    """A place where journals are, and how to open one there."""

    def open(self) -> AnyJournal: ...


class FakeBed:
    """A disk that is a value."""

    def __init__(self) -> None:
        self.disk = Disk()

    def open(self) -> MemoryJournal:
        return MemoryJournal(self.disk)

    def close(self) -> None:
        """Nothing is open."""


class DatabaseBed:
    """A database at a URL; every store that was opened there is closed with it."""

    def __init__(self, url: str, server: Server | None = None) -> None:
        self.url = url
        self.server = server
        self._open: list[JournalReader] = []

    def open(self) -> JournalStore:
        store = JournalStore(self.url)
        self._open.append(store)
        return store

    def read(self) -> JournalReader:
        """As commands read it."""
        reader = open_journal_for_reading(self.url)
        self._open.append(reader)
        return reader

    def execute(self, statement: str, **values) -> None:
        """Do to the tables what no hpctl does. Makes nothing."""
        engine = make_database_engine(self.url)
        try:
            with engine.begin() as c:
                c.execute(text(statement), values)
        finally:
            engine.dispose()

    @property
    def file(self) -> Path:
        """SQLite's file."""
        return Path(self.url.removeprefix("sqlite:///"))

    def close(self) -> None:
        for store in self._open:
            store.close()
