"""The text of an order that was carried out: what became of each node, and what is left to do."""

from datetime import datetime

import pytest
from rich.console import Console

from hpctl.clusters.commands.node_orders import NodeOrderEntry, NodeOrderResultView
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.view_drawing import draw_view


def node(name: str, phase: str, **more: str) -> NodeOrderEntry:
    texts = dict.fromkeys(("text", "new_instance_id", "code", "fix", "left_drained"), "")
    return NodeOrderEntry(
        node=name,
        instance_id="i-1",
        group="workers",
        status="Running",
        slurm_state="IDLE",
        jobs=(),
        refusal="",
        warning="",
        under_way=False,
        phase=phase,
        **{**texts, **more},
    )


def draw(verb: str, *nodes: NodeOrderEntry) -> list[str]:
    view = NodeOrderResultView(
        as_of=datetime(2026, 3, 4, tzinfo=UTC),
        cluster="llm",
        verb=verb,
        dry_run=False,
        refusal="",
        by_daemon=False,
        why_not_daemon="",
        nodes=nodes,
    )
    out = Console(width=60)
    with out.capture() as drawn:
        draw_view(out, view)
    return [line.rstrip() for line in drawn.get().splitlines()]


def test_the_column_of_new_instances_is_there_where_one_came() -> None:
    assert draw("replace", node("n1", "done"))[0].split() == ["NODE", "INSTANCE", "RESULT"]
    head, first, second = draw(
        "replace", node("n1", "done", new_instance_id="i-2"), node("n2", "failed", code="Capacity")
    )[:3]
    assert head.split() == ["NODE", "INSTANCE", "NEW", "INSTANCE", "RESULT"]
    assert first.split() == ["n1", "i-1", "i-2", "done"]
    assert second.split() == ["n2", "i-1", "-", "failed:", "Capacity"]


LEFT = {"left_drained": "operator:replace:i-1 by ana"}


@pytest.mark.parametrize(
    ("verb", "phase", "lines"),
    [
        (
            "replace",
            "failed",
            [
                "still drained in Slurm: n1",
                "Once the cause is fixed, this orders it again:",
                "  hpctl cluster replace n1",
            ],
        ),
        (
            "delete",
            "failed",
            [
                "still drained in Slurm: n1",
                "Once the cause is fixed, this orders it again:",
                "  hpctl cluster delete-nodes n1",
            ],
        ),
        (
            "reboot",
            "left",
            [
                "still drained in Slurm: n1",
                "When they are back,",
                "  hpctl cluster reboot n1",
                "waits for them and gives them back; by hand:",
                "  scontrol update NodeName=n1 State=RESUME",
            ],
        ),
        (
            "delete",
            "left",
            [
                "still drained in Slurm: n1",
                "Their deletion continues; this follows it:",
                "  hpctl cluster wait llm",
            ],
        ),
    ],
)
def test_a_node_that_is_still_drained_has_the_next_command(
    verb: str, phase: str, lines: list[str]
) -> None:
    assert draw(verb, node("n1", phase, **LEFT))[2:] == lines


def test_a_fix_names_its_node_and_the_code_where_there_is_one() -> None:
    drawn = draw("replace", node("n1", "refused", fix="wait", code="InUse"))
    assert drawn[-1] == "n1: InUse: wait"
    assert draw("replace", node("n1", "refused", fix="wait"))[-1] == "n1: wait"


def test_commands_to_copy_are_not_broken_into_lines() -> None:
    names = [f"ip-10-100-200-{number}" for number in range(4)]
    drawn = draw("replace", *(node(name, "left", **LEFT) for name in names))
    assert f"  hpctl cluster replace {','.join(names)}" in drawn
