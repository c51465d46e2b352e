"""Reading the kernel's log: records, escapes, a growing file, and the real device."""

import errno
import os
import selectors
import time
import uuid
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.detection import kmsg
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import (
    KernelRecord,
    KmsgDevice,
    KmsgFileFollower,
    format_kmsg_record,
    open_kernel_log,
    parse_kmsg_record,
)
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from tests.waiting import until


def test_a_record_is_taken_apart():
    usec = time.monotonic_ns() // 1000 - 5_000_000
    record = parse_kmsg_record(f"12,339,{usec},-;NVRM: text; with, all\n SUBSYSTEM=pci\n".encode())
    assert (record.facility, record.seq, record.text) == (1, 339, "NVRM: text; with, all")
    assert 4.5 < (datetime.now(UTC) - record.at).total_seconds() < 6


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"caf\xc3\xa9", "café"), (rb"back\x5cslash", "back\\slash"),
        (rb"two\x0alines\x09here", "two lines here"), (rb"\x1b[31mred", r"\x1b[31mred"),
        (rb"bad \xff byte", "bad � byte"), (rb"\x5cx41", r"\x41"),
    ],
)  # fmt: skip
def test_escapes_are_undone_but_for_control_characters(escaped, text):
    assert parse_kmsg_record(b"4,1,1,-;" + escaped).text == text


def texts(log: kmsg.KernelLog) -> list[str]:
    return [record.text for record in log.read()]


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "kmsg"
    path.write_bytes(format_kmsg_record("old", 1))
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_file_is_followed_from_its_start(path):
    log = open_kernel_log(path)
    assert isinstance(log, KmsgFileFollower)
    assert (texts(log), texts(log)) == (["old"], [])
    append(
        path,
        format_kmsg_record("new", 2)
        + b" SUBSYSTEM=pci\ngarbage\n"
        + format_kmsg_record("newer", 3),
    )
    assert texts(log) == ["new", "newer"]
    log.close()


def test_a_file_is_waited_for_by_inotify_and_is_quiet_while_nothing_comes(path):
    log = open_kernel_log(path)
    texts(log)
    with selectors.DefaultSelector() as selector:
        assert log.fileno() is not None
        selector.register(log, selectors.EVENT_READ)
        assert selector.select(0.05) == []
        append(path, format_kmsg_record("new", 2))
        assert selector.select(5)
        assert (texts(log), selector.select(0)) == (["new"], [])
        replacement = path.with_name("other")
        replacement.write_bytes(format_kmsg_record("of another file", 1))
        replacement.replace(path)
        assert selector.select(5)
        assert texts(log) == ["of another file"]
        append(path, format_kmsg_record("which is watched too", 2))
        assert selector.select(5)
        assert texts(log) == ["which is watched too"]
    log.close()


@pytest.mark.parametrize(
    "line",
    [
        "Nov 10 12:00:00 host kernel: [1.2] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off",
        "[1.2] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
        '{"MESSAGE": "x"}',
    ],
)
def test_a_file_of_another_format_is_refused(path, line):
    path.write_text(line + "\n")
    log = open_kernel_log(path)
    with pytest.raises(ServiceUnavailable, match="not in the format of /dev/kmsg") as caught:
        log.read()
    assert "hpctl agent triage" in caught.value.hint
    log.close()


def test_a_files_stamps_count_from_its_writers_boot_whenever_that_was(path):
    """A stand-in's USEC may count from anything: the last record was written at mtime."""
    path.write_bytes(b"4,1,1000000,-;early\n4,2,61000000,-;late\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    log = open_kernel_log(path)
    early, late = (record.at.timestamp() for record in log.read())
    assert (early, late) == (1_700_000_000 - 60, 1_700_000_000)
    append(path, b"4,3,99000000,-;now\n")
    assert abs(log.read()[0].at.timestamp() - (1_700_000_000 + 38)) < 1e-3
    log.close()


def test_a_line_written_in_pieces_is_one_line(path):
    log = open_kernel_log(path)
    texts(log)
    whole = format_kmsg_record("in pieces", 2)
    for piece in (whole[:5], whole[5:20], whole[20:-1]):
        append(path, piece)
        assert texts(log) == []
    append(path, whole[-1:])
    assert texts(log) == ["in pieces"]
    log.close()


def test_a_truncated_file_is_read_again(path):
    append(path, format_kmsg_record("long " * 40, 2) + b"4,3,1,-;half a li")
    log = open_kernel_log(path)
    assert len(texts(log)) == 2
    path.write_bytes(format_kmsg_record("after", 1))
    assert texts(log) == ["after"]
    log.close()


def test_a_line_without_end_is_dropped_and_counted(path):
    log = open_kernel_log(path)
    texts(log)
    append(path, b"4,2,1,-;" + b"x" * 3 * kmsg.RECORD_BYTES)
    assert (texts(log), log.lost) == ([], 1)
    append(path, b"\n" + format_kmsg_record("next", 3))
    assert texts(log) == ["next"]
    log.close()


def test_a_big_file_comes_in_batches_and_nothing_is_missed(path):
    path.write_bytes(b"".join(format_kmsg_record(f"{n}", n) for n in range(30_000)))
    log, seen = open_kernel_log(path), []
    while batch := log.read():
        assert len(batch) <= kmsg.BATCH
        seen += [record.seq for record in batch]
    assert seen == list(range(30_000))
    log.close()


def test_no_log_is_reported_with_a_hint(tmp_path):
    with pytest.raises(ServiceUnavailable, match="cannot open the kernel log") as caught:
        open_kernel_log(tmp_path / "none")
    assert "--kmsg" in caught.value.hint


def test_overwritten_records_are_counted_and_reading_continues(tmp_path, monkeypatch):
    """EPIPE is what the kernel answers when its ring went round; a FIFO stands for the device."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    log = open_kernel_log(fifo)
    assert isinstance(log, KmsgDevice)
    answers: list[bytes | OSError] = [
        b"4,1,1,-;first\n", OSError(errno.EPIPE, "Broken pipe"), b"4,9,1,-;later\n",
        BlockingIOError(errno.EAGAIN, "again"), OSError(errno.EIO, "gone"),
    ]  # fmt: skip

    def read(_fd: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(kmsg.os, "read", read)
    assert (texts(log), log.lost) == (["first", "later"], 1)
    with pytest.raises(ServiceUnavailable, match="gone"):
        log.read()
    log.close()


needs_kmsg = pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="/dev/kmsg needs root"
)


@needs_kmsg
def test_the_real_device_shows_user_lines_as_such_and_they_are_not_believed():
    log = open_kernel_log(Path("/dev/kmsg"))
    assert isinstance(log, KmsgDevice)
    line = f"NVRM: Xid (PCI:ffff:ff:1f): 79, hpctl test {uuid.uuid4()}"
    with open("/dev/kmsg", "wb", buffering=0) as device:
        # Without its newline the kernel keeps a record open, and hidden, until the next one.
        device.write(f"{line}\n".encode())
    found: list[KernelRecord] = []
    until(lambda: found.extend(r for r in log.read() if r.text == line) or found)
    log.close()
    (record,) = found
    assert record.facility == 1
    assert abs((datetime.now(UTC) - record.at).total_seconds()) < 10
    kernel = KernelLogAnalyzer(lambda _pid, _at: "")
    assert kernel.findings([record]) == []
    (error,) = kernel.findings([record], accept_user=True)
    assert (error.code, error.device) == ("79", "ffff:ff:1f.0")
