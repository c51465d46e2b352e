"""Plays a case through the agent's code and the head node's, to the verdict."""

import heapq
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    DriverHungError,
    ExpectedHardware,
)
from hpctl.detection.conditions import CheckFindingTracker
from hpctl.detection.findings import FindingStore
from hpctl.detection.nvml.client import DEADLINE_S, MISSES
from hpctl.detection.nvml.snapshot import GpuState, NvmlError, NvmlSnapshot
from hpctl.detection.runner import LoadedCheck, load_check
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.table import CHECKS
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import Finding, NodeHealth
from tests.detection.corpus import healthy
from tests.detection.corpus.case import Case, Signal
from tests.detection.corpus.world import World

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
HERE = NodeGeneration("n1", "i-0123456789abcdef0", "b1")
Reported = dict[tuple[str, str, str], float]
"""When each check, code and device was first reported, in seconds of the case."""
SETTLED_S = 120.0
"""After what was seen last: longer than any row waits for companions."""


class CaseVerdict(Struct, frozen=True):
    """A verdict, and the seconds from the fault to where it could first be given.

    None for a case in which the node is left alone.
    """

    verdict: NodeAssessment
    delay_s: float | None


class Player:
    """Plays cases, the checks loaded once."""

    def __init__(self) -> None:
        self._checks = [load_check(spec) for spec in CHECKS]
        self._rules = build_fault_rules()

    def verdict(self, case: Case) -> CaseVerdict:
        """What the head node makes of the case in the end, and how soon it could have."""
        reported: Reported = {}
        findings = tuple(self.findings(case, reported))
        now = T0 + timedelta(seconds=case.for_s + SETTLED_S)
        verdict = assess_health(NodeHealth(HERE, now, findings), self._rules, now)
        return CaseVerdict(verdict, _delay_s(verdict, reported, case))

    def findings(self, case: Case, reported: Reported) -> Iterable[Finding]:
        """Everything that the agent would report at the end of the case."""
        yield from _from_kernel(case)
        if not (case.gpus is case.files is case.devices is None):
            yield from self._from_checks(case, reported)

    def _from_checks(self, case: Case, reported: Reported) -> Iterable[Finding]:
        with tempfile.TemporaryDirectory() as folder:
            clock = _Clock()
            machine = CheckedMachine(
                Path(folder), ExpectedHardware(**case.expected), _nvml(case, clock), clock.now
            )
            world = World(Path(folder), case)
            yield from _play(self._checks, machine, clock, world, case, reported)


