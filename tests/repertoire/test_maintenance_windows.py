"""Maintenance windows.

`hpctl maintenance add` plans a window: Slurm reserves the nodes, the jobs on them are saved and
moved before it begins, and each node is verified after it.
"""

import json
import sys

import pytest

from hpctl.vocabulary.node_recovery import MAINTENANCE_BEGINS, MAINTENANCE_OVER
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=6, config={"job": {"save_grace_s": 2.0}}) as live:
        yield live


def add(live: Chaos, *words: str) -> dict:
    """Plan a window; its row as `hpctl maintenance list` has it."""
    text = live.hpctl("maintenance", "add", *words, "--why", "new-cables", "--yes", "--json")
    (window,) = json.loads(text)["windows"]
    return window


def window(live: Chaos, name: str) -> dict:
    """The window's row now."""
    text = live.hpctl("maintenance", "show", name, "--json")
    (found,) = json.loads(text)["windows"]
    return found


def phase(live: Chaos, name: str) -> str:
    return window(live, name)["phase"]


def is_followed(live: Chaos, name: str) -> bool:
    """Whether the daemon follows a window; a request has it read Slurm at once."""
    live.hpctl("unpause")
    return name in live.hpctl("maintenance", "list")


def release(live: Chaos, name: str) -> None:
    live.sandbox.run(["scontrol", "delete", f"ReservationName={name}"])


def served_again(live: Chaos, node: str) -> bool:
    """Whether a node was verified after a window, and serves."""
    last = live.of(node)[-1:]
    return bool(last) and last[0].phase == "returned" and live.node(node).in_service


