"""What one look of every check costs, and what that makes in an hour at the shipped intervals."""

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.table import median
from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    ExpectedHardware,
)
from hpctl.detection.machine import build_checked_machine
from hpctl.detection.nvml.client import NvmlClient
from hpctl.detection.runner import ABSENT_FACTOR, LoadedCheck, load_check
from hpctl.faults.table import CHECKS

ROUNDS = 5
APART_S = 120.0
"""By what the machine's clock goes on between two rounds: nothing that is shared is fresh."""


class Looks(Struct, frozen=True):
    """Processor seconds of one look of each check and its programs; and whether it is here."""

    cost_s: Mapping[str, float]
    here: Mapping[str, bool]

    @property
    def round_s(self) -> float:
        """One look of each."""
        return sum(self.cost_s.values())

    def hourly_s(self) -> dict[str, float]:
        """What each check costs in an hour, dearest first."""
        hourly = {
            spec.name: self.cost_s[spec.name] * 3600 / spec.every_s
            / (1 if self.here[spec.name] else ABSENT_FACTOR)
            for spec in CHECKS
        }  # fmt: skip
        return dict(sorted(hourly.items(), key=lambda pair: -pair[1]))


def looks(root: Path, env: Mapping[str, str]) -> Looks:
    """Medians of some rounds after two that open files and remember what does not change."""
    client = NvmlClient(root=root, env={**os.environ, **env})
    ahead_s = 0.0
    try:
        client.wait(20.0)
        seen = build_checked_machine(root, ExpectedHardware())
        seen = replace(seen, nvml=client.newest, monotonic=lambda: time.monotonic() + ahead_s)
        checks = [load_check(spec) for spec in CHECKS]
        taken: dict[str, list[float]] = {check.spec.name: [] for check in checks}
        here: dict[str, bool] = {}
        before: dict[str, object] = {}
        for turn in range(ROUNDS + 2):
            ahead_s += APART_S
            for check in checks:
                begun = _cpu_s()
                here[check.spec.name] = _look(check, seen, before)
                if turn > 1:
                    taken[check.spec.name].append(_cpu_s() - begun)
    finally:
        client.close()
    return Looks({name: median(each) for name, each in taken.items()}, here)


def _look(check: LoadedCheck, seen: CheckedMachine, before: dict[str, object]) -> bool:
    """Gather and judge once, as the runner does. False where there is no such thing."""
    name = check.spec.name
    try:
        sample = check.gather(seen)
    except DeviceAbsentError:
        return False
    except CheckResultUnknownError:
        return True
    with contextlib.suppress(CheckResultUnknownError):
        list(check.judge(sample, before.get(name), check.limits))
        if check.gauges is not None:
            check.gauges(sample, before.get(name))
    before[name] = sample
    return True


def _cpu_s() -> float:
    """This thread's, and that of the programs that were waited for."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + programs.ru_utime + programs.ru_stime