class _Clock:
    """The case's own time, in seconds since it began."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return 1000.0 + self.seconds


def _play(checks, machine, clock, world, case, reported):
    """Every check at its own pace for as long as the case lasts."""
    runs = [_Run(check, case) for check in checks]
    due = [(0.0, number) for number in range(len(runs))]
    while due[0][0] <= case.for_s:
        clock.seconds, number = due[0]
        world.at(clock.seconds)
        runs[number].once(machine, T0 + timedelta(seconds=clock.seconds))
        for finding in runs[number].conditions.findings():
            reported.setdefault((finding.check, finding.code, finding.device), clock.seconds)
        heapq.heapreplace(due, (clock.seconds + runs[number].check.spec.every_s, number))
    return [finding for run in runs for finding in run.conditions.findings()]


class _Run:
    """One check at work."""

    def __init__(self, check: LoadedCheck, case: Case) -> None:
        self.check = check
        self._believe_at = T0 + timedelta(seconds=check.spec.grace_s - case.boot_age_s)
        self.conditions = CheckFindingTracker(check.spec)
        self._before: Any = None

    def once(self, machine: CheckedMachine, at: datetime) -> None:
        """As the runner does it."""
        try:
            sample = self.check.gather(machine)
            seen = self.check.judge(sample, self._before, self.check.limits)
            self.conditions.saw(seen, at, early=at < self._believe_at)
            self._before = sample
        except DeviceAbsentError:
            self._before = None
            self.conditions.saw([], at)
        except CheckResultUnknownError as error:
            self.conditions.record_unknown_check_run(str(error), at)


def _from_kernel(case: Case) -> Iterable[Finding]:
    from hpctl.detection.kernel.log import KernelLogAnalyzer
    from hpctl.detection.kmsg import KernelRecord

    kernel, folded = KernelLogAnalyzer(lambda _pid, _at: ""), FindingStore()
    for number, (seconds, text) in enumerate(line for w in case.kernel for line in split_lines(w)):
        facility = 1 if text.startswith("user: ") else 0
        at = T0 + timedelta(seconds=seconds)
        record = KernelRecord(facility, number, at, text.removeprefix("user: "))
        for finding in kernel.findings([record], accept_user=False):
            folded.add(finding)
    return folded.all()


def split_lines(written: str) -> Iterable[tuple[float, str]]:
    """When each line comes, and its text."""
    begin, times, apart = 0.0, 1, 0.0
    if written.startswith("+"):
        first, _, written = written.partition(" ")
        begin = float(first[1:])
    if match := re.match(r"x(\d+)@([\d.]+) ", written):
        times, apart, written = int(match[1]), float(match[2]), written[match.end() :]
    for n in range(times):
        yield begin + n * apart, written.replace("{n}", str(n))


def _nvml(case: Case, clock: _Clock) -> Callable[[], NvmlSnapshot] | None:
    if case.gpus is None:
        return None
    signals = {path: Signal.of(value) for path, value in case.gpus.items()}

    def newest() -> NvmlSnapshot:
        values = {path: signal.at(clock.seconds) for path, signal in signals.items()}
        overdue_s = clock.seconds - case.onset_s if values.pop("hung", False) else 0.0
        if overdue_s > DEADLINE_S * MISSES:  # before that the client shows the sweep it has
            raise DriverHungError(overdue_s, "nvmlDeviceGetFieldValues")
        count = values.pop("count", 8)
        error = values.pop("error", None)
        if error is not None:
            return NvmlSnapshot(clock.now(), error=NvmlError(**error))
        gpus = tuple(healthy.gpu(i, clock.seconds) for i in range(count))
        return NvmlSnapshot(
            clock.now(), gpus=tuple(_changed(gpu, values) for gpu in gpus), slow_at=clock.now()
        )

    return newest


def _changed(gpu: GpuState, values: Mapping[str, Any]) -> GpuState:
    for path, value in values.items():
        who, _, what = path.partition(".")
        if who in ("gpu*", f"gpu{gpu.index}"):
            gpu = _with(gpu, what.split("."), value)
    return gpu


def _with(thing, path: list[str], value):
    """A copy of a frozen value with one thing deep inside it changed."""
    if not path:
        return NvmlError(**value) if isinstance(value, dict) and "call" in value else value
    name, rest = path[0], path[1:]
    if isinstance(thing, tuple):
        picked = range(len(thing)) if name == "*" else [int(name)]
        return tuple(_with(t, rest, value) if i in picked else t for i, t in enumerate(thing))
    if not isinstance(thing, Struct) or name not in thing.__struct_fields__:
        raise ValueError(f"{type(thing).__name__} has no {name!r}")
    return replace(thing, **{name: _with(getattr(thing, name), rest, value)})


def _delay_s(verdict: NodeAssessment, reported: Reported, case: Case) -> float | None:
    """From the fault's onset to a finding that was reported, and the time its row must settle."""
    if not acts(verdict) or verdict.fault is None:
        return None
    seen = [reported.get((f.check, f.code, f.device), 0.0) for f in verdict.findings]
    found = max(0.0, min(seen, default=0.0) - case.onset_s)
    return found + verdict.fault.settle_s


def acts(verdict: NodeAssessment) -> bool:
    """Whether the node would be touched."""
    return verdict.condition is NodeCondition.FAULTY
