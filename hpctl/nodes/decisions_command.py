"""`hpctl approve` and `hpctl cancel`: what an operator decides about a recovery.

Both are requests to the daemon, like those of `orders_command`. `--dry-run` says what would happen
to which node and job. On a terminal the same is shown and confirmed before the daemon is asked; a
script is not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_hold, complete_open
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.request_client import expand_hostlists
from hpctl.engine.timeline import format_remedy_ladder
from hpctl.engine.view import group_jobs_by_node
from hpctl.engine.world_reader import read_world_once
from hpctl.nodes.orders_command import confirm_options, request_options, send_daemon_requests
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    TextLine,
)
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.recovery import StepKind

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.journal.events import GateBlocked
    from hpctl.engine.world import World
    from hpctl.vocabulary.job_recovery import JobRecovery
    from hpctl.vocabulary.node_recovery import NodeRecovery
    from hpctl.vocabulary.slurm_facts import SlurmJob

_ORDERED = frozenset({StepKind.REBOOT, StepKind.REPLACE})
"""Steps that continue in the cloud once they were accepted."""


class DecisionView(Struct, frozen=True):
    """What one request would change. `recovery`: the open one that it concerns; empty where the
    approval opens it. `jobs`: a line for each job concerned."""

    target: str
    recovery: str
    will: str
    jobs: tuple[str, ...]

    json_only: ClassVar[JsonOnly] = ("recovery",)


class DecisionsView(Struct, frozen=True):
    """What `hpctl approve --dry-run` and `hpctl cancel --dry-run` show. `unknown`: why the jobs
    on the nodes are not known."""

    as_of: datetime
    verb: str
    decisions: tuple[DecisionView, ...]
    unknown: str = ""

    layout: ClassVar[Layout] = (
        RepeatedLayoutParts(
            "decisions", (TextLine("{target}: {will}"), ItemTextLines("jobs", "{}", indent=2))
        ),
        TextLine("The jobs on the nodes are not known: {unknown}", when="unknown"),
    )
    json_only: ClassVar[JsonOnly] = ("verb",)


def preview_gate_approvals(w: World, holds: Iterable[GateBlocked]) -> DecisionsView:
    """Say what the approval of each hold lets happen, and to which jobs."""
    shown = tuple(_preview_gate_approval(w, hold) for hold in holds)
    return DecisionsView(w.now, "approve", shown, w.slurm_error)


def _preview_gate_approval(w: World, hold: GateBlocked) -> DecisionView:
    node = NodeName(hold.target)
    rec = w.state.node_recovery(node)
    if rec is not None:
        left = format_remedy_ladder(rec.ladder[rec.rung :])
        will = f"{rec.id} ({rec.rule}, {rec.meaning}) continues: {left}"
        urgency = rec.urgency
    else:
        fault = next((c.fault for c in w.candidates if c.node.name == node), None)
        will = f"is drained for {hold.rule}"
        urgency = Urgency.AFTER_JOBS
        if fault is not None:
            will += f" ({fault.meaning}), then: {format_remedy_ladder(fault.ladder)}"
            urgency = fault.urgency
    will += f"; the gate {hold.gate} lets it pass"
    if w.policy.mode is OperatingMode.OBSERVE:
        will += ". In mode observe nothing of this is done"
    fates = [_describe_job_eviction(job, urgency, w.policy) for job in _find_jobs_on_node(w, node)]
    return DecisionView(hold.shown, rec.id if rec is not None else "", will, tuple(fates))


def preview_recovery_cancellations(w: World, ids: Iterable[str]) -> DecisionsView:
    """Say what the end of each open recovery leaves behind."""
    shown = []
    for rid in map(RecoveryId, ids):
        node, job = w.state.nodes.get(rid), w.state.jobs.get(rid)
        if node is not None:
            shown.append(_preview_node_cancellation(w, node))
        elif job is not None:
            shown.append(_preview_job_cancellation(w, job))
    return DecisionsView(w.now, "cancel", tuple(shown), w.slurm_error)


def _preview_node_cancellation(w: World, rec: NodeRecovery) -> DecisionView:
    will = f"{rec.id} ({rec.rule}, {rec.meaning}) ends in phase {rec.phase}"
    ordered = [step.kind for step in rec.steps if step.kind in _ORDERED]
    if ordered:
        will += f"; the {ordered[-1]} that SageMaker was asked for continues"
    node = w.slurm.nodes.get(rec.node) if w.slurm is not None else None
    if node is not None and not node.drained:
        will += "; the node stays in service"
    else:
        will += f"; the node stays drained: `hpctl undrain {rec.node}` gives it back"
    stay = [f"{_describe_job(job)}: is not touched" for job in _find_jobs_on_node(w, rec.node)]
    return DecisionView(rec.node, rec.id, will, tuple(stay))


def _preview_job_cancellation(w: World, rec: JobRecovery) -> DecisionView:
    will = f"{rec.id} ends in phase {rec.phase}; hpctl does nothing more for this run of the job"
    job = w.slurm.jobs.get(rec.attempt.job) if w.slurm is not None else None
    stays = (f"{_describe_job(job)}: is not touched",) if job is not None else ()
    return DecisionView(f"job {rec.shown}", rec.id, will, stays)


def _find_jobs_on_node(w: World, node: NodeName) -> list[SlurmJob]:
    """Return the jobs that run on a node, or that leave it now; by id."""
    if w.slurm is None:
        return []
    here = group_jobs_by_node([node], w.slurm.jobs)[node]
    return sorted((job for job in here if job.running or job.completing), key=lambda job: job.id)


def _describe_job(job: SlurmJob) -> str:
    return f"job {job.shown} ({job.name}, {job.user}), {job.state} on {len(job.nodes)} node(s)"


def _describe_job_eviction(job: SlurmJob, urgency: Urgency, policy: RecoveryPolicy) -> str:
    waits = urgency is not Urgency.NOW
    if not job.recoverable and policy.node.unrecoverable_jobs is UnrecoverableJobAction.WAIT:
        waits = True
    if waits:
        return f"{_describe_job(job)}: is waited for"
    ends = "is requeued" if job.recoverable else "ends, and CANNOT be run again by Slurm"
    return f"{_describe_job(job)}: {ends}"


def _needs_confirmation(yes: bool) -> bool:
    """Return whether a question comes first: who is at a terminal is asked. A script is not,
    because neither command was ever confirmed there."""
    return not yes and sys.stdin.isatty()


def _read_daemon_state_and_jobs(config: str, *, jobs: bool) -> World:
    """Return the daemon's world, with Slurm's jobs where they are shown."""
    loaded: Config = config_loading.load_config(config)
    return read_world_once(loaded, output.get_current_utc_time(), slurm=jobs)


def _confirm_decisions(view: DecisionsView, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show what would happen; whether it is wanted. Raises click.Abort where the answer is no."""
    if dry_run:
        output.show_view("decisions", view, as_json)
        if not as_json:
            output.echo(output.DRY_RUN)
        return False
    if _needs_confirmation(yes):
        output.draw_value_on_stderr(output.draw_declared_view, view)
        names = ", ".join(decision.target for decision in view.decisions)
        output.confirm(f"{view.verb} {names}?", abort=True)
    return True


