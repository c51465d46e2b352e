"""The operator's requests: pause, resume, approve, cancel, replace, reboot, return.

Each is written down for the daemon, which alone acts. Exit code: 0 it agreed, 1 it refused,
3 nobody answered within five seconds (the request stays queued).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from hpctl.cli import output
from hpctl.cli.arguments import now_option
from hpctl.cli.ask import ANSWER_S, ask, invoking_user, preview_lines, report
from hpctl.cli.ask import previews as previews
from hpctl.cli.complete import complete_hold, complete_node, complete_open
from hpctl.cli.gather import World, gather, known_nodes
from hpctl.cli.output import Exit
from hpctl.core.hostlist import HostlistError, expand
from hpctl.core.model import JobId, NodeName, RecoveryId
from hpctl.core.requests import NOW

F = TypeVar("F", bound=Callable[..., Any])


def request_options(command: F) -> F:
    """What every request takes: `--no-wait`, `--json`, `--config`."""
    command = output.config_option(command)
    command = output.json_option(command)
    return click.option(
        "--no-wait", is_flag=True, help="Do not wait for the daemon's answer: queue it and leave."
    )(command)


def destroys(command: F) -> F:
    """What requests that destroy something take beside: `--now`, `--yes`, `--dry-run`."""
    command = now_option(command)
    command = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)
    return click.option(
        "--dry-run", is_flag=True, help="Print what would happen; ask for nothing."
    )(command)


def _ask(config: str, verb: str, targets: list[str], no_wait: bool, as_json: bool) -> None:
    view = ask(output.load_config(config), verb, targets, wait_s=0.0 if no_wait else ANSWER_S)
    report(view, as_json, waited=not no_wait)


@click.command()
@request_options
def pause(no_wait: bool, config: str, as_json: bool) -> None:
    """Stop opening recoveries and taking steps."""
    _ask(config, "pause", [""], no_wait, as_json)


@click.command()
@request_options
def resume(no_wait: bool, config: str, as_json: bool) -> None:
    """Lift a pause."""
    _ask(config, "resume", [""], no_wait, as_json)


@click.command()
@click.argument("targets", metavar="[TARGET]...", nargs=-1, shell_complete=complete_hold)
@click.option("--rule", help="All that are held for this rule of the catalogue, such as xid-79.")
@request_options
def approve(
    targets: tuple[str, ...], rule: str | None, no_wait: bool, config: str, as_json: bool
) -> None:
    """Let a held recovery go ahead.

    TARGET is what `hpctl status` lists as held back; nodes may be a hostlist. Only budgets, the
    correlated-failure gate, the repeat-offender gate and the launch breaker give way to an
    approval.
    """
    world = gather(output.load_config(config), output.now())
    wanted = [name for target in targets for name in _names(target)]
    if rule is not None:
        of_rule = [h.target for h in world.state.holds.values() if h.rule == rule and h.approvable]
        if not of_rule:
            held = sorted({str(h.rule) for h in world.state.holds.values() if h.approvable})
            raise output.no_such("status", rule, held)
        wanted += sorted(of_rule)
    if not wanted:
        raise click.UsageError("name a TARGET, or --rule: hpctl status lists what is held back")
    for target in wanted:
        hold = world.state.holds.get(target)
        if hold is None:
            raise output.no_such("status", target, sorted(world.state.holds))
        if not hold.approvable:
            output.echo(f"hpctl: no approval lifts the gate {hold.gate}: {hold.why}", err=True)
            output.leave(Exit.PROBLEM)
    _ask(config, "approve", list(dict.fromkeys(wanted)), no_wait, as_json)


def _names(target: str) -> tuple[str, ...]:
    """The names of a hostlist such as `gpu-[3-5]`. Raises UsageError where it is none."""
    try:
        return expand(target)
    except HostlistError as error:
        raise click.UsageError(f"{target!r}: {error}") from error


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_open)
@request_options
def cancel(ids: tuple[str, ...], no_wait: bool, config: str, as_json: bool) -> None:
    """End a recovery without finishing it.

    ID is an open recovery, or the node or job that it treats. A node stays drained; give it
    back with `hpctl return` or `scontrol update`.
    """
    world = gather(output.load_config(config), output.now())
    found = [open_recovery(world, name) for name in ids]
    _ask(config, "cancel", found, no_wait, as_json)


def open_recovery(w: World, name: str) -> str:
    """The id of the open recovery that an id, a node or a job names. Else a usage error."""
    rid: RecoveryId | None = RecoveryId(name)
    still_open = {*w.state.open_nodes.values(), *w.state.open_jobs.values()}
    if rid not in still_open:
        rid = w.state.open_nodes.get(NodeName(name))
        if rid is None and name.isdecimal():
            rid = w.state.open_jobs.get(JobId(int(name)))
    if rid is not None:
        return rid
    ended = w.state.nodes.get(RecoveryId(name)) or w.state.jobs.get(RecoveryId(name))
    if ended is not None:
        raise click.UsageError(f"{name} has ended already ({ended.phase}): nothing to cancel")
    jobs = [str(job) for job in w.state.open_jobs]
    raise output.no_such("recoveries", name, [*still_open, *w.state.open_nodes, *jobs])


def _destroy(
    order: str, names: tuple[str, ...], *, now: bool, yes: bool, dry_run: bool, no_wait: bool,
    config: str, as_json: bool,
) -> None:  # fmt: skip
    """Show what runs there, be sure, ask."""
    verb = order + NOW if now else order
    world = gather(output.load_config(config), output.now(), slurm=True, cloud=True)
    if world.slurm is None:
        output.echo(f"hpctl: what runs on the nodes is unknown: {world.slurm_error}", err=True)
        output.leave(Exit.CANNOT_TELL)
    known = [str(n) for n in known_nodes(world)]
    for name in names:
        if name not in known or NodeName(name) not in (world.slurm.nodes if world.slurm else {}):
            raise output.no_such("nodes", name, known)
    view = previews(world, verb, tuple(dict.fromkeys(names)), invoking_user())
    if dry_run and as_json:
        output.echo(output.to_json("preview", view))
    else:
        for line in preview_lines(view):
            output.echo(line, err=not dry_run)
    if dry_run:
        if not as_json:
            output.echo(output.DRY_RUN)
        blocked = any(not p.would_open for p in view.previews)
        output.leave(Exit.PROBLEM if blocked else Exit.FINE)
        return
    if not yes:
        output.confirm(f"{order} {len(view.previews)} node(s)?", abort=True)
    _ask(config, verb, [p.node for p in view.previews], no_wait, as_json)


@click.command()
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@destroys
@request_options
def replace(names: tuple[str, ...], **options: Any) -> None:
    """Replace a node's instance.

    The node is drained, its jobs end (`--now`: they start elsewhere), and the instance is
    destroyed; a new one takes its name. Whatever is only on the instance's own disks is lost.
    """
    _destroy("replace", names, **options)


@click.command()
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@destroys
@request_options
def reboot(names: tuple[str, ...], **options: Any) -> None:
    """Reboot a node's instance.

    The node is drained and its jobs end first (`--now`: they start elsewhere).
    """
    _destroy("reboot", names, **options)


@click.command("return")
@click.argument("names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@request_options
def give_back(names: tuple[str, ...], no_wait: bool, config: str, as_json: bool) -> None:
    """Give a node that hpctl drained back to Slurm.

    Only nodes whose Reason says hpctl: another's drain is theirs to lift.
    """
    _ask(config, "return", list(dict.fromkeys(names)), no_wait, as_json)