@story(
    job="Batch job with a save signal on a node for which `hpctl maintenance add` plans a window",
    act="the window begins, and `hpctl maintenance end` ends it early",
    slurm="The node is in a reservation with `Flags=MAINT,IGNORE_JOBS`, and serves once verified.",
    explain="`hpctl maintenance list` shows who, why and until when.",
    owner="The job is asked to save, requeued and started elsewhere before the window begins.",
)
def test_a_window_saves_and_moves_the_job_and_verifies_the_node(live: Chaos, tmp_path):
    saved = tmp_path / "saved"
    body = f"trap 'touch {saved}' USR1; while :; do sleep 0.1; done"
    job = live.start(body, '--comment=hpctl:{"save_signal":"USR1"}')
    (node,) = live.job(job).nodes
    live.mark(node)
    planned = add(live, node, "--from", "+20s", "--until", "+1h")
    name = planned["id"]
    assert (planned["phase"], planned["nodes"], planned["why"]) == ("scheduled", node, "new-cables")
    held = live.scheduler.reservations()[name]
    assert (held.nodes, held.maintenance) == ((node,), True)
    until(lambda: live.running(job, 1), 60, "the job runs elsewhere")
    assert node not in live.job(job).nodes
    assert saved.exists()
    assert held.start is not None
    assert live.of_job(job)[-1].opened < held.start
    assert live.last(node).rule == MAINTENANCE_BEGINS
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    until(lambda: live.last(node).is_in_maintenance, 60, "its recovery looks on")
    assert name in live.explained(node)
    assert name in live.hpctl("maintenance", "end", name)
    until(lambda: served_again(live, node), 60, "the node is verified and serves")
    assert name not in live.scheduler.reservations()
    assert phase(live, name) == "done"
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.nightly
@story(
    job="Node in a reservation with `Flags=MAINT` that an administrator made with scontrol",
    act="the administrator reboots the node and deletes the reservation",
    slurm="The node is drained, verified as its new boot, and serves again.",
    explain="`hpctl maintenance list` shows the reservation as an administrator's own.",
)
def test_an_admins_own_reservation_is_followed_and_its_node_verified(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    fields = ["StartTime=now", "Duration=60", "Users=root", "Flags=MAINT,IGNORE_JOBS"]
    create = ["scontrol", "create", "reservation", "ReservationName=bios", *fields]
    live.sandbox.run([*create, f"Nodes={node}"])
    until(lambda: is_followed(live, "bios"), 60, "the window is followed")
    assert window(live, "bios")["own"] is False
    assert "scontrol delete" in live.hpctl("maintenance", "end", "bios", check=False)
    release(live, "bios")
    until(lambda: served_again(live, node), 60, "the node is verified and serves")
    assert live.last(node).rule == MAINTENANCE_OVER


@pytest.mark.nightly
@story(
    job="Node in a window of `hpctl maintenance add`",
    act="a GPU of the node falls off the bus (Xid 79) in the window",
    slurm="The node is left alone; after the window it is replaced as any faulty node.",
    explain="The window's recovery ends, and the recovery of the fault follows it.",
)
def test_a_node_that_is_faulty_after_a_window_is_treated_for_its_fault(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    name = add(live, node, "--from", "now", "--until", "+1h")["id"]
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    live.sandbox.inject(node, "xid", code=79)
    until(lambda: node in live.state().holds, 60, "the gate blocks the fault")
    assert live.state().holds[node].gate == "maintenance"
    live.hpctl("maintenance", "end", name)
    until(lambda: served_again(live, node), 90, "the node is replaced and serves")
    assert live.last(node).rule == "xid-79"
    assert any(step.kind == "replace" for step in live.last(node).steps)


@pytest.mark.nightly
@story(
    job="Node in a window of `hpctl maintenance add`",
    act="an administrator changes the reservation's nodes with scontrol, then deletes it",
    slurm="The node that left it is verified and serves; the other after the deletion.",
    explain="`hpctl maintenance show` has the new nodes.",
)
def test_a_window_deleted_or_changed_with_scontrol_is_followed(live: Chaos):
    one, other = live.victims(2)
    live.mark(one, other)
    name = add(live, one, "--from", "now", "--until", "+1h")["id"]
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    live.sandbox.run(["scontrol", "update", f"ReservationName={name}", f"Nodes={other}"])
    until(lambda: window(live, name)["nodes"] == other, 60, "the change is followed")
    until(lambda: served_again(live, one), 60, "the node that left it is verified")
    assert not live.of(other) or live.last(other).is_in_maintenance
    live.sandbox.kill_daemon()
    live.sandbox.start_daemon()
    assert phase(live, name) == "begun"
    release(live, name)
    until(lambda: served_again(live, other), 60, "the other is verified")
    assert phase(live, name) == "done"


@pytest.mark.nightly
@story(
    job="Job with `--no-requeue` on a node of a window",
    act="the window begins, and ends",
    slurm="The job runs on; the node is not drained.",
    explain="`hpctl maintenance add` lists the job and says so.",
)
def test_a_job_that_cannot_be_requeued_runs_on_and_is_listed(live: Chaos):
    job = live.start("sleep 600", "--no-requeue")
    (node,) = live.job(job).nodes
    live.mark(node)
    text = live.hpctl(
        "maintenance", "add", node, "--from", "+1h", "--until", "+2h", "--why", "x", "--dry-run"
    )
    assert f"job {job}" in text
    assert "CANNOT be requeued" in text
    name = add(live, node, "--from", "now", "--until", "+1h")["id"]
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    assert live.running(job)
    live.hpctl("maintenance", "end", name)
    until(lambda: phase(live, name) == "done", 60, "the window ends")
    assert live.running(job)
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.nightly
@story(
    job="Node for which a window is planned",
    act="`hpctl maintenance end` cancels the window, and one that overlaps it was refused",
    slurm="The reservation is deleted, and the node was never drained.",
)
def test_a_window_is_canceled_before_it_begins(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    name = add(live, node, "--from", "+3h", "--until", "+4h")["id"]
    command = [sys.executable, "-m", "hpctl", "maintenance", "add", node, "--why", "x", "--yes"]
    done = live.sandbox.run([*command, "--from", "+2h", "--until", "+5h"], check=False)
    assert done.returncode == 1
    assert f"{name} has {node}" in done.stderr
    live.hpctl("maintenance", "end", name)
    until(lambda: name not in live.scheduler.reservations(), 60, "its reservation is deleted")
    until(lambda: phase(live, name) == "done", 60, "the window ends")
    assert not live.of(node)


@pytest.mark.nightly
@story(
    job="Node in a window of `hpctl maintenance add`",
    act="the window ends, with `acceptance.returned: quick`",
    slurm="The node is tested in a reservation of its own, and serves once it has passed.",
    explain="That the node passed its test.",
)
def test_a_node_is_tested_after_a_window(live: Chaos):
    live.reconfigure(acceptance={"returned": "quick"})
    (node,) = live.victims(1)
    live.mark(node)
    name = add(live, node, "--from", "now", "--until", "+1h")["id"]
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    live.hpctl("maintenance", "end", name)
    until(lambda: served_again(live, node), 120, "the node is tested and serves")
    recovery = live.last(node)
    assert "test_passed" in [move.signal for move in recovery.trail]
    assert recovery.rule in (MAINTENANCE_BEGINS, MAINTENANCE_OVER)
    assert "passed its test" in live.hpctl("explain", recovery.id)
    live.reconfigure()


@pytest.mark.nightly
@story(
    job="Node that hpctl replaces because of a fault",
    act="`hpctl maintenance add` begins a window on it, and `hpctl maintenance end` ends that",
    slurm="The node is replaced by one order, stays drained in the window, and serves after it.",
    explain="The recovery waits; the gate `maintenance` names the window.",
)
def test_a_window_that_begins_while_a_node_is_treated(live: Chaos):
    (node,) = live.victims(1)
    instance = live.instance(node)
    live.sandbox.inject_api("stuck-replace")
    live.xid(node)
    until(lambda: live.phase(node) == "remedying", 60, "its instance is being replaced")
    name = add(live, node, "--from", "now", "--until", "+1h")["id"]
    until(lambda: phase(live, name) == "begun", 60, "the window begins")
    live.sandbox.inject_api("clear")
    until(lambda: live.instance(node) != instance, 60, "another instance is there")
    stays(lambda: not live.node(node).in_service, 5, "it does not serve in the window")
    live.hpctl("maintenance", "end", name)
    until(lambda: served_again(live, node), 90, "the node serves")
    until(lambda: phase(live, name) == "done", 60, "the window ends")
    assert live.accepted(instance) == 1
    assert live.of(node)[0].rule == "xid-79"
