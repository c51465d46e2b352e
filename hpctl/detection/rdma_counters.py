"""The counters of RDMA devices over time."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from msgspec import Struct, field

# Hundreds of small counter files, read often and cheaply, and their earlier values.
#
# Opening and closing a file in sysfs costs far more than reading it again, so the descriptors are
# kept: 704 files take a tenth of the time. A device that goes and comes back has another folder
# inode, and its descriptors are opened again. A missing file is not supported by the driver: it
# gives no number, never zero. A counter that went back was reset: it is no evidence.
#
# Some files are commands to the device: where one fails, the others in its folder are not read, and
# the folder is read again after one reading, then after two, four and so on.

MOST_OPEN = 896
"""Descriptors kept at most by one reader, below the usual limit of 1024 for a process. Files
beyond it are opened for each reading."""


MOST_FOLDERS = 256
"""Folders that one reader follows at most: sysfs on a broken machine must not make the agent
grow."""


VALUE_BYTES = 64


MOST_LEFT_OUT = 64
"""Readings at most for which a failed folder is not read: 13 minutes at one in 12 s."""


Identity = tuple[int, int]
"""A folder's inode and how often one was opened: another value is another incarnation of the
device."""


class DeviceCounterReading(Struct, frozen=True):
    """The counters of one folder at one time.

    `failed`: files that are there and do not answer, or are not read because they did not.
    `troubles`: how many attempts have failed in this incarnation of the device.
    """

    identity: Identity
    values: Mapping[str, int]
    failed: Mapping[str, str] = field(default_factory=dict)
    troubles: int = 0


def compute_device_counter_increase(
    now: DeviceCounterReading | None, then: DeviceCounterReading | None, name: str
) -> int | None:
    """Return how much a counter grew between two readings of one incarnation of a device.

    None where unknown: not supported, not read, another incarnation, or reset.
    """
    if now is None or then is None or now.identity != then.identity:
        return None
    new, old = now.values.get(name), then.values.get(name)
    return None if new is None or old is None or new < old else new - old


class _CounterFileGroup(Struct):
    """The files of one folder: they answer, or fail, together.

    `why` describes how the last attempt failed; for `left_out` readings no attempt is made.
    """

    descriptors: dict[str, int] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    why: str = ""
    left_out: int = 0
    pause: int = 1

    def read(self, values: dict[str, int], failed: dict[str, str]) -> bool:
        """Read into `values` or `failed`. Return False when an attempt failed now."""
        if self.left_out > 0:
            self.left_out -= 1
        else:
            try:
                self._read_counter_values(values)
            except OSError as error:
                self.why = error.strerror or str(error)
                self.left_out = self.pause
                self.pause = min(2 * self.pause, MOST_LEFT_OUT)
                failed.update(self._list_failed_counters(values))
                return False
            self.why, self.pause = "", 1
        failed.update(self._list_failed_counters(values))
        return True

    def _read_counter_values(self, values: dict[str, int]) -> None:
        for name, descriptor in self.descriptors.items():
            with suppress(ValueError):  # "N/A (no PMA)": the port does not have it
                values[name] = int(os.pread(descriptor, VALUE_BYTES, 0))
        for name, path in self.paths.items():
            with suppress(ValueError), open(path, "rb") as file:
                values[name] = int(file.read(VALUE_BYTES))

    def _list_failed_counters(self, values: Mapping[str, int]) -> dict[str, str]:
        if not self.why:
            return {}
        names = (*self.descriptors, *self.paths)
        return {name: self.why for name in names if name not in values}


class _OpenCounterFolder(Struct):
    """The open files of one incarnation of one device, by the folder they are in."""

    identity: Identity
    groups: dict[str, _CounterFileGroup] = field(default_factory=dict)
    troubles: int = 0

    def read(self) -> DeviceCounterReading:
        values: dict[str, int] = {}
        failed: dict[str, str] = {}
        for group in self.groups.values():
            self.troubles += not group.read(values, failed)
        return DeviceCounterReading(self.identity, values, failed, self.troubles)


class CounterFileReader:
    """A reader of counters, one for each kind of folder. Not for several threads at once."""

    def __init__(self, files: Mapping[str, Sequence[str]], most_open: int = MOST_OPEN) -> None:
        """Prepare. `files`: for each counter its places below the folder; the first that exists
        counts."""
        self._files = files
        self._most_open = most_open
        self._open = 0
        self._lives = 0
        self._kept: dict[str, _OpenCounterFolder] = {}

    def read(self, folder: str) -> DeviceCounterReading | None:
        """Return all counters of one folder; None where the folder is gone or too many are
        followed."""
        try:
            inode = os.stat(folder).st_ino
        except OSError:
            self.forget(folder)
            return None
        kept = self._kept.get(folder)
        if kept is None or kept.identity[0] != inode:
            self.forget(folder)
            if len(self._kept) >= MOST_FOLDERS:
                return None
            kept = self._kept[folder] = self._open_counter_folder(folder, inode)
        return kept.read()

    def close_folders_except(self, folders: Sequence[str]) -> None:
        """Drop every other folder: its devices have disappeared."""
        for folder in self._kept.keys() - set(folders):
            self.forget(folder)

    def forget(self, folder: str) -> None:
        """Close what is open below a folder."""
        kept = self._kept.pop(folder, None)
        for group in () if kept is None else kept.groups.values():
            for descriptor in group.descriptors.values():
                self._open -= 1
                with suppress(OSError):
                    os.close(descriptor)

    def close(self) -> None:
        """Close everything."""
        self.close_folders_except(())

    def __del__(self) -> None:
        self.close()

    @property
    def open_file_count(self) -> int:
        """Return how many descriptors are kept now."""
        return self._open

    def _open_counter_folder(self, folder: str, inode: int) -> _OpenCounterFolder:
        """Open the existing files."""
        self._lives += 1
        kept = _OpenCounterFolder((inode, self._lives))
        for name, places in self._files.items():
            for place in places:
                group = kept.groups.setdefault(os.path.dirname(place), _CounterFileGroup())
                if self._open_counter_file(group, name, f"{folder}/{place}"):
                    break
        return kept

    def _open_counter_file(self, group: _CounterFileGroup, name: str, path: str) -> bool:
        """Open one file and keep it open, or note its path. Return False where there is no such
        file."""
        if self._open >= self._most_open:
            there = os.path.exists(path)
        else:
            try:
                group.descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                there = error.errno not in (errno.ENOENT, errno.ENOTDIR)
            else:
                self._open += 1
                return True
        if there:
            group.paths[name] = path
        return there


class DeviceCounterSweep(Struct, frozen=True):
    """What the counters of some devices showed at one time; a device may be missing from it.

    `at` is in monotonic seconds.
    """

    at: float
    devices: Mapping[str, DeviceCounterReading]


class CounterSweepTrace(Struct, frozen=True):
    """The newest sweep and a few earlier ones, oldest first: a sample for a judge."""

    now: DeviceCounterSweep
    past: tuple[DeviceCounterSweep, ...] = ()

    def rises(self, then: DeviceCounterSweep, counter: str) -> Iterator[tuple[str, int]]:
        """Yield by how much a counter grew since an earlier sweep, for each device where that is
        known."""
        for device, reading in self.now.devices.items():
            grown = compute_device_counter_increase(reading, then.devices.get(device), counter)
            if grown is not None:
                yield device, grown

    def rates(
        self, before: "CounterSweepTrace | None", counters: Mapping[str, Sequence[str]]
    ) -> Mapping[str, float]:
        """Return by how much each sum of counters grew a second, all devices together, where any is
        known."""
        if before is None or (seconds := self.now.at - before.now.at) <= 0:
            return {}
        rates = {}
        for name, ones in counters.items():
            grown = chain.from_iterable(self.rises(before.now, one) for one in ones)
            rises = [rise for _, rise in grown]
            if rises:
                rates[name] = sum(rises) / seconds
        return rates


class CounterSweepHistory:
    """A few of the earlier sweeps: the last, and for each span up to two that are younger.

    This is enough to compute the growth of a counter over a minute, ten or sixty, with a few sweeps
    in memory for any interval. The oldest of a span is at least half as old as the span once so
    much time has passed.
    """

    def __init__(self, spans_s: Sequence[float]) -> None:
        self._spans: dict[float, list[DeviceCounterSweep]] = {span: [] for span in spans_s}
        self._last: DeviceCounterSweep | None = None

    def past(self, now: float) -> tuple[DeviceCounterSweep, ...]:
        """Return the sweeps that are not older than the longest span, oldest first."""
        kept = {sweep.at: sweep for sweep in chain.from_iterable(self._spans.values())}
        if self._last is not None:
            kept[self._last.at] = self._last
        oldest = now - max(self._spans, default=0.0)
        return tuple(kept[at] for at in sorted(kept) if oldest <= at < now)

    def add(self, sweep: DeviceCounterSweep) -> None:
        """Add the newest sweep. One that is older than the last begins a new history."""
        if self._last is not None and sweep.at < self._last.at:
            self._spans = {span: [] for span in self._spans}
        for span, two in self._spans.items():
            if not two or sweep.at - two[-1].at >= span / 2:
                two.append(sweep)
                del two[:-2]
        self._last = sweep
