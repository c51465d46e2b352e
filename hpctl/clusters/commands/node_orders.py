"""`hpctl cluster replace|reboot|delete-nodes`: orders for named nodes, drained first.

Nodes to delete: emptied first where Slurm is at hand, then removed by name, reported one by one.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import click
from msgspec import Struct

from hpctl.clusters.commands.change_view import PHASES, NodeRemovalView
from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    LocalClusterState,
    add_cluster_options,
    complete_node_name,
    read_existing_cluster_fleet,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.clusters.commands.waiting import (
    combine_click_options,
    confirm_or_exit,
    make_duration_option,
    make_wait_option,
    yes_option,
)
from hpctl.clusters.node_lookup import resolve_nodes_by_names
from hpctl.clusters.node_order_plan import NodeOrderPlan, NodeOrderTarget, build_node_order_plan
from hpctl.clusters.order_terms import NodeAction, NodeOrderOptions
from hpctl.engine.request_client import (
    ANSWER_S,
    JobOnNode,
    describe_job_outcome_on_node_removal,
    find_invoking_user,
    print_request_answers_and_exit,
    send_operator_requests,
)
from hpctl.engine.requests import NOW
from hpctl.toolkit import output
from hpctl.toolkit.arguments import NODES, now_option
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
)
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.lazy_commands import INTERRUPTED
from hpctl.toolkit.output import DRY_RUN, ExitCode
from hpctl.toolkit.tables import BAD, DIM, GOOD, WARN, style_text
from hpctl.toolkit.view_copy import build_view_from_source
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy import OperatingMode

if TYPE_CHECKING:
    from rich.text import Text

    from hpctl.clusters.commands.waiting import WaitOptions
    from hpctl.clusters.fleet import Fleet
    from hpctl.clusters.node_order_plan import NodeOrderPlan, RemovalCandidate
    from hpctl.clusters.order_follow import DaemonNodeOrderFollower
    from hpctl.clusters.order_loop import NodeOrderExecution
    from hpctl.clusters.order_progress import NodeOrderProgress


HEARTBEAT_S = 60.0
"""How often a walk on which nothing moves says that it still waits."""


removal_now_option = click.option(
    "--now", is_flag=True, help="Do not wait for the jobs on nodes that go: they end."
)


def plan_node_removal(
    fleet: Fleet, picks: Sequence[RemovalCandidate], answer: LocalClusterState
) -> NodeOrderPlan:
    """Return the order that removes these nodes. Raises HpctlError where one of them may not go."""

    alive = answer.world is not None and answer.world.is_daemon_alive
    rows = [pick.row for pick in picks]
    order = build_node_order_plan(
        NodeAction.DELETE,
        fleet.description,
        rows,
        answer.slurm,
        by=find_invoking_user(),
        daemon=alive,
    )
    wrong = [f"{t.row.display_name}: {t.refusal}" for t in order.targets if t.refusal]
    if order.is_refused:
        lines = [line for line in (order.refusal, *wrong) if line]
        raise HpctlError("\n  ".join(["these nodes cannot be removed; nothing was done", *lines]))
    return order


def require_slurm_for_node_removal(
    here: ClusterCommandContext, answer: LocalClusterState, now: bool
) -> None:
    """Require Slurm's view, so that no node is removed blindly. Raises Unavailable, HpctlError."""
    if answer.slurm is not None:
        return
    if here.slurm:
        raise ServiceUnavailable(
            "cannot see which jobs run on the nodes, so no node was removed: Slurm does not "
            f"answer: {answer.slurm_error}",
            "check `scontrol ping`, and run the command again",
        )
    if not now:
        raise HpctlError(
            "cannot see jobs or drain the nodes: Slurm is not available on this host",
            "run this on the cluster's head node; --now removes the nodes even if jobs run on them",
        )


def drain_and_delete_nodes(
    here: ClusterCommandContext,
    order: NodeOrderPlan,
    waiting: WaitOptions,
    now: bool,
    floor: Mapping[str, int],
) -> tuple[dict[str, NodeOrderProgress], bool]:
    """Delete each node once its jobs have ended; return each outcome, and whether Ctrl-C came.

    `floor`: the groups that keep so many instances, even if others remove some meanwhile.
    """
    options = NodeOrderOptions(
        now, waiting.wait, min(5.0, waiting.every_s), waiting.timeout_s, floor
    )
    return execute_node_order(_make_node_order_execution(here, order, options))


