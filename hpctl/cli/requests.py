"""The operator's requests: pause, resume, approve, cancel, replace, reboot, return.

Each is written down for the daemon, which alone acts. Exit code: 0 it agreed, 1 it refused,
3 nobody answered within five seconds (the request stays queued).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.cli import output
from hpctl.cli.arguments import complete_hold, complete_node, complete_open, now_option
from hpctl.cli.gather import World, gather, known_nodes
from hpctl.cli.output import Exit
from hpctl.cli.views import copied
from hpctl.core.hostlist import HostlistError, expand
from hpctl.core.journal import RequestTaken
from hpctl.core.model import JobId, NodeName, RecoveryId, SlurmJob
from hpctl.core.requests import NOW, take
from hpctl.core.view import Request, View, jobs_on
from hpctl.errors import HpctlError, Unavailable

if TYPE_CHECKING:
    from hpctl.config import Config


ANSWER_S = 5.0
LOOK_S = 0.05
SEND_S = 5.0


class RequestView(Struct, frozen=True):
    """One request. `answered` is false while it is still queued; `ok` means nothing then."""

    id: int
    verb: str
    target: str
    by: str
    answered: bool
    ok: bool
    answer: str


class RequestsView(Struct, frozen=True):
    """What a request command shows."""

    requests: tuple[RequestView, ...]


def invoking_user() -> str:
    """Who is asking: behind sudo, the person, because root is everybody.

    SUDO_USER counts for root alone: anybody can set a variable.
    """
    uid = os.getuid()
    if uid == 0 and (person := os.environ.get("SUDO_USER")):
        return person
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def ask(
    config: Config, verb: str, targets: Sequence[str], *, wait_s: float = ANSWER_S
) -> RequestsView:
    """Ask for one thing for each target; answers what the daemon said within `wait_s` seconds.

    The leader's intake takes requests and learns from MUNGE who asks. Where no daemon answers,
    who may write to the journal's file leaves the request there for the next one.
    """
    from hpctl.wiring import open_store

    by = invoking_user()
    journal = config.state_dir / "journal.db"
    if config.database_url is None and not journal.exists():
        raise Unavailable(
            f"there is no journal at {journal}",
            "start the daemon first (hpctl daemon run), or name its file with --config",
        )
    ids = {_send(config, verb, target, by): target for target in targets}
    with closing(open_store(config)) as store:
        taken: dict[int, RequestTaken] = {}
        if wait_s > 0:
            output.echo("hpctl: waiting for the daemon ...", err=True)
        until = time.monotonic() + wait_s
        while True:
            for number in ids.keys() - taken.keys():
                answer = store.answer(number)
                if answer is not None:
                    taken[number] = answer
            if len(taken) == len(ids) or time.monotonic() >= until:
                break
            time.sleep(LOOK_S)
    answers = {n: (True, got.ok, got.answer) for n, got in taken.items()}
    queued = (False, False, "")
    rows = (RequestView(n, verb, it, by, *answers.get(n, queued)) for n, it in ids.items())
    return RequestsView(tuple(rows))


def _send(config: Config, verb: str, target: str, by: str) -> int:
    """Hand one request to the daemon; answers its number. Raises HpctlError with its refusal."""
    import http.client

    from hpctl.protocol import reports as wire
    from hpctl.protocol.heads import Head, ask_leader, explained
    from hpctl.wiring import open_store

    heads = [Head.parse(url) for url in config.heads] or [Head.here(config.intake.listen)]
    if len(heads) > 1:
        with contextlib.suppress(HpctlError), closing(open_store(config)) as store:
            led = store.daemon()
            heads.sort(key=lambda head: not led or f"{head.host}:{head.port}" != led.address)
    named = by if os.getuid() == 0 else ""
    body = wire.encode_request(verb, target, named)
    until = time.monotonic() + SEND_S
    try:
        status, answer = ask_leader(
            heads, wire.REQUESTS_PATH, body, until, config.intake.munge_socket, once=True
        )
    except (OSError, http.client.HTTPException, Unavailable) as error:
        asked = ", ".join(f"{head.host}:{head.port}" for head in heads)
        return _leave(config, verb, target, by, f"{asked}: {error}")
    if status == http.client.OK:
        return int(json.loads(answer)["request"])
    if status == http.client.MISDIRECTED_REQUEST:
        raise Unavailable(
            f"no head node leads at the moment: {explained(answer)}",
            "ask again in some seconds; `heads` in hpctl.yaml must name every head node",
        )
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise Unavailable(f"the daemon cannot take the request: {explained(answer)}")
    raise HpctlError(f"the daemon refuses: {explained(answer)}")


def _leave(config: Config, verb: str, target: str, by: str, why: str) -> int:
    """Leave a request in the journal's file for the next daemon. Raises HpctlError."""
    from hpctl.daemon.wake import wake
    from hpctl.wiring import open_store

    journal = config.state_dir / "journal.db"
    # SQLite writes its log beside the database, so the directory counts as well.
    mine = os.access(journal, os.W_OK) and os.access(config.state_dir, os.W_OK)
    if config.database_url is not None or not mine:
        raise Unavailable(
            f"no daemon answers ({why})",
            "start it (hpctl doctor says what is wrong); while none runs, only who may write to a"
            " SQLite journal can leave a request: try sudo",
        )
    with closing(open_store(config, write=True)) as store:
        number = store.ask(verb, target, by, output.now())
        wake(config.state_dir)
        return number


