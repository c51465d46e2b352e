"""What an order for nodes shows to people: before it is given, on its way, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hpctl.cli.output import DRY_RUN
from hpctl.cli.preview import fate
from hpctl.cli.render import BAD, DIM, GOOD, WARN, columns, word, wrapped

if TYPE_CHECKING:
    from hpctl.cli.cluster.node_orders import NodeOrderView, OrderedNode
    from hpctl.clusters.order_walk import NodeProgress

PHASES = {
    "jobs": "waits for its jobs",
    "ordered": "ordered",
    "coming": "the new instance is coming",
    "joining": "Running; waits for its slurmd",
    "done": "done",
    "left": "under way",
    "let_go": "interrupted; given back",
    "refused": "refused",
    "failed": "failed",
    "in_doubt": "in doubt",
}
_STYLES = {
    "done": GOOD,
    "refused": BAD,
    "failed": BAD,
    "in_doubt": WARN,
    "left": WARN,
    "let_go": WARN,
}


def plan(out: Console, view: NodeOrderView, *, now: bool = False) -> None:
    """Each node, what runs there, and what speaks against it."""
    for node in view.nodes:
        where = f"{node.group}, {node.status}, Slurm: {node.slurm_state or '-'}"
        out.print(Text(f"{node.node}: {view.verb} {node.instance_id} ({where})", "bold"))
        for line, style in _about(node, now=now):
            out.print(Padding(Text(line, style), (0, 0, 0, 2)))
    if view.refusal:
        out.print(Text(view.refusal, BAD))
    if view.refusal or any(node.refusal for node in view.nodes):
        out.print(Text("Nothing was ordered.", BAD))
    elif view.by_daemon:
        out.print(Text("hpctl's daemon does it, under its own gates (--direct: from here)", DIM))
    elif view.why_not_daemon:
        out.print(Text(f"hpctl's daemon is not asked: {view.why_not_daemon}", DIM))
    if view.dry_run:
        out.print(Text(DRY_RUN, DIM))


def _about(node: OrderedNode, *, now: bool) -> list[tuple[str, str]]:
    said = [(fate(job, now=now), WARN) for job in node.jobs]
    if node.slurm_state == "UNKNOWN":
        said.append(("what runs there is unknown, and would be lost", WARN))
    elif not node.jobs:
        said.append(("no job is on it", ""))
    if node.under_way:
        said.append(("an earlier order goes on: it is only waited for", ""))
    if node.warning:
        said.append((node.warning, WARN))
    if node.refusal:
        said.append((f"cannot be: {node.refusal}", BAD))
    return said


def line(one: NodeProgress) -> str:
    """One node on its way, in one line."""
    said = f"{one.node}: {PHASES[one.phase]}"
    if one.jobs:
        said += f" ({', '.join(map(str, one.jobs))})"
    if one.new_instance_id:
        said += f" [{one.new_instance_id}]"
    return f"{said}: {one.text}" if one.text else said


def result(out: Console, view: NodeOrderView) -> None:
    """What became of each node, and what is left to do."""
    fresh = any(node.new_instance_id for node in view.nodes)
    table = columns("NODE", "INSTANCE", *(["NEW INSTANCE"] if fresh else []), wrapped("RESULT"))
    for node in view.nodes:
        result = Text(PHASES[node.phase], _STYLES.get(node.phase, ""))
        if what := node.text or node.code:
            result.append(f": {what}", "")
        new = [word(node.new_instance_id)] if fresh else []
        table.add_row(Text(node.node), Text(node.instance_id), *new, result)
    out.print(table)
    for node in view.nodes:
        if node.mend:
            code = f"{node.code}: " if node.code else ""
            out.print(Text(f"{node.node}: {code}{node.mend}", WARN))
    left = [node for node in view.nodes if node.left_drained]
    if failed := ",".join(node.node for node in left if node.phase == "failed"):
        out.print(Text(f"still drained in Slurm: {failed}", WARN))
        out.print(Text("Once the cause is mended, this orders it again:", WARN))
        out.print(Text(f"  hpctl cluster {view.verb} {failed}", WARN))
    if names := ",".join(node.node for node in left if node.phase != "failed"):
        out.print(Text(f"still drained in Slurm: {names}", WARN))
        if view.verb == "delete":
            out.print(Text("Their deletion goes on; this follows it:", WARN))
            out.print(Text(f"  hpctl cluster wait {view.cluster}", WARN))
            return
        out.print(Text("When they are back,", WARN))
        out.print(Text(f"  hpctl cluster {view.verb} {names}", WARN))
        out.print(Text("waits for them and gives them back; by hand:", WARN))
        out.print(Text(f"  scontrol update NodeName={names} State=RESUME", WARN))
