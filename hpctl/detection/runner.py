"""Run the timed checks, one after the other, on a separate thread.

A check that hangs in the machine stops the others but not the agent: the kernel's log is read and
reports go out on other threads, and the hanging check becomes a finding.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from msgspec import Struct, field

from hpctl.detection.budget import CheckLoadShedder
from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.check import (
    CheckedMachine,
    CheckFunctions,
    CheckObservation,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
)
from hpctl.detection.checks import (
    efa,
    gpu_driver,
    gpu_links,
    gpu_memory,
    gpu_processes,
    gpu_speed,
    host_disks,
    host_ec2,
    host_filesystems,
    host_memory,
    host_processes,
    host_services,
    job_activity,
    neuron,
    rdma,
)
from hpctl.detection.conditions import CheckFindingTracker
from hpctl.faults.table import HealthCheckSpec
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.jitter import pick_random_pause_seconds
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

log = logging.getLogger(__name__)


STUCK_S = 30.0
"""A gather that lasts for so long counts as hanging."""


ABSENT_FACTOR = 10
"""A missing device is searched again after so many times the interval."""


RETRY_S = 2.0
"""A check that could not tell runs again after this time, then after twice as long, up to its
interval: otherwise a check before the first sweep of NVML would leave its node Unknown for a
minute."""


MOST_BLIND = 16


AGENT_CHECKS = HealthCheckSpec(
    "agent.checks",
    "the agent's own checks: shed to stay within its budget, or standing still",
    "itself",
    every_s=10.0,
    gone_s=0.0,
)


_MODULES = (
    *(efa, rdma, neuron),
    *(gpu_driver, gpu_links, gpu_memory, gpu_processes, gpu_speed),
    *(host_disks, host_ec2, host_filesystems, host_memory),
    *(host_processes, host_services, job_activity),
)


FUNCTIONS: Mapping[str, CheckFunctions] = dict(
    chain.from_iterable(module.CHECKS.items() for module in _MODULES)
)
"""All checks that run at intervals, by their names in `hpctl.faults.table`."""


class LoadedCheck(Struct, frozen=True):
    """A check ready to run. `gauges` are numbers for the head node's comparison of peers."""

    spec: HealthCheckSpec
    gather: Callable[[CheckedMachine], Any]
    judge: Callable[[Any, Any, Limits], Judged]
    limits: Limits
    gauges: Callable[[Any, Any], Mapping[str, float]] | None = None


def load_check(spec: HealthCheckSpec, limits: Limits | None = None) -> LoadedCheck:
    """Return the check of a row of the table; a site's limits override its own."""
    its = FUNCTIONS[spec.name]
    defaults = {name: limit.value for name, limit in spec.limits.items()}
    return LoadedCheck(spec, its.gather, its.judge, {**defaults, **(limits or {})}, its.gauges)


class _ScheduledCheck(Struct):
    """A check, its last sample, and its findings. Before `believe_at` it is too early to judge."""

    check: LoadedCheck
    conditions: CheckFindingTracker
    believe_at: float
    before: Any = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    blind: int = 0

    def pause_s(self) -> float:
        """Return the seconds until it runs again."""
        every_s = self.check.spec.every_s
        return min(every_s, RETRY_S * 2.0 ** (self.blind - 1)) if self.blind else every_s


