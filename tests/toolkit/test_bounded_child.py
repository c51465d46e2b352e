"""Programs that are slow, loud, hostile or left behind."""

import os
import subprocess
import sys
import time

import pytest

from hpctl.toolkit import bounded_child
from hpctl.toolkit.bounded_child import BoundedSubprocess, ChildOutputLimitError, ChildTimeoutError
from tests.process import ended


def read(child: BoundedSubprocess, seconds: float = 30.0, most: int = 10**6) -> tuple[bytes, bytes]:
    """What it says on each pipe."""
    out, error = bytearray(), bytearray()
    for pipe, chunk in child.read(time.monotonic() + seconds, most):
        into = out if pipe is child.process.stdout else error
        into += chunk
    return bytes(out), bytes(error)


def start(script: str, **more) -> BoundedSubprocess:
    return BoundedSubprocess(["sh", "-c", script], **more)


def test_what_it_says_and_how_it_ends_is_there():
    child = start("echo yes; echo no >&2; pwd; exit 3")
    assert read(child) == (b"yes\n/\n", b"no\n")
    assert child.end(5) == 3


def test_more_than_it_may_say_ends_it_with_just_that_much():
    child, said = start("exec yes hello"), bytearray()
    reader = child.read(time.monotonic() + 30, 1000)
    while len(said) < 1000:
        said += next(reader)[1]
    with pytest.raises(ChildOutputLimitError):
        next(reader)
    assert len(said) == 1000
    assert child.end(5) == -9


def test_exactly_as_much_as_it_may_say_is_no_error():
    child = start("printf 12345")
    assert read(child, most=5)[0] == b"12345"
    assert child.end(5) == 0


@pytest.mark.parametrize("script", ["exec sleep 600", "exec >&- 2>&-; exec sleep 600"])
def test_one_that_is_slow_is_ended_in_time(script):
    child, begun = start(script), time.monotonic()
    with pytest.raises(ChildTimeoutError):
        read(child, 0.3)
    assert child.end(5) == -9
    assert time.monotonic() - begun < 20


def test_a_grandchild_that_keeps_the_output_open_is_not_waited_for_and_dies():
    child = start("sleep 600 & echo $!")
    begun = time.monotonic()
    out, _ = read(child, 60)
    assert child.end(5) == 0
    assert time.monotonic() - begun < 30
    assert ended(int(out))


def test_the_group_of_one_that_nothing_is_read_of_dies_with_it():
    read_end, write_end = os.pipe()
    child = start("sleep 600 & echo $!", stdout=write_end, stderr=subprocess.DEVNULL)
    os.close(write_end)
    assert child.wait(time.monotonic() + 30)
    assert child.end(5) == 0
    with open(read_end, "rb") as said:
        pid = int(said.readline())
    assert ended(pid)


def test_one_that_shares_its_parents_group_is_killed_and_the_group_is_not():
    child = start("exec sleep 600", own_group=False)
    assert os.getpgid(child.process.pid) == os.getpgid(0)
    assert not child.wait(time.monotonic() + 0.05)
    assert child.end(5) == -9


def test_one_that_cannot_be_killed_is_left_and_reaped_later(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(bounded_child.os, "killpg", lambda *_: None)
        child = start("exec sleep 600")
        assert child.end(0.1) is None
    assert child.process in bounded_child.unreaped
    os.killpg(child.process.pid, 9)
    child.process.wait(30)
    other = start("true")
    assert child.process not in bounded_child.unreaped
    assert other.end(5) in (0, -9)


def test_a_group_of_a_reaped_child_is_never_signaled(monkeypatch):
    child = start("true")
    assert child.end(5) in (0, -9)
    signaled: list[int] = []
    monkeypatch.setattr(bounded_child.os, "killpg", lambda group, _: signaled.append(group))
    child.end(5)
    assert signaled == []


def test_a_reader_that_goes_away_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    child = start("exec yes")
    reader = child.read(time.monotonic() + 30, 10**9)
    next(reader)
    reader.close()
    child.end(5)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        BoundedSubprocess(["/no/such/program"])


def test_the_environment_is_what_is_given(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    words = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
    child = BoundedSubprocess(words, environment={"LC_ALL": "C"})
    out, _ = read(child)
    assert b"AWS" not in out
    assert child.end(5) == 0
