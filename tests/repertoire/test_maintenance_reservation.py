"""Maintenance reservations.

A node in an administrator's reservation with the flag MAINT is the administrator's: hpctl looks on.
"""

import pytest

from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from tests.daemon.chaos import REPLACE, Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=6, config={"node": {"remedy_after_s": 4.0}}) as live:
        yield live


def reserve(
    live: Chaos, name: str, node: str, start: str = "now", flags: str = "MAINT,IGNORE_JOBS"
) -> None:
    fields = {
        "ReservationName": name, "StartTime": start, "Duration": "60", "Users": "root",
        "Flags": flags, "Nodes": node,
    }  # fmt: skip
    words = [f"{key}={value}" for key, value in fields.items()]
    live.sandbox.run(["scontrol", "create", "reservation", *words])


def release(live: Chaos, name: str) -> None:
    live.sandbox.run(["scontrol", "delete", f"ReservationName={name}"])


def untouched(live: Chaos, node: str) -> bool:
    """Whether hpctl has neither closed a node nor opened a recovery of it."""
    seen = live.node(node)
    return (
        seen.in_service and parse_recovery_id_from_reason(seen.reason) is None and not live.of(node)
    )


@story(
    job="Node in a reservation with `Flags=MAINT` that has just begun, and a job on it",
    act="a GPU of the node falls off the bus (Xid 79)",
    slurm="The node is neither drained nor rebooted. When the reservation ends, it is treated.",
    explain="The gate `maintenance` names the reservation and its end.",
    owner="The job is requeued away from the node and starts at once.",
)
def test_a_fault_in_maintenance_moves_the_job_and_leaves_the_node(live: Chaos):
    job = live.start("sleep 600")
    (node,) = live.job(job).nodes
    reserve(live, "bios", node)
    live.xid(node)
    until(lambda: live.running(job, 1), 60, "the job runs elsewhere")
    assert node not in live.job(job).nodes
    hold = live.state().holds[node]
    assert hold.gate == "maintenance"
    assert "maintenance reservation bios" in live.explained(node)
    assert "until" in live.explained(node)
    assert "gate maintenance" in live.hpctl("status", check=False)
    stays(lambda: untouched(live, node), 8, "it is left alone before and after its flag shows")
    release(live, "bios")
    live.returned(node)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Node that hpctl has drained for a fault, before its instance is replaced",
    act="a reservation with `Flags=MAINT` begins",
    slurm="The node stays drained, and its instance is replaced after the reservation has ended.",
    explain="The recovery waits; the gate `maintenance` names the reservation.",
)
def test_a_recovery_waits_for_the_end_of_a_reservation_that_begins_meanwhile(live: Chaos):
    (node,) = live.victims(1)
    instance = live.instance(node)
    live.xid(node)
    until(lambda: live.phase(node) == "vacated", 60, "it is drained")
    reserve(live, "cables", node)
    until(lambda: live.last(node).is_in_maintenance, 60, "the recovery has seen the reservation")
    stays(lambda: not live.asked(instance, REPLACE), 8, "its instance is left alone")
    assert live.last(node).phase == "vacated"
    assert live.state().holds[node].gate == "maintenance"
    assert "the recovery waits" in live.explained(node)
    release(live, "cables")
    live.returned(node)
    assert live.accepted(instance) == 1


@story(
    job="Node in a reservation with `Flags=MAINT` that begins in two minutes",
    act="a GPU of the node falls off the bus (Xid 79)",
    slurm="Nothing is begun that would last into the reservation (`node.maintenance_lead_s`).",
    explain="The gate `maintenance` says when the reservation begins.",
)
def test_a_reservation_about_to_begin_is_not_raced(live: Chaos):
    (node,) = live.victims(1)
    reserve(live, "soon", node, start="now+2minutes")
    live.xid(node)
    until(lambda: node in live.state().holds, 60, "the gate blocks it")
    assert "soon begins at" in live.explained(node)
    assert untouched(live, node)
    release(live, "soon")
    live.returned(node)


@story(
    job="Node in a reservation without the flag MAINT",
    act="a GPU of the node falls off the bus (Xid 79)",
    slurm="The node is treated as any other.",
)
def test_another_reservation_changes_nothing(live: Chaos):
    (node,) = live.victims(1)
    reserve(live, "course", node, flags="IGNORE_JOBS")
    live.xid(node)
    live.returned(node)
    release(live, "course")