class CheckRunner(threading.Thread):
    """A runner of checks that are due. `listener` is called when a finding comes or goes.

    `started` and `boot_age_s` decide from when on each check counts (HealthCheckSpec.grace_s); an
    upgrade of the agent restarts the grace.
    """

    def __init__(  # noqa: PLR0913 -- the composition of the agent names each part once
        self,
        checks: Sequence[LoadedCheck],
        machine: CheckedMachine,
        listener: FindingChangeListener,
        budget: CheckLoadShedder,
        *,
        boot_age_s: float,
        upgraded: bool = False,
        earlier: Iterable[Finding] = (),
    ) -> None:
        super().__init__(name="checks", daemon=True)
        self._machine, self._listener, self._budget = machine, listener, budget
        earlier, now = tuple(earlier), machine.monotonic()
        age_s = 0.0 if upgraded else boot_age_s
        self._slots = [
            _ScheduledCheck(c, CheckFindingTracker(c.spec, earlier), now + c.spec.grace_s - age_s)
            for c in checks
        ]
        self._own = CheckFindingTracker(AGENT_CHECKS)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._busy: tuple[str, float] | None = None

    def run(self) -> None:
        """Run until stopped: the check that is overdue longest, then the next."""
        clock = self._machine.monotonic
        # Spread over their first interval: not all together, and different on every node.
        due = [(clock() + _add_jitter(i * 0.05), i) for i in range(len(self._slots))]
        heapq.heapify(due)
        while due and not self._stopping.is_set():
            when, number = heapq.heappop(due)
            if self._stopping.wait(max(0.0, when - clock())):
                break
            slot = self._slots[number]
            self._budget.look(clock())
            shed = self._budget.is_check_level_shed(slot.check.spec.shed)
            if shed:
                slot.gauges = {}
            here = shed or self._run_scheduled_check(slot)
            pause = slot.pause_s() if here else slot.check.spec.every_s * ABSENT_FACTOR
            heapq.heappush(due, (clock() + _add_jitter(pause), number))

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop after the check that runs now, or abandon it: the thread is a daemon."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout_s)

    def forget(self, prefix: str) -> None:
        """Restart the checks of such names: their samples are of devices that were reset. From any
        thread."""
        with self._lock:
            for slot in self._slots:
                if slot.check.spec.name.startswith(prefix):
                    slot.conditions, slot.before = CheckFindingTracker(slot.check.spec), None

    def findings(self) -> list[Finding]:
        """Return all that the checks have to report now, themselves included. From any thread."""
        with self._lock:
            self._own.saw(self._make_agent_health_observations(), datetime.now(UTC))
            found = list(chain.from_iterable(slot.conditions.findings() for slot in self._slots))
            return [*found, *self._own.findings()]

    def gauges(self) -> dict[str, float]:
        """Return the newest numbers of all checks, without old ones. From any thread."""
        if self._find_hanging_check():
            return {}
        with self._lock:
            numbers: dict[str, float] = {}
            for slot in self._slots:
                numbers |= slot.gauges
            return numbers

    def samples(self) -> dict[str, Any]:
        """Return what each check saw last, by its name; nothing where one hangs. From any
        thread."""
        if self._find_hanging_check():
            return {}
        with self._lock:
            return {s.check.spec.name: s.before for s in self._slots if s.before is not None}

    def _make_agent_health_observations(self) -> list[CheckObservation]:
        left_out = [
            s.check.spec.name
            for s in self._slots
            if self._budget.is_check_level_shed(s.check.spec.shed)
        ]
        observations = self._budget.observations(left_out)
        name = self._find_hanging_check()
        if name:
            observations.append(
                CheckObservation("stuck", name, DeviceVerdict.WARN, f"{name} does not return")
            )
        return observations

    def _find_hanging_check(self) -> str:
        """Return the check that does not return, if one does not."""
        busy = self._busy
        stuck = busy is not None and self._machine.monotonic() - busy[1] > STUCK_S
        return busy[0] if busy is not None and stuck else ""

    def _run_scheduled_check(self, slot: _ScheduledCheck) -> bool:
        """Run one check. Return False where this machine has no such device."""
        self._busy = (slot.check.spec.name, self._machine.monotonic())
        seen, here, trouble = self._gather_and_judge_check(slot)
        self._busy = None
        slot.blind = min(slot.blind + 1, MOST_BLIND) if trouble else 0
        with self._lock:
            at = datetime.now(UTC)
            if trouble:
                new = slot.conditions.record_unknown_check_run(trouble, at)
            else:
                early = self._machine.monotonic() < slot.believe_at
                new = slot.conditions.saw(seen, at, early=early)
        if new:
            self._listener.handle_finding_change()
        return here

    def _gather_and_judge_check(
        self, slot: _ScheduledCheck
    ) -> tuple[list[CheckObservation], bool, str]:
        check = slot.check
        gauges: Mapping[str, float] = {}
        try:
            sample = check.gather(self._machine)
            seen = list(check.judge(sample, slot.before, check.limits))
            if check.gauges is not None:
                gauges = check.gauges(sample, slot.before)
            slot.before = sample
        except DeviceAbsentError:
            slot.before = None
            return [], False, ""
        except CheckResultUnknownError as error:
            return [], True, str(error)
        # One broken check must not end the others: it is UNKNOWN, and the log has the reason.
        except Exception as error:
            log.exception("check %s is broken", check.spec.name)
            return [], True, f"the check is broken: {type(error).__name__}: {error}"
        finally:
            # Where it could not tell, the earlier numbers do not apply now.
            slot.gauges = gauges
        return seen, True, ""


def _add_jitter(seconds: float) -> float:
    return pick_random_pause_seconds(0.9 * seconds, 1.1 * seconds)


def make_check_finding(spec: HealthCheckSpec, seen: CheckObservation, now: datetime) -> Finding:
    """Return an observation as a finding of its check."""
    clears = ClearCondition.GONE if seen.verdict is DeviceVerdict.UNKNOWN else spec.clears
    return Finding(
        spec.name, seen.verdict, now, now, seen.device, seen.code, seen.detail, seen.evidence,
        clears=clears, job=seen.job,
    )  # fmt: skip
