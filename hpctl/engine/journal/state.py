"""What is written down, and how memory is rebuilt from it.

The journal is an intent log for recovery, not a debug log. Running and restarting fold the same
events through the same tables, so they cannot disagree; an event that is illegal where it
stands is corruption, and corruption stops the daemon.
"""

import gc
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.journal import earlier_removals
from hpctl.engine.journal.events import (
    LIFTS_PAUSE,
    PAUSE_ENDED,
    ClockSet,
    ConfigurationTaken,
    Event,
    GateBlocked,
    HoldLifted,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.moved_times import shift_recovery_times
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary import change, job_recovery, node_recovery
from hpctl.vocabulary.change import ChangeOpened, ClusterChange
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.pause import (
    Pause,
    end_pause_of_scope,
    lift_pauses_in_scope,
    remove_pauses_ended_before,
)
from hpctl.vocabulary.recovery import (
    IllegalRecoverySignalError,
    RecoveryStepRecord,
    record_step_outcome,
)

REPORTS_KEPT = 64
"""Of each job, in memory: more than any policy's budgets look back on."""


PAUSES_KEPT_S: Final = 86400.0
"""So long after its end a pause still puts deadlines off."""


class InconsistentEventError(Exception):
    """An event that cannot follow those before it."""


RECENT_S: Final = 90 * 86400.0
"""Nothing younger is past. No shipped window looks back further, the forecast's among them."""


class EngineState(Struct):
    """All that the journal amounts to. Only `fold` changes it, and who sets `retired`."""

    nodes: dict[RecoveryId, NodeRecovery] = field(default_factory=dict)
    jobs: dict[RecoveryId, JobRecovery] = field(default_factory=dict)
    open_nodes: dict[NodeName, RecoveryId] = field(default_factory=dict)
    open_jobs: dict[JobId, RecoveryId] = field(default_factory=dict)
    attempts: dict[JobAttempt, RecoveryId] = field(default_factory=dict)
    last_of_node: dict[NodeName, RecoveryId] = field(default_factory=dict)
    holds: dict[str, GateBlocked] = field(default_factory=dict)
    approvals: dict[str, datetime] = field(default_factory=dict)
    returned: dict[NodeName, datetime] = field(default_factory=dict)
    """When an operator last gave a node back: what only an operator clears is cleared then."""
    reports: dict[JobId, tuple[JobReported, ...]] = field(default_factory=dict)
    """What the supervisors of each job reported, oldest first; the newest REPORTS_KEPT."""
    changes: dict[RecoveryId, ClusterChange] = field(default_factory=dict)
    open_changes: dict[str, RecoveryId] = field(default_factory=dict)
    mass_events: dict[RuleId, datetime] = field(default_factory=dict)
    """When each rule was last seen to be a mass event, by the holds of gate `correlated`."""
    pauses: dict[str, Pause] = field(default_factory=dict)
    """The newest pause of each scope, ended ones of the last days included."""
    configuration: ConfigurationTaken | None = None
    events: int = 0
    began: datetime | None = None
    """When the first of the events was."""
    newest: datetime | None = None
    """When the last of the events was."""
    retired: frozenset[RecoveryId] = frozenset()
    """The ids of what is in the journal's past alone (`hpctl.engine.retire`)."""

    def __contains__(self, rid: object) -> bool:
        """Return whether an id is taken, by whatever kind of recovery or change, now or in the
        past."""
        return any(rid in ids for ids in (self.nodes, self.jobs, self.changes, self.retired))

    @property
    def windows(self) -> list[ClusterChange]:
        """Return the open maintenance windows."""
        open_now = (self.changes[rid] for rid in self.open_changes.values())
        return [one for one in open_now if change.is_maintenance_window(one)]

    @property
    def is_cluster_resizing(self) -> bool:
        """Return whether a change of capacity is open."""
        return len(self.open_changes) > len(self.windows)

    def node_recovery(self, node: NodeName) -> NodeRecovery | None:
        """Return the open recovery of a node."""
        rid = self.open_nodes.get(node)
        return None if rid is None else self.nodes[rid]

    def is_node_in_recovery(self, node: NodeName) -> bool:
        """Return whether a node is treated, and not only to change the size of its group."""
        rec = self.node_recovery(node)
        return rec is not None and not rec.is_for_capacity_change

    def is_node_faulty(self, node: NodeName) -> bool:
        """Return whether a node is treated for a fault, and not for a maintenance window or a
        size."""
        rec = self.node_recovery(node)
        return rec is not None and not (rec.is_for_capacity_change or rec.is_for_maintenance)

    def get_open_job_recovery(self, job: JobId) -> JobRecovery | None:
        """Return the open recovery of a job."""
        rid = self.open_jobs.get(job)
        return None if rid is None else self.jobs[rid]

    def fold(self, event: Event) -> None:  # noqa: C901, PLR0912 -- one case for each kind of event
        """Take one event in. Raises InconsistentEventError where it cannot follow those before
        it."""
        self.events += 1
        if self.began is None:
            self.began = event.at
        self.newest = event.at
        match event:
            # The most frequent first: a journal of months is replayed by every command.
            case SignalSeen():
                self._apply_signal_event(event)
            case StepStarted() | StepResolved():
                self._apply_step_event(event)
            case JobReported():
                self._apply_job_report(event)
            case NodeRecoveryOpened():
                self._open_node_recovery(event)
            case JobRecoveryOpened():
                job = JobRecovery(
                    **_list_recovery_opening_fields(event, JobRecovery),
                    phase=job_recovery.JobRecoveryPhase.HIT,
                )
                self._add_open_recovery(self.jobs, self.open_jobs, job)
                self.attempts[event.attempt] = job.id
            case ChangeOpened():
                self._open_cluster_change(event)
            case GateBlocked():
                self._record_mass_event_time(self.holds.get(event.target), event.at)
                self._record_mass_event_time(event, event.at)
                self.holds[event.target] = event
            case HoldLifted():
                self._record_mass_event_time(self.holds.pop(event.target, None), event.at)
            case RequestTaken():
                self._apply_request_event(event)
            case ConfigurationTaken():
                self.configuration = event
            case ClockSet():
                self._shift_open_recovery_times(event)
            case _:  # DaemonStarted
                pass

    def _shift_open_recovery_times(self, event: ClockSet) -> None:
        for rid in self.open_nodes.values():
            self.nodes[rid] = shift_recovery_times(self.nodes[rid], event.by_s)
        for rid in self.open_jobs.values():
            self.jobs[rid] = shift_recovery_times(self.jobs[rid], event.by_s)
        for rid in self.open_changes.values():
            self.changes[rid] = shift_recovery_times(self.changes[rid], event.by_s)

    def _record_mass_event_time(self, hold: GateBlocked | None, at: datetime) -> None:
        if hold is not None and hold.gate == "correlated":
            self.mass_events[hold.rule] = at

    def _add_open_recovery(
        self, kept: dict[RecoveryId, Any], listed: dict[Any, RecoveryId], rec: Any
    ) -> None:
        if rec.id in kept or rec.key in listed:
            raise InconsistentEventError(f"{rec.id} opened while {listed.get(rec.key)} is open")
        kept[rec.id] = rec
        listed[rec.key] = rec.id

    def _open_node_recovery(self, event: NodeRecoveryOpened) -> None:
        values = {
            **_list_recovery_opening_fields(event, NodeRecovery),
            "opened_for": event.generation,
        }
        node = NodeRecovery(**values, phase=node_recovery.NodeRecoveryPhase.OPEN)
        earlier = self.node_recovery(node.node)
        if earlier is not None and earlier.was_change:
            self.nodes[earlier.id] = earlier_removals.end_superseded_node_removal(earlier, event.at)
            del self.open_nodes[node.node]
        self._add_open_recovery(self.nodes, self.open_nodes, node)
        if not node.is_for_capacity_change:
            self.last_of_node[node.node] = node.id

    def _open_cluster_change(self, event: ChangeOpened) -> None:
        if event.kind in earlier_removals.KINDS:
            self._open_old_version_node_removal(
                earlier_removals.convert_old_node_removal_opening(event)
            )
        else:
            self._add_open_recovery(
                self.changes, self.open_changes, change.create_cluster_change(event)
            )

    def _open_old_version_node_removal(self, rec: NodeRecovery) -> None:
        """A removal, or a return, as an earlier version wrote it."""
        beside = self.node_recovery(rec.node)
        if beside is not None and not beside.was_change and not rec.ended:
            rec = earlier_removals.end_superseded_node_removal(rec, rec.opened)
        if not rec.ended:
            self._add_open_recovery(self.nodes, self.open_nodes, rec)
        elif rec.id in self.nodes:
            raise InconsistentEventError(f"{rec.id} opened twice")
        else:
            self.nodes[rec.id] = rec

    def _find_maps_holding_recovery(
        self, e: SignalSeen | StepStarted | StepResolved
    ) -> tuple[dict[Any, Any], ...]:
        """Return where a recovery or change is kept, and where it is listed while it is open."""
        for kept, listed in (
            (self.nodes, self.open_nodes),
            (self.jobs, self.open_jobs),
            (self.changes, self.open_changes),
        ):
            if e.recovery in kept:
                return kept, listed
        what = e.signal if isinstance(e, SignalSeen) else f"step {e.step}"
        raise InconsistentEventError(f"{what} of {e.recovery}, which was never opened")

    def _apply_signal_event(self, e: SignalSeen) -> None:
        kept, listed = self._find_maps_holding_recovery(e)
        before = rec = kept[e.recovery]
        signals: tuple[str, ...] = (e.signal,)
        try:
            if isinstance(rec, NodeRecovery):
                signals = earlier_removals.convert_old_node_removal_signal(rec, e.signal)
            for signal in signals:
                rec = rec.on(signal, e.at, e.why, e.generation)
        except (ValueError, IllegalRecoverySignalError) as error:
            raise InconsistentEventError(str(error)) from error
        kept[rec.id] = replace(rec, tests=e.tests) if e.tests else rec
        if rec.ended and not before.ended:
            del listed[rec.key]

    def _apply_step_event(self, e: StepStarted | StepResolved) -> None:
        kept, _ = self._find_maps_holding_recovery(e)
        rec = kept[e.recovery]
        if isinstance(e, StepStarted):
            if rec.ended and not getattr(rec, "was_change", False):
                raise InconsistentEventError(
                    f"step {e.step} started by {e.recovery}, which is {rec.phase}"
                )
            begun = RecoveryStepRecord(e.step, e.attempt, e.target, e.at, moves=len(rec.trail))
            steps = (*rec.steps, begun)
        else:
            try:
                steps = record_step_outcome(rec.steps, e.step, e.attempt, e.outcome, e.at)
            except IllegalRecoverySignalError as error:
                raise InconsistentEventError(f"{e.recovery}: {error}") from error
        kept[rec.id] = replace(rec, steps=steps)

    def _apply_job_report(self, e: JobReported) -> None:
        """The same report twice is one."""
        known = self.reports.get(e.report.job, ())
        if e not in known:
            self.reports[e.report.job] = (*known, e)[-REPORTS_KEPT:]

    def _apply_request_event(self, e: RequestTaken) -> None:
        if not e.ok:
            return
        if e.verb == "pause":
            self.pauses = remove_pauses_ended_before(
                self.pauses, add_seconds_within_bounds(e.at, -PAUSES_KEPT_S)
            )
            self.pauses[e.target] = Pause(e.target, e.by or "operator", e.at, e.why, e.until)
        elif e.verb in LIFTS_PAUSE:
            self.pauses = lift_pauses_in_scope(self.pauses, e.target, e.at)
        elif e.verb == PAUSE_ENDED:
            self.pauses.update(end_pause_of_scope(self.pauses, e.target, e.at))
        elif e.verb == "approve":
            self.approvals[e.target] = e.at
        elif e.verb == "return":
            self.returned[NodeName(e.target)] = e.at


def _list_recovery_opening_fields(
    e: NodeRecoveryOpened | JobRecoveryOpened, kind: type[Any]
) -> dict[str, Any]:
    """Return what an opening says of its recovery, under the recovery's own names."""
    values = {name: getattr(e, name) for name in kind.__struct_fields__ if hasattr(e, name)}
    return {**values, "id": e.recovery, "opened": e.at, "since": e.at}


def replay_events(events: Iterable[Event]) -> EngineState:
    """Rebuild memory. Raises InconsistentEventError at the first event that cannot follow those
    before it.

    Without the cyclic collector, in half the time: it would look through a hundred thousand new
    values with no cycle among them again and again.
    """
    state, collects = EngineState(), gc.isenabled()
    gc.disable()
    try:
        for event in events:
            state.fold(event)
    finally:
        if collects:
            gc.enable()
    return state
