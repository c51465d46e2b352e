"""`hpctl nodes`: every node, by everybody who knows something of it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.cli import output
from hpctl.cli.arguments import complete_node
from hpctl.cli.gather import World, gather, known_nodes
from hpctl.cli.output import Exit
from hpctl.cli.tables import MANY, WARN, WIDE, ago, columns, plain, styled, word, wrapped
from hpctl.core.model import Condition, NodeName

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "UNKNOWN"
NOT_FOUND = "NOT_FOUND"


class NodeView(Struct, frozen=True):
    """One node. `slurm_state` and `instance_status` are UNKNOWN where nobody could be asked."""

    name: str
    slurm_state: str
    slurm_flags: tuple[str, ...]
    slurm_reason: str
    partitions: tuple[str, ...]
    condition: str
    rule: str
    why: str
    last_heard: datetime | None
    instance_id: str
    instance_status: str
    logical_id: str
    group: str
    recovery: str
    phase: str
    held_by: str


class NodesView(Struct, frozen=True):
    """What `hpctl nodes` shows."""

    as_of: datetime
    slurm_as_of: datetime | None
    slurm_error: str
    cloud_as_of: datetime | None
    cloud_error: str
    nodes: tuple[NodeView, ...]


def nodes_view(w: World, only: tuple[str, ...] = ()) -> NodesView:
    """The table as a value, of these nodes in their order, or of all."""
    names = [NodeName(n) for n in only] or known_nodes(w)
    return NodesView(
        as_of=w.now,
        slurm_as_of=w.slurm.as_of if w.slurm else None,
        slurm_error=w.slurm_error,
        cloud_as_of=w.cloud.as_of if w.cloud else None,
        cloud_error=w.cloud_error,
        nodes=tuple(_rows(w, names)),
    )


def _rows(w: World, names: list[NodeName]) -> list[NodeView]:
    instances = w.joined.instances
    rows = []
    for name in names:
        node = w.slurm.nodes.get(name) if w.slurm else None
        instance, health = instances.get(name), w.health.get(name)
        judged, rec = w.assessments.get(name), w.state.node_recovery(name)
        hold = w.state.holds.get(name)
        heard_id = health.generation.instance if health else ""
        rows.append(
            NodeView(
                name=name,
                slurm_state=node.state if node else (NOT_FOUND if w.slurm else UNKNOWN),
                slurm_flags=tuple(sorted(node.flags)) if node else (),
                slurm_reason=node.reason if node else "",
                partitions=node.partitions if node else (),
                condition=judged.condition.value if judged else Condition.UNKNOWN.value,
                rule=judged.fault.rule if judged and judged.fault else "",
                why=judged.why if judged else "no agent has reported",
                last_heard=health.last_heard if health else None,
                instance_id=instance.id if instance else heard_id,
                instance_status=_instance_status(w, instance.status if instance else ""),
                logical_id=(instance.logical_id or "") if instance else "",
                group=instance.group if instance else "",
                recovery=rec.id if rec else "",
                phase=rec.phase.value if rec else "",
                held_by=hold.gate if hold else "",
            )
        )
    return rows


def _instance_status(w: World, status: str) -> str:
    if status:
        return status
    return NOT_FOUND if w.cloud is not None and w.cloud.present else UNKNOWN


@click.command()
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_node)
@click.option("--no-cloud", is_flag=True, help="Do not ask the cloud for its list of instances.")
@output.json_option
@output.config_option
def nodes(names: tuple[str, ...], no_cloud: bool, config: str, as_json: bool) -> None:
    """Every node: its health and its recovery.

    Exit code: 0, or 3 where Slurm or the cloud could not be asked.
    """
    loaded = output.load_config(config)
    world = gather(loaded, output.now(), slurm=True, cloud=not no_cloud)
    known = known_nodes(world)
    for name in names:
        if name not in known:
            raise output.no_such("nodes", name, [str(n) for n in known])
    view = nodes_view(world, tuple(n for n in known if not names or n in names))
    output.show("nodes", view, as_json, draw)
    blind = world.slurm is None or (not no_cloud and world.cloud is None)
    output.leave(Exit.CANNOT_TELL if blind else Exit.FINE)


def treatment(n: NodeView) -> str:
    """What is done to a node, or what keeps it from being done."""
    return f"{n.recovery} {n.phase}" if n.recovery else f"held: {n.held_by}" if n.held_by else ""


def draw(out: Console, view: NodesView) -> None:
    """The table of `hpctl nodes`; a narrow terminal loses the cloud's columns first."""
    wide = out.width >= WIDE
    extra = ("INSTANCE", "CLOUD", "LOGICAL ID") if wide else ()
    rows = []
    for n in view.nodes:
        state = n.slurm_state + "".join(f"+{f}" for f in n.slurm_flags)
        heard = ago(n.last_heard, view.as_of).removesuffix(" ago")
        cloud = (n.instance_id, n.instance_status, n.logical_id) if wide else ()
        rows.append((n.name, state, n.condition, n.rule, heard, *cloud, treatment(n)))
    headings = ("NODE", "SLURM", "HEALTH", "RULE", "HEARD", *extra, "TREATMENT")
    if len(rows) > MANY:
        out.print(plain([headings, *rows]), no_wrap=True, crop=False)
    else:
        table = columns(*headings[:-1], wrapped(headings[-1]))
        for row in rows:
            table.add_row(*(word(cell.partition("+")[0], cell) for cell in row))
        out.print(table)
    for what, as_of, error in (
        ("Slurm", view.slurm_as_of, view.slurm_error),
        ("The cloud", view.cloud_as_of, view.cloud_error),
    ):
        if as_of is None and error != "not asked":
            out.print(styled(f"{what} cannot be read: {error}", WARN))
