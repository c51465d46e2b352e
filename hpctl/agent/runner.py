"""Runs the timed checks, one after the other, in a thread of their own.

A check that hangs in the machine stops the others but not the agent: the kernel's log is read and
reports go out on other threads, and that the checks stand still becomes a finding itself.
"""

from __future__ import annotations

import heapq
import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpctl.agent.check import CannotTell, Functions, Judged, Limits, Machine, NotHere, Observation
from hpctl.agent.checks import (
    check_efa,
    check_gpu_driver,
    check_gpu_links,
    check_gpu_memory,
    check_gpu_processes,
    check_gpu_speed,
    check_host_disks,
    check_host_ec2,
    check_host_filesystems,
    check_host_memory,
    check_host_processes,
    check_host_services,
    check_job_activity,
    check_neuron,
    check_rdma,
)
from hpctl.agent.checks.kernel_log import Kernel
from hpctl.agent.findings import Conditions, Findings
from hpctl.agent.kmsg import open_log
from hpctl.agent.procs import Jobs
from hpctl.core.assess import assess_settled
from hpctl.core.catalogue import rules
from hpctl.core.compat import UTC
from hpctl.core.faults import CheckSpec
from hpctl.core.model import Clears, Condition, Finding, Verdict
from hpctl.errors import Unavailable

log = logging.getLogger(__name__)

STUCK_S = 30.0
"""A gather that lasts for so long hangs."""
ABSENT_FACTOR = 10
"""What is not here is looked for again after so many times its interval."""
RETRY_S = 2.0
"""What could not tell is asked again so soon, then after twice as long, up to its interval: else
a check that came before the first sweep of NVML would leave its node Unknown for a minute."""
MOST_BLIND = 16
AGENT_CHECKS = CheckSpec(
    "agent.checks",
    "the agent's own checks: shed to stay within its budget, or standing still",
    "itself",
    every_s=10.0,
    gone_s=0.0,
)
_MODULES = (
    *(check_efa, check_rdma, check_neuron),
    *(check_gpu_driver, check_gpu_links, check_gpu_memory, check_gpu_processes, check_gpu_speed),
    *(check_host_disks, check_host_ec2, check_host_filesystems, check_host_memory),
    *(check_host_processes, check_host_services, check_job_activity),
)
FUNCTIONS: Mapping[str, Functions] = {k: v for module in _MODULES for k, v in module.CHECKS.items()}
"""All checks that run at intervals, by their names in `hpctl.core.faults`."""


class Check(Struct, frozen=True):
    """A check ready to run. `gauges` are numbers for the head node's comparison of peers."""

    spec: CheckSpec
    gather: Callable[[Machine], Any]
    judge: Callable[[Any, Any, Limits], Judged]
    limits: Limits
    gauges: Callable[[Any, Any], Mapping[str, float]] | None = None


def load(spec: CheckSpec, limits: Limits | None = None) -> Check:
    """The check of a row of the table, with a site's limits over its own."""
    its = FUNCTIONS[spec.name]
    defaults = {name: limit.value for name, limit in spec.limits.items()}
    return Check(spec, its.gather, its.judge, {**defaults, **(limits or {})}, its.gauges)


class _Slot(Struct):
    """A check, what it saw last, and what is made of it. Before `believe_at` it is too early."""

    check: Check
    conditions: Conditions
    believe_at: float
    before: Any = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    blind: int = 0

    def pause_s(self) -> float:
        """Until it is to run again."""
        every_s = self.check.spec.every_s
        return min(every_s, RETRY_S * 2.0 ** (self.blind - 1)) if self.blind else every_s


