"""What the head node believes of an archive, and which archives it deletes."""

import gzip
import hashlib
import io
import os
import tarfile

import pytest

from hpctl.nodes.evidence.fetch import EvidenceArchiveReader
from hpctl.nodes.evidence.store import (
    MOST_MEMBERS,
    PART_KEPT_S,
    InvalidArchiveError,
    StoredArchiveFile,
    choose_expired_files,
    delete_archives,
    list_archives,
    read_archive_texts,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.evidence import MOST_BYTES, StoredEvidenceArchive

DAY = 86400.0
READER = EvidenceArchiveReader()


def pack(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return out.getvalue()


def member(name: str = "n-1/dmesg.txt", size: int = 3, kind: bytes = tarfile.REGTYPE):
    found = tarfile.TarInfo(name)
    found.size, found.type = size, kind
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        found.linkname = "/etc/shadow"
    return found


def keep(directory, body: bytes, name: str = "n-1.tar.gz") -> StoredEvidenceArchive:
    path = directory / name
    path.write_bytes(body)
    return StoredEvidenceArchive(str(path), len(body), hashlib.sha256(body).hexdigest())


def test_an_archive_is_checked_listed_and_copied(tmp_path):
    archive = keep(tmp_path, pack(member(), member("n-1/site-up_time.txt", 5)))
    with READER.open(archive) as file:
        assert [(m.name, m.size) for m in read_archive_texts(file)] == [
            ("dmesg.txt", 3), ("site-up_time.txt", 5),
        ]  # fmt: skip
    (tmp_path / "to").mkdir()
    copy = READER.fetch(archive, tmp_path / "to")
    assert copy.read_bytes() == (tmp_path / "n-1.tar.gz").read_bytes()
    with pytest.raises(HpctlError, match="File exists"):
        READER.fetch(archive, tmp_path / "to")


def test_a_file_that_is_not_what_the_node_reported_is_refused(tmp_path):
    archive = keep(tmp_path, pack(member()))
    path = tmp_path / "n-1.tar.gz"
    good = path.read_bytes()
    for body, why in (
        (good + b"x", "bytes"),
        (good[:-1] + b"x", "SHA-256"),
        (None, "No such file"),
    ):
        path.unlink(missing_ok=True)
        if body is not None:
            path.write_bytes(body)
        with pytest.raises(InvalidArchiveError, match=why), READER.open(archive):
            pass
    (tmp_path / "other").write_bytes(good)
    path.symlink_to(tmp_path / "other")
    with pytest.raises(InvalidArchiveError), READER.open(archive):
        pass
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidArchiveError, match="not a regular file"), READER.open(archive):
        pass


@pytest.mark.parametrize(
    "members",
    [
        [member("../../etc/cron.d/x")],
        [member("/etc/passwd")],
        [member("n-1/../x.txt")],
        [member("n-1/dmesg.txt", 0, tarfile.SYMTYPE)],
        [member("n-1/dmesg.txt", 0, tarfile.LNKTYPE)],
        [member("n-1/null.txt", 0, tarfile.CHRTYPE)],
        [member("n-1/pipe.txt", 0, tarfile.FIFOTYPE)],
        [member("n-1/\x1b[2J.txt")],
        [member() for _ in range(MOST_MEMBERS + 1)],
    ],
)
def test_an_archive_with_anything_but_plain_texts_is_refused(tmp_path, members):
    archive = keep(tmp_path, pack(*members))
    (tmp_path / "to").mkdir()
    with pytest.raises(InvalidArchiveError):
        READER.fetch(archive, tmp_path / "to")
    assert not any((tmp_path / "to").iterdir())


def test_an_archive_that_unpacks_without_end_is_refused_within_bounds(tmp_path):
    header = member(size=MOST_BYTES * 64).tobuf()
    pax = tarfile.TarInfo("x")
    pax.type, pax.size = tarfile.XHDTYPE, MOST_BYTES * 64
    for first in (header, pax.tobuf(tarfile.PAX_FORMAT)):
        bomb = gzip.compress(first + b"\0" * (MOST_BYTES * 2), compresslevel=1)
        with READER.open(keep(tmp_path, bomb)) as file, pytest.raises(InvalidArchiveError):
            read_archive_texts(file)
    for garbage in (b"", b"no archive", pack(member())[:-20]):
        with READER.open(keep(tmp_path, garbage)) as file, pytest.raises(InvalidArchiveError):
            read_archive_texts(file)


def test_what_is_old_or_too_much_is_deleted_oldest_first():
    files = [StoredArchiveFile(f"n-{n}.tar.gz", 10, 100 * DAY - n * DAY) for n in range(1, 6)]
    now = 100 * DAY
    assert choose_expired_files(files, now, 3.5 * DAY, 1000) == ["n-4.tar.gz", "n-5.tar.gz"]
    assert choose_expired_files(files, now, 99 * DAY, 25) == [
        "n-3.tar.gz",
        "n-4.tar.gz",
        "n-5.tar.gz",
    ]
    assert choose_expired_files(files, now, 99 * DAY, 1000) == []
    part = StoredArchiveFile(".n-9.tar.gz.12.part", 10, now - PART_KEPT_S - 1)
    assert choose_expired_files([part], now, 99 * DAY, 1000) == [part.name]


def test_only_hpctls_own_regular_files_are_listed_and_deleted(tmp_path):
    keep(tmp_path, b"x")
    keep(tmp_path, b"x", "notes.tar.gz")
    keep(tmp_path, b"x", "n-2.tar.gz.bak")
    (tmp_path / "n-3.tar.gz").mkdir()
    (tmp_path / "n-4.tar.gz").symlink_to("/etc/passwd")
    found = list_archives(tmp_path)
    assert [f.name for f in found] == ["n-1.tar.gz"]
    assert delete_archives(tmp_path, [f.name for f in found]) == 1
    assert len(list(tmp_path.iterdir())) == 4
