"""Every node by what each source says of it: what `hpctl nodes` and the page show, as a value."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from msgspec import Struct

from hpctl.engine.world import World, list_known_nodes
from hpctl.toolkit.declared_view import (
    AgeCell,
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RowTable,
    make_state_column,
)
from hpctl.toolkit.tables import STYLES, WARN
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.identity import NodeName

UNKNOWN = "UNKNOWN"


NOT_FOUND = "NOT_FOUND"


class NodeView(Struct, frozen=True):
    """One node. `slurm_state` and `instance_status` are UNKNOWN where they could not be read."""

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

    columns: ClassVar[Columns] = (
        make_state_column("NODE", "name"),
        Column(
            "SLURM",
            "slurm_state_text",
            style=lambda node: STYLES.get(node.slurm_state, ""),
            empty="-",
        ),
        make_state_column("HEALTH", "condition"),
        make_state_column("RULE", "rule"),
        make_state_column("HEARD", AgeCell("last_heard")),
        make_state_column("INSTANCE", "instance_id", wide=True),
        make_state_column("CLOUD", "instance_status", wide=True),
        make_state_column("LOGICAL ID", "logical_id", wide=True),
        Column("TREATMENT", "treatment", fold=True, style=STYLES, empty="-"),
    )
    json_only: ClassVar[JsonOnly] = ("slurm_reason", "partitions", "why", "group")

    @property
    def slurm_state_text(self) -> str:
        """`IDLE+DRAIN`."""
        return "+".join((self.slurm_state, *self.slurm_flags))

    @property
    def treatment(self) -> str:
        """Return what is done to the node, or what keeps it from being done."""
        if self.recovery:
            return f"{self.recovery} {self.phase}"
        return f"held: {self.held_by}" if self.held_by else ""


class NodesView(Struct, frozen=True):
    """What `hpctl nodes` shows."""

    as_of: datetime
    slurm_as_of: datetime | None
    slurm_error: str
    cloud_as_of: datetime | None
    cloud_error: str
    nodes: tuple[NodeView, ...]

    layout: ClassVar[Layout] = (RowTable("nodes"), ItemTextLines("unread", style=WARN))

    @property
    def unread(self) -> list[str]:
        """Return what was asked and could not be read, and why."""
        asked = (
            ("Slurm", self.slurm_as_of, self.slurm_error),
            ("The cloud", self.cloud_as_of, self.cloud_error),
        )
        return [
            f"{what} cannot be read: {error}"
            for what, as_of, error in asked
            if as_of is None and error != "not asked"
        ]


def make_nodes_view(w: World, only: tuple[str, ...] = ()) -> NodesView:
    """Return the table as a value, of these nodes in their order, or of all."""
    names = [NodeName(n) for n in only] or list_known_nodes(w)
    return NodesView(
        as_of=w.now,
        slurm_as_of=w.slurm.as_of if w.slurm else None,
        slurm_error=w.slurm_error,
        cloud_as_of=w.cloud.as_of if w.cloud else None,
        cloud_error=w.cloud_error,
        nodes=tuple(_make_node_rows(w, names)),
    )


def _make_node_rows(w: World, names: list[NodeName]) -> list[NodeView]:
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
                condition=judged.condition.value if judged else NodeCondition.UNKNOWN.value,
                rule=judged.fault.rule if judged and judged.fault else "",
                why=judged.why if judged else "no agent has reported",
                last_heard=health.last_heard if health else None,
                instance_id=instance.id if instance else heard_id,
                instance_status=_format_instance_status(w, instance.status if instance else ""),
                logical_id=(instance.logical_id or "") if instance else "",
                group=instance.group if instance else "",
                recovery=rec.id if rec else "",
                phase=rec.phase.value if rec else "",
                held_by=hold.gate if hold else "",
            )
        )
    return rows


def _format_instance_status(w: World, status: str) -> str:
    if status:
        return status
    return NOT_FOUND if w.cloud is not None and w.cloud.present else UNKNOWN
