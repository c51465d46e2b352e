"""Where the rows of a journal come from, whatever database keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote


class DatabaseRowSource(Protocol):
    """A database that answers SELECT statements. Parameters are named: `:after`.

    Every method raises Unavailable where the database cannot be reached, and CorruptJournalError
    where its answer cannot be read.
    """

    @property
    def name(self) -> str:
        """Return the URL without its password."""

    @property
    def is_file(self) -> bool:
        """Return whether the journal is a file of this host: who may write it is root or the
        daemon's user."""

    def rows(
        self, query: str, values: Mapping[str, object] | None = None
    ) -> AbstractContextManager[Iterator[Any]]:
        """Enter the rows of an answer, each with its columns as attributes and with `_asdict()`.

        The connection is free again as soon as the context is left: an open answer would hold the
        next reader of the connection to its time.
        """

    def tables(self) -> frozenset[str]:
        """Return the names of the tables that are there."""

    def snapshot(self) -> AbstractContextManager[DatabaseRowSource]:
        """Enter a source whose every answer is of the same moment. For one thread."""

    def close(self) -> None:
        """Let go of the database."""


def get_sqlite_path_from_url(url: str) -> Path | None:
    """Return the file that a URL names; None for another database, or for none in a file."""
    scheme, _, path = url.partition("?")[0].partition(":///")
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(unquote(path))


def make_sqlite_url(file: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{quote(str(file.absolute()))}"
