"""Nodes that go: emptied first where Slurm is at hand, then removed by name, told one by one."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpctl.cli import output
from hpctl.cli.cluster.at_hand import Known, Place
from hpctl.cli.cluster.change import PHASES, RemovalView
from hpctl.cli.requests import invoking_user
from hpctl.errors import HpctlError, Unavailable

if TYPE_CHECKING:
    from hpctl.cli.cluster.waiting import Waiting
    from hpctl.clusters.names import Fleet
    from hpctl.clusters.node_orders import Pick, Plan
    from hpctl.clusters.order_walk import NodeProgress, Walk

F = TypeVar("F", bound=Callable[..., Any])

HEARTBEAT_S = 60.0
"""How often a walk on which nothing moves says that it still waits."""


def now_option(command: F) -> F:
    """`--now`, as the commands for named nodes have it."""
    return click.option(
        "--now",
        is_flag=True,
        help="Do not wait for the jobs on nodes that go: they end.",
    )(command)


def order_for(fleet: Fleet, picks: Sequence[Pick], told: Known) -> Plan:
    """The order that removes these nodes. Raises HpctlError where one of them may not go."""
    from hpctl.clusters.node_orders import Verb, plan

    alive = told.world is not None and told.world.daemon_alive
    rows = [pick.row for pick in picks]
    order = plan(Verb.DELETE, fleet.described, rows, told.slurm, by=invoking_user(), daemon=alive)
    wrong = [f"{t.row.shown}: {t.refusal}" for t in order.targets if t.refusal]
    if order.refused:
        lines = [line for line in (order.refusal, *wrong) if line]
        raise HpctlError("\n  ".join(["these nodes cannot be removed; nothing was done", *lines]))
    return order


def need_slurm(here: Place, told: Known, now: bool) -> None:
    """Nobody removes nodes blindly by mistake. Raises Unavailable, HpctlError."""
    if told.slurm is not None:
        return
    if here.slurm:
        raise Unavailable(
            f"what runs on the nodes is unknown: {told.slurm_error}", "nothing was removed"
        )
    if not now:
        raise HpctlError(
            "what runs on the nodes is unknown, and they cannot be drained: Slurm is not at hand",
            "run this on the cluster's head node; --now removes them whatever runs there",
        )


def take_out(
    here: Place, order: Plan, waiting: Waiting, now: bool, floor: Mapping[str, int]
) -> tuple[dict[str, NodeProgress], bool]:
    """Each node as soon as its jobs have ended; what became of each, and whether Ctrl-C came.

    `floor`: the groups that keep so many instances, whoever else removes some meanwhile.
    """
    from hpctl.clusters.order_walk import Walk
    from hpctl.wiring import make_by_hand

    walk = Walk(
        order,
        here.aws,
        make_by_hand(here.settings()) if here.slurm else None,
        time.monotonic,
        time.sleep,
        now=now,
        wait=waiting.wait,
        every_s=min(5.0, waiting.every_s),
        timeout_s=waiting.timeout_s,
        floor=floor,
    )
    return carry_out(walk)


def carry_out(walk: Walk) -> tuple[dict[str, NodeProgress], bool]:
    """What became of each node of an order, and whether somebody pressed Ctrl-C.

    Told on standard error: a line for each thing that changes, and one a minute while nothing does.
    SIGTERM and a terminal that goes away are as Ctrl-C: nodes drained for nobody help nobody.
    """
    try:
        with _ended_by(signal.SIGTERM, signal.SIGHUP):
            _tell(walk.looks())
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            output.echo("hpctl: interrupted; giving back what was not ordered ...", err=True)
        walk.let_go()
        return walk.progress, True
    return walk.progress, False


@contextlib.contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Take these signals for Ctrl-C, but those that somebody has set to be ignored (nohup)."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.getsignal(n) for n in numbers}
    taken = {n: old for n, old in before.items() if old is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def _tell(looks: Iterator[tuple[NodeProgress, ...]]) -> None:
    told: dict[str, NodeProgress] = {}
    spoke = time.monotonic()
    for look in looks:
        fresh = [one for one in look if told.get(one.instance_id) != one]
        told |= {one.instance_id: one for one in fresh}
        lines = [_line(one) for one in fresh]
        if not lines and time.monotonic() - spoke > HEARTBEAT_S:
            lines = [f"still waiting for {sum(not one.ended for one in look)} node(s)"]
        for text in lines:
            output.echo(f"{output.now():%Y-%m-%dT%H:%M:%SZ} {text}", err=True)
            spoke = time.monotonic()


def removals(
    picks: Sequence[Pick], done: dict[str, NodeProgress] | None = None
) -> tuple[RemovalView, ...]:
    """Nodes picked, with what became of them where they were ordered away."""
    views = []
    for pick in picks:
        row = pick.row
        one = (done or {}).get(row.instance_id or row.logical_id)
        views.append(
            RemovalView(
                node=row.node,
                instance_id=row.instance_id,
                logical_id=row.logical_id,
                group=row.group,
                why=pick.why,
                jobs=row.jobs,
                phase=one.phase.value if one else "",
                text=one.text if one else "",
                code=one.code if one else "",
                mend=one.mend if one else "",
                left_drained=one.left_drained if one else "",
            )
        )
    return tuple(views)


def ended(done: dict[str, NodeProgress], interrupted: bool) -> tuple[str, str]:
    """The outcome of removals and why; ("", "") where every node is gone or going."""
    phases = [one.phase.value for one in done.values()]
    if interrupted:
        left, going = phases.count("let_go"), phases.count("left") + phases.count("done")
        why = f"{going} node(s) go; {left} were not ordered and are given back"
        if doubt := phases.count("in_doubt"):
            why += f"; of {doubt} nobody can say, and they stay drained"
        return "interrupted", why
    if bad := sum(phase in ("refused", "failed") for phase in phases):
        return "failed", f"{bad} of {len(phases)} node(s) did not go"
    if doubt := phases.count("in_doubt"):
        return "in_doubt", f"nobody can say whether {doubt} of {len(phases)} node(s) go"
    return "", ""


def _line(one: NodeProgress) -> str:
    """One node on its way, in one line."""
    said = f"{one.node}: {PHASES[one.phase]}"
    if one.jobs:
        said += f" ({', '.join(map(str, one.jobs))})"
    if one.new_instance_id:
        said += f" [{one.new_instance_id}]"
    return f"{said}: {one.text}" if one.text else said
