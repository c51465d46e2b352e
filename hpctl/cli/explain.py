"""`hpctl explain`: why a thing was done, or was not done, as a person would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.cancellation import add_cancellation_details, find_canceled_target_job
from hpctl.engine.completion import complete_any
from hpctl.engine.explain_view import (
    NO_ORDER,
    ExplainView,
    build_explain_view,
    find_job_preemption,
    is_job_suspended,
    list_explainable_names,
    make_job_explain_view,
)
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.timeline import RecoveryTimelineLineKind
from hpctl.engine.world import World, has_recovery_awaiting_cloud
from hpctl.engine.world_reader import read_world_once
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.job_ids import parse_job_id
from hpctl.toolkit.tables import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    format_clock_time,
    format_time_offset,
    indent_block,
    make_headingless_grid,
    print_heading,
    style_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.engine.config import Config
    from hpctl.vocabulary.preemption_order import PreemptionOrder
    from hpctl.vocabulary.slurm_facts import SlurmJob


@click.command()
@click.argument("target", metavar="ID", shell_complete=complete_any)
@output.json_option
@output.config_option
def explain(target: str, config: str, as_json: bool) -> None:
    """Explain why hpctl acted or did not act.

    ID is the id of a recovery or of a change of capacity (s-...), a node (its name in Slurm, its
    instance id, logical id or address), a job, an instance group that autoscaling or spares have
    changed, or whatever `hpctl status` lists as held. Of an array, 12_3 is one task and 12 lists
    all of them; 12+1 is a component of a heterogeneous job.
    """
    view, note = explain_node_job_or_recovery(config_loading.load_config(config), target)
    # By hand: a story whose headings and lines depend on what happened.
    output.show_view("explain", view, as_json, draw_target_explanation)
    if note:
        output.echo(f"hpctl: {note}", err=True)


def explain_node_job_or_recovery(loaded: Config, target: str) -> tuple[ExplainView, str]:
    """Explain a target, reading as far as need be, and say where a daemon did not decide it.

    Raises HpctlError where nothing has that name.
    """
    from hpctl.cli.features import make_explain_extensions
    from hpctl.engine.adapters import build_fault_rules_with_overrides

    rules, parts = build_fault_rules_with_overrides(loaded), make_explain_extensions()
    # A job's id may be a task of an array or a component: Slurm says of which job.
    world = read_world_once(
        loaded, output.get_current_utc_time(), slurm=parse_job_id(target) is not None
    )
    world = _refresh_completing_job_from_slurm(loaded, world, target)
    view = build_explain_view(world, rules, target, parts)
    if view is None and parse_job_id(target) is None:
        # The cloud alone knows a node's logical id.
        named = read_world_once(loaded, output.get_current_utc_time(), slurm=True, cloud=True)
        node = resolve_target_node_name(named, target)
        if node != target:
            world, target = named, node
            view = build_explain_view(world, rules, target, parts)
    if view is not None and view.kind == "node_recovery" and has_recovery_awaiting_cloud(world):
        world = read_world_once(loaded, output.get_current_utc_time(), slurm=True, cloud=True)
        view = build_explain_view(world, rules, target, parts)
    daemons = world
    if view is None or (view.kind == "node" and world.slurm is None):
        # Only a node that the journal does not tell of is worth asking Slurm about, and only what
        # is unknown there is looked for in the past.
        world = read_world_once(
            loaded, output.get_current_utc_time(), slurm=True, past=view is None
        )
        view = build_explain_view(world, rules, target, parts)
    if view is None and daemons.slurm is not None and find_jobs_by_id(daemons, target):
        world = daemons  # which remembers the nodes of a job's last run
    order = _read_slurm_preemption_rules(loaded, world, target)
    if view is not None and order != NO_ORDER:
        view = build_explain_view(world, rules, target, parts, order)
    if view is None and world.slurm is not None:
        from hpctl.engine.run_policies import RunPolicyMerger

        ruled, _ = RunPolicyMerger(loaded.list_run_policy_layers).of(world.slurm)
        policies = {job: each.policy for job, each in ruled.items()}
        view = make_job_explain_view(world, policies, target, parts, order)
    if view is None:
        lists = "`hpctl nodes`, `hpctl jobs --all` and `hpctl recoveries --all` list what there is"
        hint = output.suggest_similar_names(target, list_explainable_names(world), lists)
        raise HpctlError(f"hpctl knows no node, job or recovery {target!r}", hint)
    canceled = find_canceled_target_job(world, target)
    if canceled is not None:
        view = add_cancellation_details(view, canceled, _find_job_canceling_user(loaded, canceled))
    return view, make_no_daemon_decision_notice(world, view)


def resolve_target_node_name(w: World, target: str) -> str:
    """Return the name of the node that an instance id, logical id or address means; without one,
    the target."""
    for name, instance in w.joined.instances.items():
        if target in (instance.id, instance.logical_id):
            return name
    for name, health in w.health.items():
        if target == health.generation.instance:
            return name
    nodes = w.slurm.nodes.items() if w.slurm is not None else ()
    return next((name for name, node in nodes if node.address == target), target)


def _read_slurm_preemption_rules(loaded: Config, w: World, target: str) -> PreemptionOrder:
    """Return what Slurm lets preempt what, where only that tells whether a job was preempted."""
    lost = find_job_preemption(w, target, NO_ORDER)
    uncertain = lost is not None and not lost.certain
    if not uncertain and not is_job_suspended(w, target):
        return NO_ORDER
    from hpctl.engine.adapters import make_slurm_command_client

    try:
        return make_slurm_command_client(loaded).preemption_order()
    except ServiceUnavailable:
        return NO_ORDER


def _refresh_completing_job_from_slurm(loaded: Config, w: World, target: str) -> World:
    """Return the world with a job as Slurm has it now, where it was COMPLETING and how it ended was
    not known yet: nothing makes a daemon read Slurm again as soon as it is."""
    named = find_jobs_by_id(w, target)
    seen = w.slurm.jobs.get(named[0]) if w.slurm is not None and len(named) == 1 else None
    if w.slurm is None or seen is None or not seen.has_unknown_end_state:
        return w
    from hpctl.engine.adapters import make_slurm_command_client

    try:
        now = make_slurm_command_client(loaded).find_jobs(named[:1])
    except ServiceUnavailable:
        return w
    return replace(w, slurm=replace(w.slurm, jobs={**w.slurm.jobs, **now}))


def _find_job_canceling_user(loaded: Config, job: SlurmJob) -> str:
    """Return the account that canceled a job; "" where Slurm does not tell it."""
    from hpctl.engine.adapters import make_slurm_command_client

    return make_slurm_command_client(loaded).find_job_canceler(job)


def make_no_daemon_decision_notice(w: World, view: ExplainView) -> str:
    """Return a sentence where a view rests on decisions that no daemon has taken; else ""."""
    if not w.computed or view.kind not in ("node", "hold"):
        return ""
    if not w.is_daemon_alive:
        return "no daemon is running; this is what a daemon would decide"
    return f"the daemon's decisions cannot be read ({w.computed}); this is what it would decide"


MARKS = {
    RecoveryTimelineLineKind.DECIDED: HEAD,
    RecoveryTimelineLineKind.DID: "cyan",
    RecoveryTimelineLineKind.SAW: "",
    RecoveryTimelineLineKind.WAITS: WARN,
    RecoveryTimelineLineKind.TROUBLE: BAD,
    RecoveryTimelineLineKind.DONE: GOOD,
}


def draw_target_explanation(out: Console, view: ExplainView) -> None:
    """Draw the story of `hpctl explain`."""
    out.print(style_text(view.headline, HEAD))
    _draw_run_failure_section(out, view)
    _draw_fault_evidence_section(out, view)
    if view.trouble is not None and view.trouble.evidence:
        print_heading(out, "Last output of the run")
        out.print(indent_block(style_text(view.trouble.evidence, DIM)))
    _draw_fault_rule_section(out, view)
    _draw_safety_gates_section(out, view)
    _draw_operator_tasks_section(out, view)
    _draw_timeline(out, view)
    if view.next.what:
        out.print()
        out.print(f"Waiting for: {view.next.what}.")
        if view.next.until is not None:
            until = f"{view.next.until:%Y-%m-%d %H:%M:%S} UTC"
            out.print(f"If not: {view.next.otherwise} at {until}.")
    if view.related:
        out.print()
        out.print(
            style_text("See also: " + ", ".join(f"hpctl explain {r}" for r in view.related), DIM)
        )


def _draw_run_failure_section(out: Console, view: ExplainView) -> None:
    failure = view.failure
    if failure is None:
        return
    print_heading(out, "Why it failed")
    helps = "a retry may help" if failure.may_retry else "no retry"
    line = f"{failure.cause} ({failure.confidence} confidence), {helps}"
    out.print(indent_block(style_text(line, HEAD)))
    for reason in failure.reasons:
        out.print(indent_block(style_text(f"- {reason}")))


def _draw_fault_evidence_section(out: Console, view: ExplainView) -> None:
    if not view.evidence:
        return
    print_heading(out, "What was seen")
    table = make_headingless_grid("")
    for e in view.evidence:
        text = style_text(e.text)
        if e.evidence:
            text.append(f"\n{e.evidence}", DIM)
        table.add_row(format_clock_time(e.first), text)
    out.print(indent_block(table))


def _draw_fault_rule_section(out: Console, view: ExplainView) -> None:
    if view.rule is None:
        return
    print_heading(out, f"The rule: {view.rule.id}")
    ladder = ", then ".join(r.replace("_", " ") for r in view.rule.ladder)
    urgency = view.rule.urgency.replace("_", " ")
    out.print(indent_block(view.rule.meaning))
    out.print(indent_block(f"remedies: {ladder}; urgency: {urgency}"))
    if view.rule.source:
        out.print(indent_block(style_text(f"source: {view.rule.source}", DIM)))


def _draw_operator_tasks_section(out: Console, view: ExplainView) -> None:
    if not view.tasks:
        return
    print_heading(out, "Tasks")
    table = make_headingless_grid("", "", DIM)
    for task in view.tasks:
        text = f"{task.text} hpctl explain {task.explain}" if task.explain != task.id else task.text
        table.add_row(
            task.id, task.state, fold_hostlist(task.nodes) if task.nodes else "", style_text(text)
        )
    out.print(indent_block(table))


def _draw_timeline(out: Console, view: ExplainView) -> None:
    if not view.story:
        return
    first = view.fault_at or view.story[0].at
    print_heading(out, f"Timeline ({first:%Y-%m-%d}, times in UTC{_describe_timeline_start(view)})")
    table = make_headingless_grid("", DIM)
    table.columns[1].justify = "right"
    for line in view.story:
        passed = format_time_offset((line.at - first).total_seconds())
        table.add_row(format_clock_time(line.at), passed, style_text(line.text, MARKS[line.mark]))
    out.print(indent_block(table))


def _describe_timeline_start(view: ExplainView) -> str:
    """From when its timeline counts."""
    if view.fault_at is None:
        return "; T+0 s is the first line"
    return f"; T+0 s is the fault at {format_clock_time(view.fault_at)}"


def _draw_safety_gates_section(out: Console, view: ExplainView) -> None:
    if not view.gates:
        return
    held = next((g for g in view.gates if g.result == "held"), None)
    passed = [g.name for g in view.gates if g.result == "passed"]
    print_heading(out, "The gates")
    if passed:
        out.print(indent_block(style_text("passed, in order: " + ", ".join(passed), GOOD)))
    for g in view.gates:
        if g.result == "waived":
            out.print(indent_block(style_text(f"not asked: {g.name}, {g.why}", WARN)))
    if held is not None:
        out.print(indent_block(style_text(f"held by {held.name}: {held.why}", BAD)))
        if held.asks:
            out.print(indent_block(style_text(held.asks, DIM), 4))
