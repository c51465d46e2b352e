"""The kept descriptors, and how far back counters can be compared."""

import errno
import os

import pytest

from hpctl.detection.rdma_counters import (
    CounterFileReader,
    CounterSweepHistory,
    DeviceCounterSweep,
    compute_device_counter_increase,
)

FILES = {"drops": ("port/drops",), "errors": ("own/errors", "port/errors"), "new": ("port/new",)}


@pytest.fixture
def nic(tmp_path):
    (tmp_path / "nic/port").mkdir(parents=True)
    (tmp_path / "nic/own").mkdir()
    (tmp_path / "nic/port/drops").write_text("7\n")
    (tmp_path / "nic/own/errors").write_text("3\n")
    return tmp_path / "nic"


def test_values_are_read_again_from_the_same_descriptor(nic):
    files = CounterFileReader(FILES)
    first = files.read(str(nic))
    (nic / "port/drops").write_text("123456789012\n")
    again = files.read(str(nic))
    assert (first.values, again.values) == (
        {"drops": 7, "errors": 3},
        {"drops": 123456789012, "errors": 3},
    )
    assert files.open_file_count == 2
    files.close()
    assert files.open_file_count == 0


def test_a_missing_file_is_no_number_and_no_failure(nic):
    reading = CounterFileReader(FILES).read(str(nic))
    assert "new" not in reading.values
    assert not reading.failed
    assert compute_device_counter_increase(reading, reading, "new") is None


def test_a_device_that_vanishes_and_returns_is_another_one(nic, tmp_path):
    files = CounterFileReader(FILES)
    before = files.read(str(nic))
    nic.rename(tmp_path / "aside")
    assert files.read(str(nic)) is None
    assert files.open_file_count == 0
    (nic / "port").mkdir(parents=True)
    (nic / "port/drops").write_text("900\n")
    after = files.read(str(nic))
    assert after.values == {"drops": 900}
    assert compute_device_counter_increase(after, before, "drops") is None


class Broken:
    """Descriptors of files whose name is in `names` fail, and every attempt is counted."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.attempts = 0

    def __call__(self, descriptor: int, length: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(self.names):
            self.attempts += 1
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def test_what_fails_is_asked_less_and_less_and_read_again_once_it_answers(nic, monkeypatch):
    files = CounterFileReader(FILES)
    (nic / "port/new").write_text("1\n")
    first = files.read(str(nic))
    broken = Broken("port/drops", "port/new")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        asked = []
        for _ in range(16):
            before = broken.attempts
            reading = files.read(str(nic))
            assert reading.values == {"errors": 3}
            assert reading.failed == {"drops": "No such device", "new": "No such device"}
            asked.append(broken.attempts - before)
    assert asked == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    last = [files.read(str(nic)) for _ in range(4)]
    assert [bool(reading and reading.failed) for reading in last] == [True, True, True, False]
    assert (last[-1].values, last[-1].troubles) == ({"drops": 7, "errors": 3, "new": 1}, 4)
    assert {reading.identity for reading in last} == {first.identity}


def test_the_number_of_kept_descriptors_is_bounded_and_the_values_are_not(nic):
    files = CounterFileReader(FILES, most_open=1)
    for _ in range(3):
        assert (files.read(str(nic)).values, files.open_file_count) == (
            {"drops": 7, "errors": 3},
            1,
        )


def test_history_reaches_back_at_least_half_a_span_and_stays_small():
    history = CounterSweepHistory((60.0, 600.0))
    for step in range(500):
        at = step * 12.0
        past = history.past(at)
        assert len(past) <= 5
        assert list(past) == sorted(past, key=lambda s: s.at)
        assert all(at - 600 <= s.at < at for s in past)
        if step:
            assert past[-1].at == at - 12
        if at >= 600:
            assert at - past[0].at >= 300
        history.add(DeviceCounterSweep(at, {}))


def test_a_clock_that_was_set_back_begins_a_new_history():
    history = CounterSweepHistory((60.0, 600.0))
    for at in (5000.0, 5012.0, 10.0, 22.0):
        history.add(DeviceCounterSweep(at, {}))
    assert [sweep.at for sweep in history.past(34.0)] == [10.0, 22.0]


def test_the_second_place_of_a_counter_serves_an_older_driver(nic):
    (nic / "own/errors").rename(nic / "port/errors")
    assert CounterFileReader(FILES).read(str(nic)).values["errors"] == 3