class Runner(threading.Thread):
    """Runs checks when they are due. `changed` is called when a finding comes or goes.

    `started` and `boot_age_s` say from when on each check is believed (CheckSpec.grace_s); after an
    upgrade of the agent its grace begins anew.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        machine: Machine,
        changed: Callable[[], None],
        budget: Budget,
        *,
        boot_age_s: float,
        upgraded: bool = False,
        earlier: Iterable[Finding] = (),
    ) -> None:
        super().__init__(name="checks", daemon=True)
        self._machine, self._changed, self._budget = machine, changed, budget
        earlier, now = tuple(earlier), machine.monotonic()
        age_s = 0.0 if upgraded else boot_age_s
        self._slots = [
            _Slot(c, Conditions(c.spec, earlier), now + c.spec.grace_s - age_s) for c in checks
        ]
        self._own = Conditions(AGENT_CHECKS)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._busy: tuple[str, float] | None = None

    def run(self) -> None:
        """Until stopped: the check that is due longest, then the next."""
        clock = self._machine.monotonic
        # Spread over their first interval: not all at once, and not the same on every node.
        due = [(clock() + _jitter(i * 0.05), i) for i in range(len(self._slots))]
        heapq.heapify(due)
        while due and not self._stopping.is_set():
            when, number = heapq.heappop(due)
            if self._stopping.wait(max(0.0, when - clock())):
                break
            slot = self._slots[number]
            self._budget.look(clock())
            if shed := self._budget.shed(slot.check.spec.shed):
                slot.gauges = {}
            here = shed or self._once(slot)
            pause = slot.pause_s() if here else slot.check.spec.every_s * ABSENT_FACTOR
            heapq.heappush(due, (clock() + _jitter(pause), number))

    def stop(self, timeout_s: float = 2.0) -> None:
        """End after the check that runs now, or leave it: the thread is a daemon."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout_s)

    def forget(self, prefix: str) -> None:
        """Begin anew with the checks of such names: what they saw was of devices that were reset.
        From any thread."""
        with self._lock:
            for slot in self._slots:
                if slot.check.spec.name.startswith(prefix):
                    slot.conditions, slot.before = Conditions(slot.check.spec), None

    def findings(self) -> list[Finding]:
        """All that the checks have to report now, themselves included. From any thread."""
        with self._lock:
            self._own.saw(self._about_itself(), datetime.now(UTC))
            found = [f for slot in self._slots for f in slot.conditions.findings()]
            return [*found, *self._own.findings()]

    def gauges(self) -> dict[str, float]:
        """The newest numbers of all checks, but none that are old. From any thread."""
        if self._hangs():
            return {}
        with self._lock:
            return {name: value for s in self._slots for name, value in s.gauges.items()}

    def samples(self) -> dict[str, Any]:
        """What each check saw last, by its name; nothing where one hangs. From any thread."""
        if self._hangs():
            return {}
        with self._lock:
            return {s.check.spec.name: s.before for s in self._slots if s.before is not None}

    def _about_itself(self) -> list[Observation]:
        left_out = [s.check.spec.name for s in self._slots if self._budget.shed(s.check.spec.shed)]
        observations = self._budget.observations(left_out)
        if name := self._hangs():
            observations.append(Observation("stuck", name, Verdict.WARN, f"{name} does not return"))
        return observations

    def _hangs(self) -> str:
        """The check that does not return, if one does not."""
        busy = self._busy
        stuck = busy is not None and self._machine.monotonic() - busy[1] > STUCK_S
        return busy[0] if busy is not None and stuck else ""

    def _once(self, slot: _Slot) -> bool:
        """Run one check. False where this machine has no such thing."""
        self._busy = (slot.check.spec.name, self._machine.monotonic())
        seen, here, trouble = self._gather(slot)
        self._busy = None
        slot.blind = min(slot.blind + 1, MOST_BLIND) if trouble else 0
        with self._lock:
            at = datetime.now(UTC)
            if trouble:
                new = slot.conditions.could_not_tell(trouble, at)
            else:
                early = self._machine.monotonic() < slot.believe_at
                new = slot.conditions.saw(seen, at, early=early)
        if new:
            self._changed()
        return here

    def _gather(self, slot: _Slot) -> tuple[list[Observation], bool, str]:
        check = slot.check
        gauges: Mapping[str, float] = {}
        try:
            sample = check.gather(self._machine)
            seen = list(check.judge(sample, slot.before, check.limits))
            if check.gauges is not None:
                gauges = check.gauges(sample, slot.before)
            slot.before = sample
        except NotHere:
            slot.before = None
            return [], False, ""
        except CannotTell as error:
            return [], True, str(error)
        # One broken check must not end the others: it is UNKNOWN, and the log says why.
        except Exception as error:
            log.exception("check %s is broken", check.spec.name)
            return [], True, f"the check is broken: {type(error).__name__}: {error}"
        finally:
            # Where it could not tell, the numbers of before are none of now.
            slot.gauges = gauges
        return seen, True, ""


def _jitter(seconds: float) -> float:
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - not a secret


def _plain(spec: CheckSpec, seen: Observation, now: datetime) -> Finding:
    clears = Clears.GONE if seen.verdict is Verdict.UNKNOWN else spec.clears
    return Finding(
        spec.name, seen.verdict, now, now, seen.device, seen.code, seen.detail, seen.evidence,
        clears=clears, job=seen.job,
    )  # fmt: skip


# --- once ---
#
# One run of every check on this machine, and one look at the kernel's log as it stands.

LOG = "kernel"
_WORST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN, Verdict.NOTE)
_STATES = {Condition.FAULTY: Verdict.FAIL, Condition.SUSPECT: Verdict.WARN}


