"""Room for the journal that no other user of its file system can take.

The state directory often shares a file system with /tmp, so a user who fills that would stop every
recovery: what cannot be journaled is not done. Bytes that are only free do not help, because a
program that keeps writing takes them in the same moment. So the room is made in advance, inside
the journal's own files, where SQLite writes in place:

- the database has RESERVE bytes of free pages, which a new event takes before the file grows;
- the write-ahead log has WAL_ROOM bytes. SQLite writes it from the start again after each
  checkpoint (https://www.sqlite.org/wal.html, "Avoiding Excessively Large WAL Files").

The third part is a file beside the journal, which is deleted where a daemon starts on a full disk:
SQLite makes the log and its index at the start, and a name and a few blocks must be free for them.
A file system that copies on write (btrfs, ZFS) gives no guarantee for the first two: there the file
is all the reserve.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

RESERVE: Final = 16 * 2**20
"""Bytes of free pages in the database: some 30,000 events, or a thousand recoveries."""
WAL_ROOM: Final = 8 * 2**20
"""Bytes of the write-ahead log. A checkpoint is due at 1000 pages (4 MiB), so 4 MiB are left for
the transaction that reaches it."""
BALLAST: Final = 16 * 2**20
"""Bytes of the file beside the journal."""
BALLAST_NAME: Final = "reserve"
ROOM: Final = 256 * 2**20
"""Bytes that must be free before the reserve is made: it must not be what fills the disk."""
FULL: Final = 2**20
"""With fewer bytes free the disk counts as full."""
LOOK_S: Final = 60.0
"""How often the reserve is looked at, in seconds."""
_BUSY_S: Final = 1.0


class JournalDiskReserve:
    """The reserve of one journal in a file. For one thread."""

    def __init__(self, journal: Path) -> None:
        """Make nothing yet. `journal`: the SQLite file."""
        self._journal = journal
        self._ballast = journal.with_name(BALLAST_NAME)
        self._next = 0.0

    def allocate_reserve_if_due(self) -> None:
        """Make what of the reserve is missing, where the disk has room. Raises nothing."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_S
        try:
            self.make()
        except (OSError, sqlite3.Error) as error:
            log.warning("the journal's reserve cannot be made: %s", error)

    def make(self) -> None:
        """Make what is missing, where the disk has room. Raises OSError, sqlite3.Error."""
        if _count_free_bytes(self._journal.parent) < ROOM:
            return
        with closing(self._connect()) as db:
            self._preallocate_journal_pages(db)
        self._create_ballast_file()

    def free_space_for_start(self) -> None:
        """Delete the file beside the journal where the disk is full: call it before the journal is
        opened. Raises nothing."""
        if self._is_disk_full():
            self._delete_ballast_file()

    def free_space_for_write(self) -> None:
        """Make the reserve usable where the disk is full: call it where the journal, which is open,
        could not be written. Raises nothing.

        The log is begun from its start again, which needs no room; then the file beside the journal
        is deleted.
        """
        if not self._is_disk_full():
            return
        try:
            self._checkpoint_wal()
        except sqlite3.Error as error:
            log.warning("the journal's log cannot be begun again: %s", error)
        self._delete_ballast_file()
        self._next = 0.0

    def _is_disk_full(self) -> bool:
        with suppress(OSError):
            return _count_free_bytes(self._journal.parent) < FULL
        return False

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._journal, timeout=_BUSY_S, isolation_level=None)

    def _preallocate_journal_pages(self, db: sqlite3.Connection) -> None:
        """Write a table and drop it: its pages stay in the file, free, and the log stays as long as
        its longest transaction."""
        db.execute("DROP TABLE IF EXISTS hpctl_reserve")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        count = db.execute("PRAGMA freelist_count").fetchone()[0]
        wants_pages = size * count < RESERVE // 2
        if not wants_pages and _get_file_size(self._wal_path) >= WAL_ROOM:
            return
        # What is free already is taken first, so the whole reserve has to be written.
        rows = RESERVE // WAL_ROOM if wants_pages else 1
        db.execute("CREATE TABLE hpctl_reserve (filler BLOB)")
        for _ in range(rows):
            db.execute("INSERT INTO hpctl_reserve VALUES (zeroblob(?))", (WAL_ROOM,))
        db.execute("DROP TABLE hpctl_reserve")

    @property
    def _wal_path(self) -> Path:
        return self._journal.with_name(f"{self._journal.name}-wal")

    def _checkpoint_wal(self) -> None:
        """Copy the log into the database, so that the next event is written at the log's start."""
        with closing(self._connect()) as db:
            db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def _create_ballast_file(self) -> None:
        """Make the file where it is not whole. Raises OSError."""
        if _get_file_size(self._ballast) == BALLAST:
            return
        self._ballast.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._ballast, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, BALLAST)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _delete_ballast_file(self) -> None:
        try:
            self._ballast.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("the journal's reserve cannot be freed: %s", error)
            return
        log.warning("trouble=the disk of %s is full; the reserve is used", self._journal.parent)


def _count_free_bytes(directory: Path) -> int:
    """Return how many bytes an ordinary user may still write. Raises OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _get_file_size(file: Path) -> int:
    """Return a regular file's size in bytes; 0 where there is none."""
    with suppress(OSError):
        found = file.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0