class NodeOrderFollower(Protocol):
    """An order on its way, carried out here or by the daemon."""

    progress: dict[str, NodeOrderProgress]
    on_interrupt: str
    """What becomes of the order on a Ctrl-C."""

    def iter_progress(self) -> Iterator[tuple[NodeOrderProgress, ...]]:
        """Yield the nodes after every look, until each has ended."""

    def let_go(self) -> tuple[NodeOrderProgress, ...]:
        """Stop waiting."""


def execute_node_order(run: NodeOrderFollower) -> tuple[dict[str, NodeOrderProgress], bool]:
    """Return the outcome for each node of an order, and whether a user pressed Ctrl-C.

    Reported on stderr: a line for each thing that changes, and one a minute while nothing does.
    SIGTERM and a closed terminal are as Ctrl-C: nodes must not stay drained without a command.
    """
    try:
        with _treat_signals_as_interrupt(signal.SIGTERM, signal.SIGHUP):
            _print_node_order_progress(run.iter_progress())
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            output.echo(f"hpctl: interrupted; {run.on_interrupt} ...", err=True)
        run.let_go()
        return run.progress, True
    return run.progress, False


@contextlib.contextmanager
def _treat_signals_as_interrupt(*numbers: signal.Signals) -> Iterator[None]:
    """Treat these signals as Ctrl-C, except those that are set to be ignored (nohup)."""

    def raise_keyboard_interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.getsignal(n) for n in numbers}
    taken = {n: old for n, old in before.items() if old is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, raise_keyboard_interrupt)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def _print_node_order_progress(looks: Iterator[tuple[NodeOrderProgress, ...]]) -> None:
    answer: dict[str, NodeOrderProgress] = {}
    spoke = time.monotonic()
    for look in looks:
        fresh = [one for one in look if answer.get(one.instance_id) != one]
        answer |= {one.instance_id: one for one in fresh}
        lines = [_format_node_order_progress(one) for one in fresh]
        if not lines and time.monotonic() - spoke > HEARTBEAT_S:
            lines = [f"still waiting for {sum(not one.has_ended for one in look)} node(s)"]
        for text in lines:
            output.echo(f"{output.get_current_utc_time():%Y-%m-%dT%H:%M:%SZ} {text}", err=True)
            spoke = time.monotonic()


def make_node_removal_views(
    picks: Sequence[RemovalCandidate], done: dict[str, NodeOrderProgress] | None = None
) -> tuple[NodeRemovalView, ...]:
    """Return nodes picked, with what became of them where they were ordered away."""
    return tuple(
        build_view_from_source(
            NodeRemovalView,
            pick.row,
            why=pick.why,
            **_select_node_progress_fields(
                (done or {}).get(pick.row.instance_id or pick.row.logical_id)
            ),
        )
        for pick in picks
    )


def summarize_node_removals(
    done: dict[str, NodeOrderProgress], interrupted: bool
) -> tuple[str, str]:
    """Return the outcome of removals and why; ("", "") where every node is gone or going."""
    phases = [one.phase.value for one in done.values()]
    if interrupted:
        left, going = phases.count("let_go"), phases.count("left") + phases.count("done")
        why = f"{going} node(s) go; {left} were not ordered and are given back"
        doubt = phases.count("in_doubt")
        if doubt:
            why += f"; {doubt} in doubt stay drained"
        return "interrupted", why
    bad = sum(phase in ("refused", "failed") for phase in phases)
    if bad:
        return "failed", f"{bad} of {len(phases)} node(s) did not go"
    doubt = phases.count("in_doubt")
    if doubt:
        return "in_doubt", f"it is unknown whether {doubt} of {len(phases)} node(s) go"
    return "", ""


def _format_node_order_progress(one: NodeOrderProgress) -> str:
    """Return one node on its way, in one line."""
    text = f"{one.node}: {PHASES[one.phase]}"
    if one.jobs:
        text += f" ({', '.join(map(str, one.jobs))})"
    if one.new_instance_id:
        text += f" [{one.new_instance_id}]"
    return f"{text}: {one.text}" if one.text else text


_STYLES = {
    "done": GOOD,
    "refused": BAD,
    "failed": BAD,
    "in_doubt": WARN,
    "left": WARN,
    "let_go": WARN,
}


