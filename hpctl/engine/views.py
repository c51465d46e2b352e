"""The parts that several commands show: recoveries, steps and holds as the JSON contract has them.

The field names are the contract: add, never rename or drop (docs/cli-json.md).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from hpctl.engine.journal.events import GateBlocked, JobReported
from hpctl.engine.journal.state import RECENT_S, EngineState
from hpctl.engine.timeline import (
    describe_capacity_change,
    describe_node_removal,
    format_recovery_or_change_headline,
)
from hpctl.toolkit.declared_view import (
    AgeCell,
    Column,
    Columns,
    JsonOnly,
    RowTable,
    TextLine,
    make_state_column,
)
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.tables import BAD, DIM, WARN, join_styled_texts, style_text
from hpctl.toolkit.view_copy import build_view_from_source
from hpctl.vocabulary.change import (
    ClusterChange,
    find_node_removal_kind,
    find_node_removal_phase,
    is_maintenance_window,
)
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.recovery import RecoveryStepRecord, RecoveryTransitionRecord
from hpctl.vocabulary.trouble import Trouble

if TYPE_CHECKING:
    from rich.text import Text


class RecoveryStepView(Struct, frozen=True):
    """One attempt at one effect. `outcome` is empty while no answer is on record."""

    kind: str
    attempt: int
    target: str
    started: datetime
    resolved: datetime | None
    outcome: str
    code: str
    detail: str
    in_doubt: bool


class JobFailureView(Struct, frozen=True):
    """What went wrong with a run. Texts are empty, numbers null, where the value is unknown."""

    kind: str
    at: datetime
    why: str
    signature: str
    node: str
    rank: int | None
    device: str
    exit_code: int | None
    evidence: str
    step: int | None
    progress: int | None


class SupervisorReportView(Struct, frozen=True):
    """What a job's supervisor reported: the trouble, what it did, what it wished."""

    job: int
    restarts: int
    at: datetime
    uid: int
    trouble: JobFailureView | None
    action: str
    why: str
    wish: str
    exclude: tuple[str, ...]
    after_s: float
    progress: int | None

    columns: ClassVar[Columns] = (
        Column("JOB", "job"),
        Column("RUN", "restarts"),
        Column("AGO", AgeCell("at")),
        Column("TROUBLE", lambda row: row.trouble.kind if row.trouble else None),
        Column("DID", lambda row: f"wish: {row.wish}" if row.wish else row.action),
        Column("WHY", "reason", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("uid", "exclude", "after_s", "progress")

    @property
    def reason(self) -> str | None:
        """Return why the run went wrong, else why its supervisor did what it did."""
        return (self.trouble.why if self.trouble else "") or self.why or None


def _format_recovery_steps(row: NodeRecoveryView | JobRecoveryView) -> Text:
    """Return the steps in order; `?` for one in doubt, `!` for one refused."""
    parts = []
    for s in row.steps:
        refused = s.outcome == "rejected"
        again = f"#{s.attempt}" if s.attempt > 1 else ""
        tail, style = ("?", WARN) if s.in_doubt else (("!", BAD) if refused else ("", ""))
        parts.append(style_text(f"{s.kind}{again}{tail}", style))
    return join_styled_texts(" ", parts) if parts else style_text("-", DIM)


class NodeRecoveryView(Struct, frozen=True):
    """A node recovery. `instance` and `boot` are the generation treated now; `waits` says which job
    it waits for, empty where it waits for none or that was not looked at."""

    id: str
    node: str
    phase: str
    ended: bool
    opened: datetime
    since: datetime
    instance: str
    boot: str
    logical_id: str
    rule: str
    meaning: str
    urgency: str
    ladder: tuple[str, ...]
    remedy: str
    why: str
    by: str
    headline: str
    steps: tuple[RecoveryStepView, ...]
    moves: tuple[RecoveryTransitionRecord, ...]
    waits: str = ""

    columns: ClassVar[Columns] = (
        Column("ID", "id"),
        Column("NODE", "node"),
        make_state_column("PHASE", "phase"),
        Column("FOR", AgeCell("opened", until="closed_at")),
        Column("RULE", "rule"),
        Column("REMEDY", "remedy", wide=True),
        Column("STEPS", _format_recovery_steps, fold=True),
    )
    json_only: ClassVar[JsonOnly] = (
        "instance",
        "boot",
        "logical_id",
        "meaning",
        "urgency",
        "ladder",
        "why",
        "by",
        "headline",
        "moves",
        "waits",
    )

    @property
    def closed_at(self) -> datetime | None:
        """Return when it ended."""
        return self.since if self.ended else None


class JobRecoveryView(Struct, frozen=True):
    """A job recovery: of which attempt of which job, and because of which node recovery.

    `job` is slurmctld's number of the job, `shown` its id as its owner writes it (`12_3`).

    Where the run itself went wrong, `cause` is empty and `trouble` says how; `action` is what its
    policy answered and `start_at` the end of its backoff.
    """

    id: str
    job: int
    shown: str
    phase: str
    ended: bool
    opened: datetime
    since: datetime
    submit: datetime
    restarts: int
    name: str
    user: str
    partition: str
    cause: str
    cause_rule: str
    bad_nodes: tuple[str, ...]
    why: str
    headline: str
    steps: tuple[RecoveryStepView, ...]
    moves: tuple[RecoveryTransitionRecord, ...]
    trouble: JobFailureView | None
    action: str
    exclude: tuple[str, ...]
    start_at: datetime | None

    columns: ClassVar[Columns] = (
        Column("ID", "id"),
        Column("JOB", "shown"),
        Column("USER", "user", empty="-"),
        Column("NAME", "name", wide=True, empty="-"),
        Column("RULE", "cause_rule", wide=True, empty="-"),
        make_state_column("PHASE", "phase"),
        Column("FOR", AgeCell("opened", until="closed_at")),
        Column("CAUSE", "cause_or_trouble"),
        Column("STEPS", _format_recovery_steps, fold=True),
    )
    json_only: ClassVar[JsonOnly] = (
        "job",
        "submit",
        "restarts",
        "partition",
        "bad_nodes",
        "why",
        "headline",
        "moves",
        "action",
        "exclude",
        "start_at",
    )

    @property
    def closed_at(self) -> datetime | None:
        """Return when it ended."""
        return self.since if self.ended else None

    @property
    def cause_or_trouble(self) -> str | None:
        """Return the node recovery that it is because of, or what went wrong with the run
        itself."""
        return self.cause or (self.trouble.kind if self.trouble else None)


class GateBlockView(Struct, frozen=True):
    """Something that hpctl wanted to treat and a gate held back. `shown`: the target as people
    write it, such as `12_3` for a task of an array."""

    target: str
    gate: str
    why: str
    rule: str
    since: datetime
    approvable: bool
    shown: str

    columns: ClassVar[Columns] = (
        Column("TARGET", "shown"),
        Column("GATE", "gate"),
        Column("FOR", AgeCell("since")),
        Column("WHY", "{why}{approval}", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("target", "rule")

    @property
    def approval(self) -> str:
        """Return how to let it pass the gate; empty where that cannot be approved."""
        return f" (hpctl approve {self.target})" if self.approvable else ""


HOLDS = RowTable("holds", title="Held back")


class AutomationPauseView(Struct, frozen=True):
    """A pause in force. `what`: the cluster, a partition or nodes. `until` is null where only
    `hpctl unpause` ends it; `lift`: the command that does."""

    what: str
    scope: str
    by: str
    at: datetime
    until: datetime | None
    why: str
    lift: str

    columns: ClassVar[Columns] = (
        Column("WHAT", "what"),
        Column("BY", "by"),
        Column("FOR", AgeCell("at")),
        Column("UNTIL", "{ends}"),
        Column("WHY", "{why}", fold=True),
        Column("LIFT", "lift"),
    )
    json_only: ClassVar[JsonOnly] = ("scope", "until")

    @property
    def ends(self) -> str:
        """Return its end, for people."""
        return f"{self.until:%Y-%m-%d %H:%M:%S} UTC" if self.until is not None else "lifted"


def make_automation_pause_view(pause: Pause) -> AutomationPauseView:
    """Show a pause."""
    return build_view_from_source(AutomationPauseView, pause, lift=pause.lift_command)


LEFT_OUT = TextLine(
    "{ended_not_shown} ended, not shown (--all, --since 7d).", style=DIM, when="ended_not_shown"
)


class CapacityChangeView(Struct, frozen=True):
    """A change of capacity. `phase`: the phase it is in or ended in, `why` what was seen last."""

    id: str
    at: datetime
    kind: str
    group: str
    what: str
    phase: str
    ended: datetime | None
    why: str

    columns: ClassVar[Columns] = (
        Column("CHANGE", "id"),
        Column("BEGUN", "{at:%m-%d %H:%M:%S}"),
        Column("WHAT", "what", fold=True),
        Column("PHASE", "phase"),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("kind", "group", "ended")


class MaintenanceWindowView(Struct, frozen=True):
    """A maintenance window. `id`: the name of its reservation. `own`: false for a reservation that
    an admin made. `waits`: the nodes that are not verified yet, once it is over."""

    id: str
    phase: str
    nodes: str
    count: int
    start: datetime | None
    end: datetime | None
    by: str
    own: bool
    why: str
    last: str
    waits: str

    columns: ClassVar[Columns] = (
        Column("WINDOW", "id"),
        Column("PHASE", "phase"),
        Column("NODES", "nodes", fold=True),
        Column("FROM", "{start:%Y-%m-%d %H:%M:%S}"),
        Column("UNTIL", "{end:%Y-%m-%d %H:%M:%S}"),
        Column("BY", "{asker}"),
        Column("WHY", "why", fold=True),
        Column("NOTE", "{note}", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("count", "own", "by", "last", "waits")

    @property
    def asker(self) -> str:
        """Return who planned it."""
        return self.by if self.own else "an admin (scontrol)"

    @property
    def note(self) -> str:
        """Return what was seen last, and what is still to come."""
        return f"not verified yet: {self.waits}" if self.waits else self.last


def list_maintenance_windows(state: EngineState) -> list[ClusterChange]:
    """Return the maintenance windows, open and ended, oldest first."""
    return [one for one in state.changes.values() if is_maintenance_window(one)]


def make_maintenance_window_view(
    window: ClusterChange, state: EngineState
) -> MaintenanceWindowView:
    """Show a window."""
    about = window.opened
    waits = []
    for name in about.nodes:
        rec = state.node_recovery(name)
        if window.ended and rec is not None and rec.is_for_maintenance:
            waits.append(name)
    return MaintenanceWindowView(
        id=about.group,
        phase=str(window.phase),
        nodes=fold_hostlist(about.nodes),
        count=len(about.nodes),
        start=about.start,
        end=about.end,
        by=about.by,
        own=about.own,
        why=about.why,
        last=window.trail[-1].why if window.trail else "",
        waits=fold_hostlist(waits),
    )


def list_capacity_changes(state: EngineState) -> list[ClusterChange | NodeRecovery]:
    """Return the changes of capacity, oldest first; a removal is a node recovery."""
    removals = [rec for rec in state.nodes.values() if rec.is_for_capacity_change]
    changes = [one for one in state.changes.values() if not is_maintenance_window(one)]
    return sorted([*changes, *removals], key=lambda one: (find_capacity_change_start(one), one.id))


def find_capacity_change_start(change: ClusterChange | NodeRecovery) -> datetime:
    """Return when a change of capacity was decided on."""
    return change.opened.at if isinstance(change, ClusterChange) else change.opened


def make_capacity_change_view(change: ClusterChange | NodeRecovery) -> CapacityChangeView:
    """Return a change of capacity as shown."""
    if isinstance(change, NodeRecovery):
        return CapacityChangeView(
            id=change.id,
            at=change.opened,
            kind=str(find_node_removal_kind(change)),
            group=change.group,
            what=describe_node_removal(change),
            phase=str(find_node_removal_phase(change)),
            ended=change.since if change.ended else None,
            why=change.trail[-1].why if change.trail else change.why,
        )
    return CapacityChangeView(
        id=change.id,
        at=change.opened.at,
        kind=str(change.opened.kind),
        group=change.opened.group,
        what=describe_capacity_change(change.opened),
        phase=str(change.phase),
        ended=change.since if change.ended else None,
        why=change.trail[-1].why if change.trail else change.opened.why,
    )


def make_recovery_step_view(step: RecoveryStepRecord) -> RecoveryStepView:
    """Return a step as shown."""
    got = step.outcome
    answer = (got.kind.value, got.code, got.detail) if got else ("", "", "")
    return build_view_from_source(
        RecoveryStepView, step, outcome=answer[0], code=answer[1], detail=answer[2]
    )


def make_node_recovery_view(rec: NodeRecovery, waits: str = "") -> NodeRecoveryView:
    """Return a node recovery as shown. `waits`: the job that it waits for, in words."""
    return build_view_from_source(
        NodeRecoveryView,
        rec,
        instance=rec.generation.instance,
        boot=rec.generation.boot,
        logical_id=rec.logical_id or "",
        headline=format_recovery_or_change_headline(rec),
        steps=tuple(map(make_recovery_step_view, rec.steps)),
        moves=rec.trail,
        waits=waits,
    )


def make_job_recovery_view(rec: JobRecovery, state: EngineState) -> JobRecoveryView:
    """Return a job recovery as shown."""
    cause = state.nodes.get(rec.cause)
    return build_view_from_source(
        JobRecoveryView,
        rec,
        job=rec.attempt.job,
        submit=rec.attempt.submit,
        restarts=rec.attempt.restarts,
        cause_rule=cause.rule if cause else "",
        headline=format_recovery_or_change_headline(rec),
        steps=tuple(map(make_recovery_step_view, rec.steps)),
        moves=rec.trail,
        trouble=make_job_failure_view(rec.trouble),
        action=rec.action if rec.trouble else "",
    )


def make_job_failure_view(trouble: Trouble | None) -> JobFailureView | None:
    """Return a trouble as shown."""
    return (
        build_view_from_source(JobFailureView, trouble, node=trouble.node or "")
        if trouble
        else None
    )


def make_supervisor_report_view(row: JobReported) -> SupervisorReportView:
    """Return a supervisor's report as shown."""
    trouble = make_job_failure_view(row.report.trouble)
    return build_view_from_source(
        SupervisorReportView, row.report, at=row.at, uid=row.uid, trouble=trouble
    )


def make_gate_block_view(hold: GateBlocked) -> GateBlockView:
    """Return a hold as shown."""
    return build_view_from_source(GateBlockView, hold, since=hold.at)


def needs_archived_recoveries(now: datetime, *, ended: bool, since: datetime | None) -> bool:
    """Return whether the requested entry may be a retired one (`engine.retire`)."""
    if since is None:
        return ended
    return since < now - timedelta(seconds=RECENT_S)


def select_node_and_job_recoveries(
    state: EngineState, *, ended: bool, since: datetime | None
) -> tuple[list[NodeRecovery], list[JobRecovery]]:
    """Return the open recoveries; with `ended` the closed ones too; with `since` those that moved
    since. Without removals, which are changes of capacity.

    Newest first: what a user looks for happened lately.
    """
    nodes = [
        r
        for r in state.nodes.values()
        if not r.is_for_capacity_change and _is_recovery_selected(r, ended, since)
    ]
    jobs = [r for r in state.jobs.values() if _is_recovery_selected(r, ended, since)]
    nodes.sort(key=lambda r: (r.opened, r.id), reverse=True)
    jobs.sort(key=lambda r: (r.opened, r.id), reverse=True)
    return nodes, jobs


def _is_recovery_selected(
    rec: NodeRecovery | JobRecovery, ended: bool, since: datetime | None
) -> bool:
    if since is not None:
        return rec.since >= since
    return ended or not rec.ended