@click.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1, shell_complete=complete_hold)
@click.option("--rule", help="Everything blocked for this catalogue rule, such as xid-79.")
@confirm_options
@request_options
def approve(
    targets: tuple[str, ...],
    rule: str | None,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    config: str,
    as_json: bool,
) -> None:
    """Approve a blocked recovery.

    TARGET is what `hpctl status` lists as held back; nodes may be a hostlist. Only budgets, the
    correlated-failure gate, the repeat-offender gate and the launch breaker give way to an
    approval. On a terminal, what happens to which node and job is shown and confirmed first.
    """
    world = _read_daemon_state_and_jobs(config, jobs=dry_run or _needs_confirmation(yes))
    wanted = expand_hostlists(targets)
    if rule is not None:
        of_rule = [h.target for h in world.state.holds.values() if h.rule == rule and h.approvable]
        if not of_rule:
            held = sorted({str(h.rule) for h in world.state.holds.values() if h.approvable})
            raise output.make_not_found_error("status", rule, held)
        wanted += sorted(of_rule)
    if not wanted:
        raise click.UsageError(
            "the command names nothing to approve: write a TARGET or --rule RULE; `hpctl status` "
            "lists what waits for approval"
        )
    wanted = list(dict.fromkeys(wanted))
    for target in wanted:
        hold = world.state.holds.get(target)
        if hold is None:
            raise output.make_not_found_error("status", target, sorted(world.state.holds))
        if not hold.approvable:
            output.echo(f"hpctl: no approval lifts the gate {hold.gate}: {hold.why}", err=True)
            output.exit_with_code(ExitCode.PROBLEM)
    view = preview_gate_approvals(world, [world.state.holds[target] for target in wanted])
    if _confirm_decisions(view, dry_run=dry_run, yes=yes, as_json=as_json):
        send_daemon_requests(config, "approve", wanted, no_wait, as_json)


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_open)
@confirm_options
@request_options
def cancel(
    ids: tuple[str, ...], dry_run: bool, yes: bool, no_wait: bool, config: str, as_json: bool
) -> None:
    """End a recovery without finishing it.

    ID is an open recovery, or the node or job that it treats. A node stays drained; give it
    back with `hpctl undrain` or `scontrol update`. On a terminal, what is left of which node and
    job is shown and confirmed first.
    """
    world = _read_daemon_state_and_jobs(config, jobs=dry_run or _needs_confirmation(yes))
    found = list(dict.fromkeys(find_open_recovery_id(world, name) for name in ids))
    view = preview_recovery_cancellations(world, found)
    if _confirm_decisions(view, dry_run=dry_run, yes=yes, as_json=as_json):
        send_daemon_requests(config, "cancel", found, no_wait, as_json)


def find_open_recovery_id(w: World, name: str) -> str:
    """Return the id of the open recovery that an id, a node or a job names. Else a usage error."""
    rid: RecoveryId | None = RecoveryId(name)
    still_open = {*w.state.open_nodes.values(), *w.state.open_jobs.values()}
    if rid not in still_open:
        rid = w.state.open_nodes.get(NodeName(name))
        if rid is None:
            named = [w.state.open_jobs.get(job) for job in find_jobs_by_id(w, name)]
            still = [one for one in named if one is not None]
            if len(still) > 1:
                raise click.UsageError(
                    f"{name} has several open recoveries: name one of {', '.join(still)}"
                )
            rid = still[0] if still else None
    if rid is not None:
        return rid
    ended = w.state.nodes.get(RecoveryId(name)) or w.state.jobs.get(RecoveryId(name))
    if ended is not None:
        raise click.UsageError(f"nothing to cancel: the recovery {name} has ended ({ended.phase})")
    jobs = [w.state.jobs[rid].shown for rid in w.state.open_jobs.values()]
    raise output.make_not_found_error("recoveries", name, [*still_open, *w.state.open_nodes, *jobs])