def report(view: RequestsView, as_json: bool, waited: bool) -> None:
    """Print the answers and leave: 0 all agreed, 1 one refused, 3 one is still queued."""
    if as_json:
        output.echo(output.to_json("requests", view))
    else:
        for row in view.requests:
            output.echo(_line(row, waited))
    if any(r.answered and not r.ok for r in view.requests):
        output.leave(Exit.PROBLEM)
    if waited and any(not r.answered for r in view.requests):
        output.leave(Exit.CANNOT_TELL)


def _line(row: RequestView, waited: bool) -> str:
    what = f"{row.verb} {row.target}".strip()
    if row.answered:
        return f"{what}: {row.answer or ('done' if row.ok else 'refused')}"
    queued = f"{what}: queued as request {row.id}; the daemon takes it when it runs"
    return f"{queued} (none answered: hpctl status)" if waited else queued


class JobHere(Struct, frozen=True):
    """A job that holds the node. `recoverable`: Slurm would run it again."""

    id: int
    user: str
    name: str
    state: str
    nodes: int
    recoverable: bool


class PreviewView(Struct, frozen=True):
    """One node before a reboot or replacement. `answer`: what the daemon would say now. `now`: its
    jobs are not waited for."""

    node: str
    verb: str
    instance: str
    jobs: tuple[JobHere, ...]
    open_recovery: str
    would_open: bool
    answer: str
    now: bool = False


class PreviewsView(Struct, frozen=True):
    """What `--dry-run` shows."""

    as_of: datetime
    previews: tuple[PreviewView, ...]


def previews(w: World, verb: str, names: tuple[str, ...], by: str) -> PreviewsView:
    """Look at each node. Needs Slurm's view; without the cloud's, its gates pass."""
    view = w.view()
    here = jobs_on([NodeName(n) for n in names], view.scheduler.jobs)
    shown = (_preview(w, view, verb, n, here[n], by) for n in map(NodeName, names))
    return PreviewsView(w.now, tuple(shown))


def _preview(
    w: World, view: View, verb: str, name: NodeName, jobs: list[SlurmJob], by: str
) -> PreviewView:
    rec, instance = w.state.node_recovery(name), view.instance(name)
    health = w.health.get(name)
    # The daemon's own decision, on what is known here: a preview that cannot disagree with it.
    *opened, answer = take(Request(0, w.now, verb, name, by, "a preview"), view, w.policy, w.now)
    assert isinstance(answer, RequestTaken)
    return PreviewView(
        node=name,
        verb=verb.removesuffix(NOW),
        instance=instance.id if instance else (health.generation.instance if health else ""),
        jobs=tuple(
            copied(JobHere, j, nodes=len(j.nodes))
            for j in sorted(jobs, key=lambda j: j.id)
            if j.running or j.completing
        ),
        open_recovery=rec.id if rec else "",
        would_open=bool(opened) and answer.ok,
        answer=answer.answer,
        now=verb.endswith(NOW),
    )


def fate(job: JobHere, *, now: bool) -> str:
    """A job on a node, and what becomes of it when an order takes the node away."""
    ends = "will be requeued" if job.recoverable else "CANNOT be run again by Slurm"
    then = ends if now else "is waited for; --now requeues it"
    return f"job {job.id} ({job.name}, {job.user}) is {job.state} on {job.nodes} node(s): {then}"


def preview_lines(view: PreviewsView) -> list[str]:
    """The same for people: one paragraph a node."""
    lines = []
    for p in view.previews:
        lines.append(f"{p.node}: {p.verb} instance {p.instance or '(unknown)'}")
        lines += [f"  {fate(job, now=p.now)}" for job in p.jobs]
        if not p.jobs:
            lines.append("  no job is on it")
        if not p.would_open:
            lines.append(f"  the daemon would refuse now: {p.answer}")
    return lines


request_options = output.together(
    click.option(
        "--no-wait", is_flag=True, help="Do not wait for the daemon's answer: queue it and leave."
    ),
    output.json_option,
    output.config_option,
)
"""What every request takes."""

destroys = output.together(
    click.argument(
        "names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node
    ),
    click.option("--dry-run", is_flag=True, help="Print what would happen; ask for nothing."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    now_option,
    request_options,
)
"""What requests that destroy something take."""


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
@click.option("--rule", help="Everything blocked for this catalogue rule, such as xid-79.")
@request_options
def approve(
    targets: tuple[str, ...], rule: str | None, no_wait: bool, config: str, as_json: bool
) -> None:
    """Approve a blocked recovery.

    TARGET is what `hpctl status` lists as held back; nodes may be a hostlist. Only budgets, the
    correlated-failure gate, the repeat-offender gate and the launch breaker give way to an
    approval.
    """
    world = gather(output.load_config(config), output.now())
    wanted = [name for target in targets for name in hosts(target)]
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


def hosts(target: str) -> tuple[str, ...]:
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
@destroys
def replace(names: tuple[str, ...], **options: Any) -> None:
    """Replace a node's instance.

    The node is drained, its jobs end (`--now`: they start elsewhere), and the instance is
    destroyed; a new one takes its name. Whatever is only on the instance's own disks is lost.
    """
    _destroy("replace", names, **options)


@click.command()
@destroys
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

    Only nodes whose Reason begins with hpctl:. Other drains are not changed.
    """
    _ask(config, "return", list(dict.fromkeys(names)), no_wait, as_json)