def _render_node_order_result(node: NodeOrderEntry) -> Text:
    text = style_text(PHASES[node.phase], _STYLES.get(node.phase, ""))
    why = node.text or node.code
    if why:
        text.append(f": {why}", "")
    return text


class NodeOrderEntry(Struct, frozen=True):
    """One node of an order. `phase` is empty in a dry run, and where anything was refused."""

    node: str
    instance_id: str
    group: str
    status: str
    slurm_state: str
    jobs: tuple[JobOnNode, ...]
    refusal: str
    warning: str
    under_way: bool
    phase: str
    text: str
    new_instance_id: str
    code: str
    fix: str
    left_drained: str

    columns: ClassVar[Columns] = (
        Column("NODE", "node"),
        Column("INSTANCE", "instance_id"),
        Column(
            "NEW INSTANCE",
            "new_instance_id",
            empty="-",
            when=lambda view: any(node.new_instance_id for node in view.nodes),
        ),
        Column("RESULT", _render_node_order_result, fold=True),
    )
    json_only: ClassVar[JsonOnly] = (
        "group",
        "status",
        "slurm_state",
        "jobs",
        "refusal",
        "warning",
        "under_way",
        "fix",
        "left_drained",
    )
    """The plan shows these, or what is left to do."""


class NodeOrderView(Struct, frozen=True):
    """An order. `now`: its jobs are not waited for. `why_not_daemon`: why hpctl's daemon is not
    asked."""

    as_of: datetime
    cluster: str
    verb: str
    dry_run: bool
    refusal: str
    by_daemon: bool
    why_not_daemon: str
    nodes: tuple[NodeOrderEntry, ...]
    now: bool = False


class NodeOrderPlanRow(Struct, frozen=True):
    """A node of an order, with what its text takes from the order."""

    node: NodeOrderEntry
    verb: str
    now: bool

    @property
    def slurm_state(self) -> str:
        """Return its state in Slurm; `-` where Slurm does not have it."""
        return self.node.slurm_state or "-"

    @property
    def is_unread(self) -> bool:
        """Return whether what runs there cannot be known."""
        return self.node.slurm_state == "UNKNOWN"

    @property
    def is_empty(self) -> bool:
        """Return whether no job is on it."""
        return not self.node.jobs and not self.is_unread

    @property
    def job_fates(self) -> list[str]:
        """Return what becomes of each job on it."""
        return [describe_job_outcome_on_node_removal(job, now=self.now) for job in self.node.jobs]


class NodeOrderPlanView(NodeOrderView, frozen=True):
    """An order that is not carried out yet: each node, what runs there, what is against it."""

    layout: ClassVar[Layout] = (
        RepeatedLayoutParts(
            "planned_nodes",
            (
                TextLine(
                    "{node.node}: {verb} {node.instance_id}"
                    " ({node.group}, {node.status}, Slurm: {slurm_state})",
                    style="bold",
                ),
                ItemTextLines("job_fates", style=WARN, indent=2),
                TextLine(
                    "what runs there is unknown, and would be lost",
                    style=WARN,
                    indent=2,
                    when="is_unread",
                ),
                TextLine("no job is on it", indent=2, when="is_empty"),
                TextLine(
                    "an earlier order is still under way: this command only waits for it",
                    indent=2,
                    when="node.under_way",
                ),
                TextLine("{node.warning}", style=WARN, indent=2),
                TextLine("cannot be: {node.refusal}", style=BAD, indent=2, when="node.refusal"),
            ),
        ),
        TextLine("{refusal}", style=BAD),
        TextLine("Nothing was ordered.", style=BAD, when="is_refused"),
        TextLine(
            "hpctl's daemon does it, under its own gates (--direct: from here)",
            style=DIM,
            when=lambda view: view.by_daemon and not view.is_refused,
        ),
        TextLine(
            "hpctl's daemon is not asked: {why_not_daemon}",
            style=DIM,
            when=lambda view: view.why_not_daemon and not view.is_refused,
        ),
        TextLine(DRY_RUN, style=DIM, when="dry_run"),
    )
    json_only: ClassVar[JsonOnly] = ("cluster",)

    @property
    def planned_nodes(self) -> list[NodeOrderPlanRow]:
        """Return the nodes, each with what its text takes from the order."""
        return [NodeOrderPlanRow(node, self.verb, self.now) for node in self.nodes]

    @property
    def is_refused(self) -> bool:
        """Return whether nothing is ordered."""
        return bool(self.refusal) or any(node.refusal for node in self.nodes)


