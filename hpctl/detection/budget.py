"""The agent's own budget of CPU and memory: checks are shed where it is over."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import CheckObservation
from hpctl.vocabulary.model import DeviceVerdict

# The agent measures itself: over its budget, it sheds optional checks and reports it.

CPU_PERCENT = 0.5
"""Percent of one core, over a window."""


MEMORY_MB = 40.0
"""Resident, of the agent's own process."""


WINDOW_S = 60.0


OVER_WINDOWS = 3
"""After so many windows over the budget one more level is shed."""


CALM_WINDOWS = 10
"""After so many windows under half of the CPU and 0.9 of the memory one level runs again."""


_MB = 1e6


class ProcessResourceUsage(Struct, frozen=True):
    """The process's usage: CPU seconds so far, resident memory now in MB."""

    cpu_s: float
    memory_mb: float


def measure_process_resource_usage() -> ProcessResourceUsage:
    """Measure this process, all threads, without its children."""
    times = os.times()
    return ProcessResourceUsage(times.user + times.system, read_process_resident_mb("self"))


def read_process_resident_mb(process: int | str) -> float:
    """Return the resident memory of a process in MB. Raises OSError once it has ended."""
    statm = Path(f"/proc/{process}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB


class CheckLoadShedder:
    """The decision which levels of checks (HealthCheckSpec.shed) are shed. `levels` are those in
    use."""

    def __init__(
        self,
        levels: Collection[int],
        cpu_percent: float = CPU_PERCENT,
        memory_mb: float = MEMORY_MB,
        measure: Callable[[], ProcessResourceUsage] = measure_process_resource_usage,
    ) -> None:
        self._levels = sorted({level for level in levels if level > 0}, reverse=True)
        self._cpu_percent, self._memory_mb, self._measure = cpu_percent, memory_mb, measure
        self._last: tuple[float, ProcessResourceUsage] | None = None
        self._over = self._calm = 0
        self._shed = 0
        self.cpu_percent = 0.0
        self.memory_mb = 0.0

    def is_check_level_shed(self, level: int) -> bool:
        """Return whether checks of that level are not to run now."""
        return level in self._levels[: self._shed]

    def look(self, now: float) -> None:
        """Measure where a window is over. `now` is monotonic, in seconds."""
        if self._last is None:
            self._last = (now, self._measure())
            return
        since, before = self._last
        if now - since < WINDOW_S:
            return
        used = self._measure()
        self._last = (now, used)
        self.cpu_percent = 100 * (used.cpu_s - before.cpu_s) / (now - since)
        self.memory_mb = used.memory_mb
        cpu, memory = self.cpu_percent / self._cpu_percent, self.memory_mb / self._memory_mb
        self._over = self._over + 1 if max(cpu, memory) > 1 else 0
        self._calm = self._calm + 1 if cpu < 0.5 and memory < 0.9 else 0
        if self._over >= OVER_WINDOWS and self._shed < len(self._levels):
            self._shed, self._over = self._shed + 1, 0
        elif self._calm >= CALM_WINDOWS and self._shed:
            self._shed, self._calm = self._shed - 1, 0

    def observations(self, left_out: Collection[str]) -> list[CheckObservation]:
        """Return what the agent reports of itself: which checks it left out, and why."""
        if not self._shed:
            return []
        used = f"{self.cpu_percent:.2f} % of a core, {self.memory_mb:.0f} MB"
        return [
            CheckObservation(
                "shed",
                verdict=DeviceVerdict.WARN,
                detail=f"not run to save resources: {', '.join(sorted(left_out))}",
                evidence=f"used {used}; allowed {self._cpu_percent:g} % and {self._memory_mb:g} MB",
            )
        ]
