"""The journal goes on where another user fills the disk; the reserve is made again afterwards."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpctl.engine.journal import reserve as reserve_module
from hpctl.engine.journal.reserve import BALLAST, RESERVE, WAL_ROOM, JournalDiskReserve
from hpctl.engine.journal.source import make_sqlite_url
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit.errors import ServiceUnavailable
from tests.engine.journal.events import numbers, signal
from tests.small_disk import count_free_bytes, filled_by_another_user, small_disk

pytestmark = [
    pytest.mark.integration,
    pytest.mark.adversary,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
EVENTS = 4000
"""Appended one at a time: the log is written from its start again several times."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 400) as point:
        (point / "hpctl").mkdir(mode=0o711)
        yield point


@pytest.fixture
def journal(disk: Path) -> Path:
    return disk / "hpctl" / "journal.db"


def append(store: JournalStore, count: int) -> None:
    for number in range(count):
        store.append([signal(number)])


def count_free_pages(journal: Path) -> int:
    with closing(sqlite3.connect(journal)) as db:
        size: int = db.execute("PRAGMA page_size").fetchone()[0]
        count: int = db.execute("PRAGMA freelist_count").fetchone()[0]
        return size * count


def test_a_journal_with_a_reserve_is_written_while_another_user_fills_the_disk(
    disk: Path, journal: Path
) -> None:
    with closing(JournalStore(make_sqlite_url(journal))) as store:
        JournalDiskReserve(journal).make()
        with filled_by_another_user(disk):
            append(store, EVENTS)
            assert count_free_bytes(disk) == 0
            assert (journal.parent / "reserve").stat().st_size == BALLAST, "it was not needed"
        assert numbers(store.events()) == list(range(EVENTS))


def test_a_journal_without_a_reserve_is_stopped_by_the_same_user(disk: Path, journal: Path) -> None:
    with (
        closing(JournalStore(make_sqlite_url(journal))) as store,
        filled_by_another_user(disk),
        pytest.raises(OSError, match="cannot be written"),
    ):
        append(store, EVENTS)


def test_a_log_that_a_reader_has_made_grow_is_written_again_from_its_start(
    disk: Path, journal: Path
) -> None:
    with closing(JournalStore(make_sqlite_url(journal))) as store:
        reserve = JournalDiskReserve(journal)
        reserve.make()
        append(store, 1)
        (journal.parent / "reserve").unlink()
        with (
            closing(sqlite3.connect(journal, isolation_level=None)) as reader,
            filled_by_another_user(disk),
        ):
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM hpctl_events").fetchone()
            with pytest.raises(OSError, match="cannot be written"):
                append(store, EVENTS)
            reader.execute("ROLLBACK")
            with pytest.raises(OSError, match="cannot be written"):
                append(store, 1)
            reserve.free_space_for_write()
            append(store, EVENTS)


def test_a_daemon_starts_on_a_full_disk(disk: Path, journal: Path) -> None:
    with closing(JournalStore(make_sqlite_url(journal))) as store:
        JournalDiskReserve(journal).make()
        append(store, 10)
    full = disk / "full"
    with full.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, count_free_bytes(disk))
    with pytest.raises((OSError, ServiceUnavailable)):
        JournalStore(make_sqlite_url(journal)).append([signal(10)])
    JournalDiskReserve(journal).free_space_for_start()
    with closing(JournalStore(make_sqlite_url(journal))) as store:
        append(store, 10)
        assert len(list(store.events())) == 20


def test_the_reserve_is_made_again_once_there_is_room(disk: Path, journal: Path) -> None:
    with closing(JournalStore(make_sqlite_url(journal))) as store:
        reserve = JournalDiskReserve(journal)
        reserve.make()
        assert count_free_pages(journal) >= RESERVE
        assert journal.with_name("journal.db-wal").stat().st_size >= WAL_ROOM
        with filled_by_another_user(disk):
            reserve.free_space_for_write()
            assert not (journal.parent / "reserve").exists()
            for _ in range(3000):
                store.append([signal(number) for number in range(18)])
            reserve.allocate_reserve_if_due()
            assert count_free_pages(journal) < RESERVE // 2
            assert not (journal.parent / "reserve").exists(), "there is no room for it"
        reserve.free_space_for_write()
        reserve.make()
        assert count_free_pages(journal) >= RESERVE
        ballast = (journal.parent / "reserve").stat()
        assert (ballast.st_size, ballast.st_blocks * 512, ballast.st_mode & 0o777) == (
            BALLAST, BALLAST, 0o600,
        )  # fmt: skip


def test_complete_reserve_is_not_written_again(disk: Path, journal: Path) -> None:
    with closing(JournalStore(make_sqlite_url(journal))):
        reserve = JournalDiskReserve(journal)
        reserve.make()
        before = [each.stat().st_mtime_ns for each in (journal, journal.parent / "reserve")]
        reserve.make()
        after = [each.stat().st_mtime_ns for each in (journal, journal.parent / "reserve")]
        assert after == before


def test_a_link_in_the_place_of_the_reserve_is_not_followed(disk: Path, journal: Path) -> None:
    target = disk / "target"
    (journal.parent / "reserve").symlink_to(target)
    with closing(JournalStore(make_sqlite_url(journal))):
        JournalDiskReserve(journal).make()
    assert not target.exists()
    assert (journal.parent / "reserve").lstat().st_size == BALLAST


def test_a_small_disk_keeps_its_room(
    disk: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve_module, "ROOM", count_free_bytes(disk) + 1)
    with closing(JournalStore(make_sqlite_url(journal))):
        JournalDiskReserve(journal).make()
    assert not (journal.parent / "reserve").exists()
