"""The operator's requests: pause, unpause, replace, reboot, undrain.

Each is queued for the daemon; only the daemon acts. Exit code: 0 it agreed, 1 it refused, 3 no
answer within five seconds, or 20 for users who read a copy of the journal (the request stays
queued). A replacement or reboot that is followed: 0
every node is back, 1 one is not, 3 that is unknown, 130 interrupted.
"""

from __future__ import annotations

import gc
import sys
from datetime import datetime
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace as replaced

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.engine.config import Config
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.request_client import (
    ANSWER_S,
    JobOnNode,
    RequestsView,
    describe_job_outcome_on_node_removal,
    expand_hostlists,
    find_invoking_user,
    print_request_answers,
    print_request_answers_and_exit,
    send_operator_requests,
)
from hpctl.engine.requests import NOW, process_operator_request
from hpctl.engine.timeline import format_recovery_or_change_headline
from hpctl.engine.view import PlanningView, Request, group_jobs_by_node
from hpctl.engine.views import make_node_recovery_view
from hpctl.engine.world import World, list_known_nodes
from hpctl.engine.world_reader import WorldReader, read_live_world
from hpctl.nodes.order_watch import NodeOrderWatch, NodeOrderWatchDependencies
from hpctl.toolkit import output
from hpctl.toolkit.arguments import now_option
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.lazy_commands import INTERRUPTED
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.view_copy import build_view_from_source
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.pause import Pause, PauseRequest
from hpctl.vocabulary.slurm_facts import SlurmJob

TARGET_CHARS = 200
"""Of what a request says it is about; its detail says all."""


class NodeOrderPreviewView(Struct, frozen=True):
    """One node before a reboot or replacement. `answer`: what the daemon would say now. `now`: its
    jobs are not waited for."""

    node: str
    verb: str
    instance: str
    jobs: tuple[JobOnNode, ...]
    open_recovery: str
    would_open: bool
    answer: str
    now: bool = False


class NodeOrderPreviewsView(Struct, frozen=True):
    """What `--dry-run` shows."""

    as_of: datetime
    previews: tuple[NodeOrderPreviewView, ...]


def preview_node_orders(
    w: World, verb: str, names: tuple[str, ...], by: str
) -> NodeOrderPreviewsView:
    """Look at each node. Needs Slurm's view; without the cloud's, its gates pass."""
    view = w.view()
    here = group_jobs_by_node([NodeName(n) for n in names], view.scheduler.jobs)
    shown = (_preview_node_order(w, view, verb, n, here[n], by) for n in map(NodeName, names))
    return NodeOrderPreviewsView(w.now, tuple(shown))


def _preview_node_order(
    w: World, view: PlanningView, verb: str, name: NodeName, jobs: list[SlurmJob], by: str
) -> NodeOrderPreviewView:
    rec, instance = w.state.node_recovery(name), view.instance(name)
    health = w.health.get(name)
    # The daemon's own decision, on what is known here: a preview that cannot disagree with it.
    *opened, answer = process_operator_request(
        Request(0, w.now, verb, name, by, "a preview"), view, w.policy, w.now
    )
    assert isinstance(answer, RequestTaken)
    return NodeOrderPreviewView(
        node=name,
        verb=verb.removesuffix(NOW),
        instance=instance.id if instance else (health.generation.instance if health else ""),
        jobs=tuple(
            build_view_from_source(JobOnNode, j, nodes=len(j.nodes))
            for j in sorted(jobs, key=lambda j: j.id)
            if j.running or j.completing
        ),
        open_recovery=rec.id if rec else "",
        would_open=bool(opened) and answer.ok,
        answer=answer.answer,
        now=verb.endswith(NOW),
    )


def format_node_order_preview_lines(view: NodeOrderPreviewsView) -> list[str]:
    """Return the preview for people: one paragraph a node."""
    lines = []
    for p in view.previews:
        lines.append(f"{p.node}: {p.verb} instance {p.instance or '(unknown)'}")
        lines += [f"  {describe_job_outcome_on_node_removal(job, now=p.now)}" for job in p.jobs]
        if not p.jobs:
            lines.append("  no job is on it")
        if not p.would_open:
            lines.append(f"  the daemon would refuse now: {p.answer}")
    return lines


request_options = output.combine_click_options(
    click.option(
        "--no-wait", is_flag=True, help="Do not wait for the daemon's answer: queue it and leave."
    ),
    output.json_option,
    output.config_option,
)
"""What every request takes."""


