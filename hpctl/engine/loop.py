"""The loop: observe, take requests, plan, advance, execute. Read this file first.

Level-triggered: each cycle looks at the whole world again. A start-up is just a cycle: what was
in doubt when the last daemon died is in the journal, and `advance` treats it like any input.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from hpctl.engine.advance import RecoveryPassResult, advance_open_recoveries
from hpctl.engine.clock_watch import WallClockChangeDetector
from hpctl.engine.execute import StepExecutor
from hpctl.engine.journal.events import Event, GateBlocked, HoldLifted, JobReported
from hpctl.engine.journal.state import EngineState
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.kinds import RecoveryKind
from hpctl.engine.pauses import list_pause_end_events
from hpctl.engine.plan import merge_gate_blocks, plan_followup_recoveries, plan_recoveries
from hpctl.engine.requests import (
    map_verbs_to_operator_orders,
    map_verbs_to_request_handlers,
    process_request_catching_errors,
)
from hpctl.engine.view import (
    PlanningView,
    RecoveryCandidate,
    Request,
    SlurmReadScope,
    group_jobs_by_node,
)
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.recovery import RecheckInterval

MAX_PASSES = 50
"""A recovery has fewer phases than this: more passes in one cycle is a bug, not a recovery."""


class NextLoopCycleTime(Struct, frozen=True):
    """When the next cycle should come, if nothing wakes the loop before."""

    acted: bool
    look: RecheckInterval
    until: datetime | None


class PlanningViewObserver(Protocol):
    """What reads the world for one cycle."""

    @property
    def slurm_trouble(self) -> str:
        """Return why Slurm could not be read; empty where it was."""

    @property
    def cloud_trouble(self) -> str:
        """Return why the cloud could not be read; empty where it was."""

    def look(
        self, state: EngineState, rules: FaultRules, acts: bool = True, *, quiet: bool = False
    ) -> PlanningView:
        """Return the world now. `acts`: the mode lets hpctl act on what is seen. `quiet`: nothing
        asks for it, and Slurm need not be read."""


class RequestSource(Protocol):
    """What operators asked for."""

    def pending(self) -> Sequence[Request]:
        """Return the requests that are not taken yet."""


class RecoveryCycleResult(Struct, frozen=True):
    """What one cycle saw and decided.

    `holds` has all that was blocked, the flawed included. `slurm_trouble` and `cloud_trouble` say
    why one of them could not be read; empty: it was.
    """

    at: datetime
    view: PlanningView
    policy: RecoveryPolicy
    candidates: tuple[RecoveryCandidate, ...] = ()
    holds: tuple[GateBlocked, ...] = ()
    flaws: tuple[ItemProcessingFailure, ...] = ()
    slurm_trouble: str = ""
    cloud_trouble: str = ""


class JobReportSource(Protocol):
    """What the supervisors of jobs reported."""

    def news(self) -> Sequence[JobReported]:
        """Return the reports since the last call, which the journal has already."""


class RecoveryLoop:
    """The cycle that one daemon repeats."""

    def __init__(  # noqa: PLR0913 -- the composition of the daemon names each part once
        self,
        memory: JournaledState,
        executor: StepExecutor,
        observer: PlanningViewObserver,
        requests: RequestSource,
        clock: Clock,
        kinds: Sequence[RecoveryKind],
        jobs: JobReportSource | None = None,
    ) -> None:
        """`executor` appends to the same `memory`. `kinds`: of recoveries, see `engine.kinds`.
        `jobs` None: no supervisor of a job reports."""
        self._memory, self.executor, self._observer = memory, executor, observer
        self._requests, self._jobs, self._clock = requests, jobs, clock
        self._clock_watch = WallClockChangeDetector(clock)
        self._kinds, self._orders = kinds, map_verbs_to_operator_orders(kinds)
        self._answers = map_verbs_to_request_handlers(kinds)
        self.last: RecoveryCycleResult | None = None
        """The last cycle that came to its end."""

    @property
    def state(self) -> EngineState:
        """Return the state in memory."""
        return self._memory.state

    @property
    def flaws(self) -> tuple[ItemProcessingFailure, ...]:
        """Return what could not be handled in the last cycle, one entry each."""
        return self.last.flaws if self.last else ()

    def cycle(
        self, policy: RecoveryPolicy, rules: FaultRules, *, quiet: bool = False
    ) -> NextLoopCycleTime:
        """Once round. `quiet`: no event asks for it. Raises what the journal raises; what raises
        about one thing is its flaw."""
        self.executor.collect()
        self._memory.append(self._clock_watch.look(self.state.newest))
        reports = self._jobs.news() if self._jobs is not None else ()
        _, of_reports = process_items_capturing_failures(
            "fold", reports, lambda e: e.report.job, self.state.fold
        )
        view, now = self._observe_planning_view(policy, rules, quiet=quiet and not reports)
        for request in self._requests.pending():
            events = process_request_catching_errors(
                request, view, policy, now, self._orders, self._answers
            )
            self._memory.append(events)
        self._memory.append(list_pause_end_events(self.state, now))
        here = group_jobs_by_node(list(self.state.open_nodes), view.scheduler.jobs)
        decided = plan_recoveries(view, policy, rules, here, now, self._kinds)
        self._memory.append(decided.opens)
        later = plan_followup_recoveries(view, policy, here, now, self._kinds)
        self._memory.append(later.opens)
        before = self._count_open_recoveries()
        progress = self._advance_recoveries(view, policy, now)
        begun = self.executor.run(progress.due)
        flaws = [*view.flaws.values(), *of_reports, *decided.flaws, *later.flaws, *progress.flaws]
        flaws += self.executor.flaws()
        holds = merge_gate_blocks(flaws, [*decided.holds, *later.holds], self.state.holds, now)
        self._memory.append(self._list_gate_block_changes(holds, now))
        self.last = RecoveryCycleResult(
            at=now,
            view=view,
            policy=policy,
            candidates=decided.candidates,
            holds=tuple(holds),
            flaws=tuple(flaws),
            slurm_trouble=self._observer.slurm_trouble,
            cloud_trouble=self._observer.cloud_trouble,
        )
        # What has ended may be decided again: a run that failed again, say.
        ended = self._count_open_recoveries() < before
        return find_next_loop_cycle_time(
            progress, view, begun or ended or bool(decided.opens or later.opens)
        )

    def _observe_planning_view(
        self, policy: RecoveryPolicy, rules: FaultRules, *, quiet: bool
    ) -> tuple[PlanningView, datetime]:
        """Return the world, and when it was looked at. Where something would be begun on what was
        read before, Slurm is read first."""
        acts = policy.mode is not OperatingMode.OBSERVE
        view = self._observer.look(self.state, rules, acts, quiet=quiet)
        now = self._clock.now()
        if view.reading is SlurmReadScope.NONE and self._has_new_recovery_work(
            view, policy, rules, now
        ):
            view = self._observer.look(self.state, rules, acts)
            now = self._clock.now()
        return view, now

    def _has_new_recovery_work(
        self, view: PlanningView, policy: RecoveryPolicy, rules: FaultRules, now: datetime
    ) -> bool:
        if self._requests.pending():
            return True
        here = group_jobs_by_node(list(self.state.open_nodes), view.scheduler.jobs)
        if plan_recoveries(view, policy, rules, here, now, self._kinds).opens:
            return True
        return bool(plan_followup_recoveries(view, policy, here, now, self._kinds).opens)

    def _count_open_recoveries(self) -> int:
        state = self.state
        return len(state.open_nodes) + len(state.open_jobs) + len(state.open_changes)

    def _advance_recoveries(
        self, view: PlanningView, policy: RecoveryPolicy, now: datetime
    ) -> RecoveryPassResult:
        for _ in range(MAX_PASSES):
            progress = advance_open_recoveries(view, policy, now, self._kinds)
            if not progress.moves:
                return progress
            self._memory.append(progress.moves)
        raise RuntimeError(f"recoveries still move after {MAX_PASSES} passes: {progress.moves}")

    def _list_gate_block_changes(self, holds: Sequence[GateBlocked], now: datetime) -> list[Event]:
        """Holds are written once per change of reason, not once per cycle."""
        known = self.state.holds
        reasons = {target: (hold.gate, hold.rule) for target, hold in known.items()}
        new = [hold for hold in holds if reasons.get(hold.target) != (hold.gate, hold.rule)]
        current = {hold.target for hold in holds}
        return [*new, *(HoldLifted(now, t) for t in sorted(known) if t not in current)]


_SOONEST = (
    RecheckInterval.SOON,
    RecheckInterval.OFTEN,
    RecheckInterval.SLOWLY,
    RecheckInterval.WOKEN,
)


def find_next_loop_cycle_time(
    progress: RecoveryPassResult, view: PlanningView, acted: bool
) -> NextLoopCycleTime:
    """Return when the loop looks again: at the end of the first wait, at once where it `acted`."""
    look = min((w.look for w in progress.waits), key=_SOONEST.index, default=RecheckInterval.WOKEN)
    times = [w.until for w in progress.waits]
    times += [a.until for a in view.assessments.values() if a.until is not None]
    if view.silent_at is not None:
        times.append(view.silent_at)
    times += [p.until for p in view.state.pauses.values() if p.until and p.lifted is None]
    return NextLoopCycleTime(acted, look, min(times, default=None))
