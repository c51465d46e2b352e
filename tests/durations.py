"""Which file of tests goes first: the one that took longest when the durations were recorded.

Several processes that take whole files end together then. `make durations` records them anew in
tests/durations.txt: a line for each file of a second or more.
"""

from collections import Counter
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("durations.txt")
ROOT = RECORD.parents[1]
LEAST_S = 1.0


def recorded() -> dict[str, float]:
    """Seconds by file, as they were recorded."""
    rows = (line.split(maxsplit=1) for line in RECORD.read_text().splitlines())
    return {path: float(seconds) for seconds, path in rows}


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by what their file takes; each file's own order is kept."""
    took = recorded()
    items.sort(key=lambda item: -took.get(item.path.relative_to(ROOT).as_posix(), 0.0))


class Recorder:
    """Adds up what the tests of each file take, their fixtures included, and writes it down."""

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Files that were not run keep their line, those that are gone lose it."""
        seconds = {**recorded(), **self.took}
        rows = sorted(((s, path) for path, s in seconds.items()), key=lambda row: (-row[0], row[1]))
        kept = [f"{s:.0f} {p}\n" for s, p in rows if s >= LEAST_S and (ROOT / p).exists()]
        RECORD.write_text("".join(kept))