confirm_options = output.combine_click_options(
    click.option("--dry-run", is_flag=True, help="Print what would happen; ask for nothing."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)
"""What requests take that are confirmed."""


destroys = output.combine_click_options(
    click.argument(
        "names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node
    ),
    confirm_options,
    now_option,
    click.option(
        "--follow/--no-follow",
        default=None,
        help="Follow each recovery to its end. [default: on a terminal, without --json]",
    ),
    request_options,
)
"""What requests that destroy something take."""


def send_daemon_requests(
    config: str, verb: str, targets: list[str], no_wait: bool, as_json: bool, detail: str = ""
) -> None:
    """Ask the daemon for one thing for each target; print its answers and leave."""
    wait_s = 0.0 if no_wait else ANSWER_S
    view = send_operator_requests(
        config_loading.load_config(config), verb, targets, wait_s=wait_s, detail=detail
    )
    print_request_answers_and_exit(view, as_json, waited=not no_wait)


scoped = output.combine_click_options(
    click.argument("names", metavar="[NODES]...", nargs=-1, shell_complete=complete_node),
    click.option("--partition", metavar="P", default="", help="A partition, in place of nodes."),
)
"""What a pause is of: nodes, a partition, or without both the whole cluster."""


@click.command()
@scoped
@click.option("--why", default="", metavar="TEXT", help="The reason, for all users to read.")
@click.option(
    "--until",
    type=output.FutureTimeType(),
    help="When it ends: +2h, or ISO 8601 (UTC where no offset is given).",
)
@request_options
def pause(
    names: tuple[str, ...], partition: str, why: str, until: datetime | None, no_wait: bool,
    config: str, as_json: bool,
) -> None:  # fmt: skip
    """Stop opening recoveries and taking steps.

    For the whole cluster, for NODES (hostlists are allowed), or for --partition. The
    pause ends at --until, or when `hpctl unpause` lifts it.
    """
    asked = PauseRequest(_fold_pause_scope_nodes(names, partition), partition, why, until)
    _send_pause_request(asked, "pause", no_wait=no_wait, config=config, as_json=as_json)


@click.command()
@scoped
@request_options
def unpause(
    names: tuple[str, ...], partition: str, no_wait: bool, config: str, as_json: bool
) -> None:
    """Lift pauses.

    Without NODES and --partition, every pause. NODES leave each pause of nodes that has them.
    """
    asked = PauseRequest(_fold_pause_scope_nodes(names, partition), partition)
    _send_pause_request(asked, "unpause", no_wait=no_wait, config=config, as_json=as_json)


def _fold_pause_scope_nodes(names: tuple[str, ...], partition: str) -> str:
    """Return the nodes as one hostlist. Raises UsageError."""
    if names and partition:
        raise click.UsageError(
            "NODES and --partition cannot be used together: give only one of them"
        )
    return fold_hostlist(expand_hostlists(names))


def _send_pause_request(
    asked: PauseRequest, verb: str, *, no_wait: bool, config: str, as_json: bool
) -> None:
    detail = msgspec.json.encode(asked).decode() if asked != PauseRequest() else ""
    target = Pause(asked.scope, "", output.get_current_utc_time()).what if asked.scope else ""
    send_daemon_requests(config, verb, [target[:TARGET_CHARS]], no_wait, as_json, detail)


def lift_all_pauses(config: str, *, no_wait: bool, as_json: bool) -> None:
    """Ask the daemon to lift every pause, and leave with the exit code of its answer."""
    send_daemon_requests(config, "unpause", [""], no_wait, as_json)


def _run_destructive_order(
    order: str, names: tuple[str, ...], *, now: bool, yes: bool, dry_run: bool, no_wait: bool,
    follow: bool | None, config: str, as_json: bool,
) -> None:  # fmt: skip
    """Show what runs there, be sure, ask, follow."""
    if follow and no_wait:
        raise click.UsageError(
            "--follow and --no-wait conflict: --follow waits for the daemon's answer; remove "
            "--no-wait"
        )
    if follow is None:
        follow = sys.stderr.isatty() and not as_json and not no_wait
    verb = order + NOW if now else order
    loaded = config_loading.load_config(config)
    view = _read_node_order_previews(loaded, verb, names)
    if dry_run and as_json:
        output.echo(output.format_view_json("preview", view))
    else:
        for line in format_node_order_preview_lines(view):
            output.echo(line, err=not dry_run)
    if dry_run:
        if not as_json:
            output.echo(output.DRY_RUN)
        blocked = any(not p.would_open for p in view.previews)
        output.exit_with_code(ExitCode.PROBLEM if blocked else ExitCode.FINE)
        return
    if not yes:
        output.confirm(f"{order} {len(view.previews)} node(s)?", abort=True)
    answers = send_operator_requests(
        loaded, verb, [p.node for p in view.previews], wait_s=0.0 if no_wait else ANSWER_S
    )
    if follow and any(row.ok for row in answers.requests):
        _follow_orders(loaded, answers, as_json=as_json)
    else:
        print_request_answers_and_exit(answers, as_json, waited=not no_wait)


def _read_node_order_previews(
    config: Config, verb: str, names: tuple[str, ...]
) -> NodeOrderPreviewsView:
    """Look at each node; leave with exit code 3 where Slurm cannot be read. Raises HpctlError for
    a name that nothing has."""
    # What would be destroyed is read now: a job may have begun since the daemon's last cycle.
    world = read_live_world(config, output.get_current_utc_time())
    if world.slurm is None:
        output.echo(f"hpctl: cannot see which jobs run on the nodes: {world.slurm_error}", err=True)
        raise click.exceptions.Exit(ExitCode.CANNOT_TELL)
    known = [str(n) for n in list_known_nodes(world)]
    for name in names:
        if name not in known or NodeName(name) not in world.slurm.nodes:
            raise output.make_not_found_error("nodes", name, known)
    return preview_node_orders(world, verb, tuple(dict.fromkeys(names)), find_invoking_user())


def _follow_orders(config: Config, answers: RequestsView, *, as_json: bool) -> None:
    """Print to standard error what becomes of the orders, then how each ended; leave."""
    gc.enable()
    if not as_json:
        print_request_answers(answers, waited=True)
    nodes = [NodeName(row.target) for row in answers.requests if row.ok]
    reader = WorldReader(config, recent=True)
    ports = NodeOrderWatchDependencies(
        lambda: reader.read(output.get_current_utc_time()), _print_status_line
    )
    try:
        ended = NodeOrderWatch(nodes, ports).follow()
    except KeyboardInterrupt:
        output.echo("hpctl: interrupted; the daemon continues: hpctl explain NODE", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    view = replaced(answers, recoveries=tuple(map(make_node_recovery_view, ended)))
    if as_json:
        output.echo(output.format_view_json("requests", view))
    else:
        for rec in ended:
            output.echo(format_recovery_or_change_headline(rec))
    if any(rec.phase is not NodeRecoveryPhase.RETURNED for rec in ended):
        output.exit_with_code(ExitCode.PROBLEM)
    if any(row.answered and not row.ok for row in answers.requests):
        output.exit_with_code(ExitCode.PROBLEM)
    if any(not row.answered for row in answers.requests):
        output.exit_with_code(ExitCode.CANNOT_TELL)


def _print_status_line(line: str) -> None:
    output.echo(line, err=True)


@click.command()
@destroys
def replace(names: tuple[str, ...], **options: Any) -> None:
    """Replace a node's instance.

    The node is drained, its jobs end (`--now`: they start elsewhere), and the instance is
    destroyed; a new one takes its name. Whatever is only on the instance's own disks is lost.
    On a terminal the recovery is followed to its end; Ctrl-C ends the command alone.
    Exit code: 0 the daemon agreed (followed: the node is back), 1 it refused (the node is not
    back), 3 it did not answer, 130 interrupted.
    """
    _run_destructive_order("replace", names, **options)


@click.command()
@destroys
def reboot(names: tuple[str, ...], **options: Any) -> None:
    """Reboot a node's instance.

    The node is drained and its jobs end first (`--now`: they start elsewhere).
    On a terminal the recovery is followed to its end; Ctrl-C ends the command alone.
    Exit code: 0 the daemon agreed (followed: the node is back), 1 it refused (the node is not
    back), 3 it did not answer, 130 interrupted.
    """
    _run_destructive_order("reboot", names, **options)


@click.command()
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@request_options
def undrain(names: tuple[str, ...], no_wait: bool, config: str, as_json: bool) -> None:
    """Give a node that hpctl drained back to Slurm.

    Only nodes whose Reason begins with hpctl:. Other drains are not changed. Of a node that is in
    service with a known fault, the fault is accepted.
    """
    send_daemon_requests(config, "return", list(dict.fromkeys(names)), no_wait, as_json)