class NodeOrderResultView(NodeOrderView, frozen=True):
    """An order that was carried out: what became of each node, and what is left to do."""

    layout: ClassVar[Layout] = (
        RowTable("nodes"),
        RepeatedLayoutParts(
            "nodes",
            (
                TextLine(
                    "{node}: {code}: {fix}", style=WARN, when=lambda one: one.fix and one.code
                ),
                TextLine("{node}: {fix}", style=WARN, when=lambda one: one.fix and not one.code),
            ),
        ),
        TextLine("still drained in Slurm: {failed_hostlist}", style=WARN, when="failed_hostlist"),
        TextLine(
            "Once the cause is fixed, this orders it again:", style=WARN, when="failed_hostlist"
        ),
        TextLine(
            "  hpctl cluster {command} {failed_hostlist}",
            style=WARN,
            unbroken=True,
            when="failed_hostlist",
        ),
        TextLine("still drained in Slurm: {deleted_hostlist}", style=WARN, when="deleted_hostlist"),
        TextLine("Their deletion continues; this follows it:", style=WARN, when="deleted_hostlist"),
        TextLine(
            "  hpctl cluster wait {cluster}", style=WARN, unbroken=True, when="deleted_hostlist"
        ),
        TextLine(
            "still drained in Slurm: {returning_hostlist}", style=WARN, when="returning_hostlist"
        ),
        TextLine("When they are back,", style=WARN, when="returning_hostlist"),
        TextLine(
            "  hpctl cluster {verb} {returning_hostlist}",
            style=WARN,
            unbroken=True,
            when="returning_hostlist",
        ),
        TextLine(
            "waits for them and gives them back; by hand:", style=WARN, when="returning_hostlist"
        ),
        TextLine(
            "  scontrol update NodeName={returning_hostlist} State=RESUME",
            style=WARN,
            unbroken=True,
            when="returning_hostlist",
        ),
    )
    json_only: ClassVar[JsonOnly] = ("dry_run", "refusal", "by_daemon", "why_not_daemon", "now")

    @property
    def command(self) -> str:
        """Return the command of `hpctl cluster` that gave the order."""
        return "delete-nodes" if self.verb == NodeAction.DELETE else self.verb

    @property
    def failed_hostlist(self) -> str:
        """Return the nodes that failed and are still drained, as a hostlist."""
        return ",".join(n.node for n in self.nodes if n.left_drained and n.phase == "failed")

    @property
    def deleted_hostlist(self) -> str:
        """Return the nodes that are deleted and still drained, as a hostlist."""
        return self._drained_hostlist if self.verb == NodeAction.DELETE else ""

    @property
    def returning_hostlist(self) -> str:
        """Return the nodes that are to come back and still drained, as a hostlist."""
        return "" if self.verb == NodeAction.DELETE else self._drained_hostlist

    @property
    def _drained_hostlist(self) -> str:
        return ",".join(n.node for n in self.nodes if n.left_drained and n.phase != "failed")


V = TypeVar("V", bound=NodeOrderView)


def make_node_order_view(
    kind: type[V],
    order: NodeOrderPlan,
    at: datetime,
    *,
    now: bool,
    dry_run: bool = False,
    by_daemon: bool = False,
    why_not: str = "",
    done: dict[str, NodeOrderProgress] | None = None,
) -> V:
    """Return the plan, and what became of it, as a value."""
    return kind(
        as_of=at,
        cluster=order.cluster,
        verb=order.verb,
        dry_run=dry_run,
        refusal=order.refusal,
        by_daemon=by_daemon,
        why_not_daemon=why_not,
        nodes=tuple(_make_node_order_entry(t, (done or {}).get(t.instance)) for t in order.targets),
        now=now,
    )


def _make_node_order_entry(
    target: NodeOrderTarget, one: NodeOrderProgress | None
) -> NodeOrderEntry:
    jobs = sorted(target.jobs, key=lambda job: job.id)
    return build_view_from_source(
        NodeOrderEntry,
        target.row,
        node=target.row.display_name,
        instance_id=target.instance,
        jobs=tuple(build_view_from_source(JobOnNode, job, nodes=len(job.nodes)) for job in jobs),
        refusal=target.refusal,
        warning=target.warning,
        under_way=target.under_way,
        new_instance_id=one.new_instance_id if one else "",
        **_select_node_progress_fields(one),
    )


