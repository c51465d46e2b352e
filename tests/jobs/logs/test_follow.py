"""A log file that grows, is rotated or cut, and the lines in it."""

import os
import random
from pathlib import Path

import pytest

from hpctl.jobs.logs.engine import LONGEST_LINE, LineSplitter, LogFollower, NotALogFileError
from hpctl.toolkit.errors import ServiceUnavailable

pytestmark = pytest.mark.integration


def drained(follower: LogFollower) -> bytes:
    made, done = b"", False
    while not done:
        lines, done = follower.read()
        made += lines
    return made


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "slurm-1.out"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_appended_lines_are_read_once_and_only_when_complete(log: Path) -> None:
    follower = LogFollower(log)
    assert follower.read() == (b"", True), "a file that is not there yet gives nothing"
    append(log, b"one\ntw")
    assert drained(follower) == b"one\n"
    append(log, b"o\n")
    assert drained(follower) == b"two\n"
    assert drained(follower) == b""
    append(log, b"last")
    assert drained(follower) == b""
    assert follower.finish() == b"last\n"
    follower.close()


def test_rotation_loses_nothing(log: Path) -> None:
    append(log, b"one\n")
    follower = LogFollower(log)
    assert drained(follower) == b"one\n"
    append(log, b"two\nno newline")
    log.rename(log.with_suffix(".1"))
    assert drained(follower) == b"two\n", "between rename and create"
    append(log.with_suffix(".1"), b", still open\n")
    append(log, b"three\n")
    assert drained(follower) == b"no newline, still open\nthree\n"
    follower.close()


@pytest.mark.parametrize("again", [b"new\n", b"something else\n" * 50, b"old 0\nold 1\nnew\n" * 9])
def test_a_truncated_file_is_read_from_its_beginning(log: Path, again: bytes) -> None:
    append(log, b"".join(b"old %d\n" % number for number in range(20)) + b"hal")
    follower = LogFollower(log)
    drained(follower)
    log.with_suffix(".copy").write_bytes(log.read_bytes())
    os.truncate(log, 0)
    append(log, again)
    assert drained(follower) == again, "grown beyond the old position or not"
    follower.close()


def test_a_hole_that_a_truncation_leaves_under_a_writer_is_no_line(log: Path) -> None:
    with log.open("wb") as writer:
        writer.write(b"old line\n" * 1000)
        writer.flush()
        follower = LogFollower(log)
        drained(follower)
        os.truncate(log, 0)
        writer.write(b"new line\n")
        writer.flush()
        assert drained(follower) == b"new line\n"
    follower.close()


def test_what_is_no_file_is_refused_without_blocking(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(NotALogFileError):
            LogFollower(path).read()


def test_unopenable_path_is_reported_and_tried_again(tmp_path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    follower = LogFollower(loop)
    with pytest.raises(ServiceUnavailable, match="cannot read"):
        follower.read()
    loop.unlink()
    loop.write_bytes(b"there\n")
    assert drained(follower) == b"there\n"
    follower.close()


def cut(data: bytes, at: list[int]) -> bytes:
    cutter, made = LineSplitter(), b""
    for begin, end in zip([0, *at], [*at, len(data)], strict=True):
        made += cutter.cut(data[begin:end])
    return made + cutter.finish()


@pytest.mark.parametrize("seed", range(50))
def test_where_reads_cut_changes_nothing(seed: int) -> None:
    random_ = random.Random(seed)
    data = bytes(random_.choices(b"ab\n\r\0", weights=[9, 9, 3, 2, 1], k=200))
    assert cut(data, sorted(random_.sample(range(200), 12))) == cut(data, [])


def test_carriage_returns_end_lines_and_nul_bytes_are_dropped() -> None:
    assert cut(b"\0\0\0a\r\nb 1\rb 2\rb 3\nc", []) == b"a\nb 1\nb 2\nb 3\nc\n"


@pytest.mark.parametrize("step", [4096, 1 << 20])
def test_a_huge_line_is_cut_at_the_bound_and_its_rest_passed_over(step: int) -> None:
    cutter, made = LineSplitter(), []
    data = b"x" * (3 * LONGEST_LINE) + b"rest\nnext\n"
    for begin in range(0, len(data), step):
        made.append(cutter.cut(data[begin : begin + step]))
        assert len(cutter._carry) <= LONGEST_LINE
    assert b"".join(made) == b"x" * LONGEST_LINE + b"\nnext\n"