class CheckRow(Struct, frozen=True):
    """One check: `state` is ok, note, warn, fail, unknown, or absent where this machine lacks it.

    `why` says what it looks at, why it is absent or unknown, or what the kernel's lines amount to.
    """

    check: str
    state: str
    why: str
    findings: tuple[Finding, ...] = ()


def look(checks: Sequence[Check], machine: Machine) -> list[CheckRow]:
    """Run each check now, one after the other, N of M and grace aside."""
    return [_row(check, machine) for check in checks]


def look_at_log(path: Path, *, accept_user: bool = False) -> tuple[CheckRow, int]:
    """What this boot's kernel log says, folded, and how many records were lost."""
    try:
        findings, lost = _read_log(path, accept_user)
    except Unavailable as error:
        return CheckRow(LOG, Verdict.UNKNOWN, f"{error} {error.hint}".strip()), 0
    return _log_row(path, findings), lost


def _log_row(path: Path, findings: tuple[Finding, ...]) -> CheckRow:
    """Judge the lines together, by the daemon's own function, so that both say the same."""
    if not findings:
        return CheckRow(LOG, Verdict.OK, f"what the kernel says in {path}")
    assessment = assess_settled(findings, rules())
    state = _STATES.get(assessment.condition, Verdict.NOTE)
    return CheckRow(LOG, state, assessment.why, findings)


def _read_log(path: Path, accept_user: bool) -> tuple[tuple[Finding, ...], int]:
    source, kernel, findings = open_log(path), Kernel(Jobs().of), Findings()
    try:
        while records := source.read():
            for finding in kernel.findings(records, accept_user=accept_user):
                findings.add(finding)
    finally:
        source.close()
    return findings.all(), source.lost


def _row(check: Check, machine: Machine) -> CheckRow:
    spec, now = check.spec, datetime.now(UTC)
    try:
        seen = list(check.judge(check.gather(machine), None, check.limits))
    except NotHere as error:
        return CheckRow(spec.name, "absent", str(error))
    except CannotTell as error:
        seen = [Observation("cannot_tell", "", Verdict.UNKNOWN, str(error)[:256])]
    findings = tuple(_plain(spec, one, now) for one in seen)
    return CheckRow(spec.name, _worst(findings), spec.what, findings)


def _worst(findings: Sequence[Finding]) -> str:
    verdicts = {finding.verdict for finding in findings}
    return next((verdict.value for verdict in _WORST if verdict in verdicts), Verdict.OK.value)


# --- budget ----------
# The agent watches itself: over its budget, it sheds optional checks and says that it did.

CPU_PERCENT = 0.5
"""Of one core, over a window."""
MEMORY_MB = 40.0
"""Resident, of the agent's own process."""
WINDOW_S = 60.0
OVER_WINDOWS = 3
"""So many windows over the budget shed one more level."""
CALM_WINDOWS = 10
"""So many windows under half of the CPU and 0.9 of the memory take one level back."""
_MB = 1e6


class Usage(Struct, frozen=True):
    """What the process has used: CPU seconds so far, resident memory now in MB."""

    cpu_s: float
    memory_mb: float


def usage() -> Usage:
    """Of this process, all threads, without its children."""
    times = os.times()
    return Usage(times.user + times.system, resident_mb("self"))


def resident_mb(process: int | str) -> float:
    """Return the resident memory of a process in MB. Raises OSError once it has ended."""
    statm = Path(f"/proc/{process}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB


class Budget:
    """Decides which levels of checks (Spec.shed) are shed. `levels` are those in use."""

    def __init__(
        self,
        levels: Collection[int],
        cpu_percent: float = CPU_PERCENT,
        memory_mb: float = MEMORY_MB,
        measure: Callable[[], Usage] = usage,
    ) -> None:
        self._levels = sorted({level for level in levels if level > 0}, reverse=True)
        self._cpu_percent, self._memory_mb, self._measure = cpu_percent, memory_mb, measure
        self._last: tuple[float, Usage] | None = None
        self._over = self._calm = 0
        self._shed = 0
        self.cpu_percent = 0.0
        self.memory_mb = 0.0

    def shed(self, level: int) -> bool:
        """Whether checks of that level are not to run now."""
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

    def observations(self, left_out: Collection[str]) -> list[Observation]:
        """What to report of itself: which checks it left out, and why."""
        if not self._shed:
            return []
        used = f"{self.cpu_percent:.2f} % of a core, {self.memory_mb:.0f} MB"
        return [
            Observation(
                "shed",
                verdict=Verdict.WARN,
                detail=f"not run to save resources: {', '.join(sorted(left_out))}",
                evidence=f"used {used}; allowed {self._cpu_percent:g} % and {self._memory_mb:g} MB",
            )
        ]