def _select_node_progress_fields(one: NodeOrderProgress | None) -> dict[str, str]:
    """Return what became of a node, in the words of both views; nothing where it was not
    ordered."""
    args = ("phase", "text", "code", "fix", "left_drained")
    return {word: str(getattr(one, word, "")) for word in args}


order_options = combine_click_options(
    click.argument(
        "names",
        metavar="NODE...",
        type=NODES,
        nargs=-1,
        required=True,
        shell_complete=complete_node_name,
    ),
    now_option,
    make_wait_option(
        "Wait until the node is back and give it to Slurm again. [default: wait]", show=False
    ),
    yes_option,
    click.option("--dry-run", is_flag=True, help="Print what would happen; order nothing."),
    make_duration_option(
        "timeout",
        None,
        "When to give up waiting, from the order on. [default: replace 90min, others 30min]",
    ),
    make_duration_option("every", "5s", "How often to look."),
    output.json_option,
    add_cluster_options,
)
direct_option = click.option(
    "--direct", is_flag=True, help="Do it from here even where hpctl's daemon would."
)
"""For the orders that the daemon takes, too."""


@click.command()
@order_options
@direct_option
def replace(**options: Any) -> None:
    """Replace nodes' instances: drained first, given back to Slurm when the new ones are there.

    NODE is any name of a node, or a hostlist. Whatever is only on the instance's disks is lost.
    Where hpctl's daemon runs in mode own it carries the order out, and this command follows it.
    Exit code: 0 all are back (or ordered), 1 refused or failed, 3 in doubt or late, 130
    interrupted.
    """
    _run_node_order_command(NodeAction.REPLACE, **options)


@click.command()
@order_options
@direct_option
def reboot(**options: Any) -> None:
    """Reboot nodes' instances: drained first, given back to Slurm when they have come up.

    NODE is any name of a node, or a hostlist. Where hpctl's daemon runs in mode own it carries the
    order out, and this command follows it.
    Exit code: 0 all are back (or ordered), 1 refused or failed, 3 in doubt or late, 130
    interrupted.
    """
    _run_node_order_command(NodeAction.REBOOT, **options)


@click.command("delete-nodes")
@order_options
def delete_nodes(**options: Any) -> None:
    """Delete nodes for good: drained first; their groups' counts go down with them.

    NODE is any name of a node, or a hostlist. To delete a cluster: hpctl cluster delete.
    Exit code: 0 all are gone, 1 refused or failed, 3 in doubt or not gone in time, 130 interrupted.
    """
    _run_node_order_command(NodeAction.DELETE, direct=True, **options)


def _run_node_order_command(
    verb: NodeAction, *, names: tuple[str, ...], now: bool, wait: bool, yes: bool, dry_run: bool,
    direct: bool, timeout_s: float | None, every_s: float, as_json: bool, **where: Any,
) -> None:  # fmt: skip

    here = resolve_cluster_context(**where)
    text, order = _plan_node_order(here, verb, names, now=now)
    by_daemon, why_not = (False, "") if direct else _decide_if_daemon_executes_order(text, order)
    planned = make_node_order_view(
        NodeOrderPlanView,
        order,
        output.get_current_utc_time(),
        now=now,
        dry_run=dry_run,
        by_daemon=by_daemon,
        why_not=why_not,
    )
    if dry_run or order.is_refused:
        output.show_view("cluster-order", planned, as_json)
        output.exit_with_code(ExitCode.PROBLEM if order.is_refused else ExitCode.FINE)
        return
    output.draw_value_on_stderr(output.draw_declared_view, planned)
    confirm_or_exit(f"{verb} {len(order.targets)} node(s)?", yes)
    options = NodeOrderOptions(now, wait, every_s, timeout_s or 0.0)
    run: NodeOrderFollower | None = None
    if not by_daemon:
        run = _make_node_order_execution(here, order, options)
    else:
        run = _submit_node_order_to_daemon(here, order, options, as_json=as_json)
    if run is None:
        return
    done, interrupted = execute_node_order(run)
    view = make_node_order_view(
        NodeOrderResultView,
        order,
        output.get_current_utc_time(),
        now=now,
        by_daemon=by_daemon,
        why_not=why_not,
        done=done,
    )
    output.show_view("cluster-order", view, as_json)
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    output.exit_with_code(_choose_node_order_exit_code(view, wait=wait))


def _plan_node_order(
    here: ClusterCommandContext, verb: NodeAction, names: tuple[str, ...], *, now: bool
) -> tuple[LocalClusterState, NodeOrderPlan]:
    """Look at everything once. Raises where what runs there cannot be known."""
    fleet = read_existing_cluster_fleet(here)
    answer = read_local_cluster_state(here)
    if answer.slurm is None and here.slurm:
        raise ServiceUnavailable(
            "cannot see which jobs run on the nodes, so nothing was changed: Slurm does not "
            f"answer: {answer.slurm_error}",
            "check `scontrol ping`; to ignore running jobs, use --now --cluster NAME from a "
            "machine without Slurm",
        )
    if answer.slurm is None and not now:
        raise HpctlError(
            "cannot see jobs or drain the nodes: Slurm is not available on this host",
            "run this on the cluster's head node; --now changes the nodes even if jobs run on them",
        )
    rows = resolve_nodes_by_names(answer.join(fleet.rows, here), names)
    alive = answer.world is not None and answer.world.is_daemon_alive
    by = find_invoking_user()
    return answer, build_node_order_plan(
        verb, fleet.description, rows, answer.slurm, by=by, daemon=alive
    )


def _decide_if_daemon_executes_order(
    answer: LocalClusterState, order: NodeOrderPlan
) -> tuple[bool, str]:
    """Return whether hpctl's daemon is to do it, and if not, why; no reason where there is none."""
    world = answer.world
    if world is None or world.daemon is None or not world.is_daemon_alive:
        return False, ""
    if world.daemon.mode != OperatingMode.OWN:
        return False, f"it runs in mode {world.daemon.mode}, and replaces nothing"
    if any(t.before is None or t.before.drained or t.under_way for t in order.targets):
        return False, "it does not touch nodes that others have drained, or that Slurm lacks"
    return True, ""


def _submit_node_order_to_daemon(
    here: ClusterCommandContext, order: NodeOrderPlan, options: NodeOrderOptions, *, as_json: bool
) -> DaemonNodeOrderFollower | None:
    """Ask the daemon for each node, as `hpctl replace` does; return what follows its recoveries.

    Return None where it is not waited for, or does not answer: its answers end the command.
    """
    from hpctl.clusters.order_follow import DaemonNodeOrderFollower
    from hpctl.clusters.order_ports import NodeOrderPorts
    from hpctl.engine.clock import SystemClock
    from hpctl.engine.world_reader import WorldReader

    settings = here.settings()
    targets = [str(NodeName(target.row.node)) for target in order.targets]
    verb = order.verb + NOW if options.now else order.verb
    view = send_operator_requests(settings, verb, targets, wait_s=ANSWER_S if options.wait else 0.0)
    if not options.wait or not all(request.answered for request in view.requests):
        print_request_answers_and_exit(view, as_json, waited=options.wait)
        return None
    refusals = {NodeName(r.target): r.answer or "refused" for r in view.requests if not r.ok}
    reader = WorldReader(settings, recent=True)
    return DaemonNodeOrderFollower(
        order,
        refusals,
        lambda: reader.read(output.get_current_utc_time(), slurm=True),
        NodeOrderPorts(here.aws, None, SystemClock(), time.sleep),
        options,
    )


def _make_node_order_execution(
    here: ClusterCommandContext, order: NodeOrderPlan, options: NodeOrderOptions
) -> NodeOrderExecution:
    from hpctl.clusters.order_loop import NodeOrderExecution
    from hpctl.clusters.order_ports import NodeOrderPorts
    from hpctl.engine import adapters
    from hpctl.engine.clock import SystemClock

    slurm = adapters.make_slurm_command_client(here.settings()) if here.slurm else None
    return NodeOrderExecution(
        order, NodeOrderPorts(here.aws, slurm, SystemClock(), time.sleep), options
    )


def _choose_node_order_exit_code(view: NodeOrderView, *, wait: bool) -> ExitCode:
    phases = {node.phase for node in view.nodes}
    if phases & {"refused", "failed"}:
        return ExitCode.PROBLEM
    if "in_doubt" in phases or (wait and "left" in phases):
        return ExitCode.CANNOT_TELL
    return ExitCode.FINE
