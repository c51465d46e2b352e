"""Drain and resume by an administrator: from then on the node is the administrator's."""

import sys
from collections.abc import Iterator
from typing import Final

import pytest

from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.phases import (
    AFTER_JOBS,
    CONFIG,
    HEALTHY_LATE,
    PASSING,
    REBOOT,
    REBOOTED_HEALTHY_LATE,
    REBOOTING,
    REMEDY_LATE,
    REPLACE_STUCK,
    await_phase,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
OWN: Final = "firmware, ticket 17"
BEFORE: Final = {NodeRecoveryPhase.CORDONED: PASSING, NodeRecoveryPhase.VACATED: REMEDY_LATE}
"""Phases before anything is done to the instance."""
AFTER: Final = {
    NodeRecoveryPhase.REMEDYING: REPLACE_STUCK,
    NodeRecoveryPhase.REJOINING: HEALTHY_LATE,
    NodeRecoveryPhase.VERIFYING: HEALTHY_LATE,
}
"""Phases after the instance was ordered to be replaced."""
PHASES: Final = {**BEFORE, **AFTER}
REBOOT_PHASES: Final = {
    NodeRecoveryPhase.REMEDYING: REBOOTING,
    NodeRecoveryPhase.VERIFYING: REBOOTED_HEALTHY_LATE,
}
"""Phases after the instance was ordered to be rebooted."""


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(CONFIG, nodes=6) as live:
        yield live


def act(live: Chaos, node: str, *settings: str) -> None:
    """`scontrol update` of a node, as an administrator."""
    live.sandbox.run(["scontrol", "update", f"NodeName={node}", *settings])


def status(live: Chaos) -> tuple[int, str]:
    """Exit code and text of `hpctl status`."""
    words = [sys.executable, "-m", "hpctl", "status"]
    done = live.sandbox.run(words, check=False, env={"COLUMNS": "500"})
    return done.returncode, done.stdout


def treat(live: Chaos, phase: NodeRecoveryPhase) -> tuple[int, str, str]:
    """Break the node of a job, and wait for the phase. Returns job, node and instance."""
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    instance = live.instance(node)
    PHASES[phase].begin(live)
    waits = phase is NodeRecoveryPhase.CORDONED
    live.xid(node, code=AFTER_JOBS if waits else 79)
    await_phase(lambda: live.phase(node), phase, NodeRecoveryPhase)
    return job, node, instance


def end(live: Chaos, job: int, node: str) -> None:
    """End a story: accept the node's fault where it is still known."""
    live.sandbox.run(["scancel", str(job)])
    live.hpctl("undrain", node, check=False)
    until(lambda: live.all_idle() and status(live)[0] == 0, 60, "nothing is left to list")


def runs_on(live: Chaos, job: int, phase: NodeRecoveryPhase) -> None:
    """Wait until a job runs: where it was if its node was to wait for it, else elsewhere."""
    restarts = 0 if phase is NodeRecoveryPhase.CORDONED else 1
    until(lambda: live.running(job, restarts), 60, "the job runs")
    assert live.job(job).restarts == restarts


def is_let_go(live: Chaos, node: str, how: str) -> None:
    """Wait until hpctl has let a node go, and `explain` says why."""
    until(lambda: live.last(node).ended, 60, "hpctl lets go")
    assert live.phase(node) == NodeRecoveryPhase.CANCELLED
    assert how in live.explained(node)


def is_listed(live: Chaos, node: str, row: str) -> None:
    """Wait until `hpctl status` has this about a node, and calls it a problem."""
    until(lambda: row in " ".join(status(live)[1].split()), 60, f"status lists: {row}")
    assert status(live)[0] == 1
    assert f"hpctl replace {node}" in live.explained(node)


def serves_untreated(live: Chaos, node: str, instance: str) -> None:
    """A node with a known fault serves, and is listed; hpctl does nothing to it."""
    is_listed(live, node, f"{node} is in service with a fault known since")
    stays(lambda: live.node(node).in_service and len(live.of(node)) == 1, 5, "it is left so")
    assert live.accepted(instance) == 0


def is_replaced(live: Chaos, node: str, instance: str) -> None:
    """Wait until the instance that one order has brought is registered."""
    until(lambda: live.instance(node) != instance, 60, "another instance is there")
    until(lambda: live.node(node).responding and not live.node(node).down, 60, "it registers")
    assert live.accepted(instance) == 1
    assert len(live.of(node)) == 1


@pytest.mark.parametrize("phase", BEFORE)
@story(
    job="Node with a fault, and its job",
    act="an administrator drains the node with a Reason of their own before it is replaced, and"
    " resumes it later",
    slurm="The node stays drained with that Reason, is not replaced, and serves once resumed. Its"
    " job runs on, or again elsewhere where the fault does not let it run on.",
    explain="Somebody changed the Reason, or resumed the node; `status` lists it with its fault"
    " both times, and has exit code 1.",
    owner="The job runs on, or again by itself; `hpctl replace` or `hpctl undrain` ends the story"
    " of the node.",
)
def test_a_drain_before_the_remedy_takes_the_node_over(
    live: Chaos, phase: NodeRecoveryPhase
) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=DRAIN", f"Reason={OWN}")
    is_let_go(live, node, f"another user or tool changed the Reason to '{OWN}'")
    PHASES[phase].end(live)
    is_listed(live, node, f"{node} is out of service (Reason '{OWN}') with a fault known since")
    runs_on(live, job, phase)
    assert live.node(node).reason == OWN
    act(live, node, "State=RESUME")
    serves_untreated(live, node, instance)
    end(live, job, node)


@pytest.mark.parametrize("phase", AFTER)
@story(
    job="Node with a fault, and its job",
    act="an administrator drains the node with a Reason of their own after its replacement was"
    " ordered, and resumes it later",
    slurm="The new instance registers, stays drained with that Reason, and serves once resumed; no"
    " other is ordered. The job runs again elsewhere.",
    explain="Somebody changed the Reason; `status` lists the node as the administrator's, which is"
    " no problem.",
    owner="The job runs again by itself.",
)
def test_a_drain_after_the_order_takes_the_node_over(live: Chaos, phase: NodeRecoveryPhase) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=DRAIN", f"Reason={OWN}")
    is_let_go(live, node, f"another user or tool changed the Reason to '{OWN}'")
    PHASES[phase].end(live)
    is_replaced(live, node, instance)
    runs_on(live, job, phase)
    row = f"{node} IDLE+DRAIN administrator {OWN}"
    until(lambda: row in " ".join(status(live)[1].split()), 60, "status lists it")
    until(lambda: status(live)[0] == 0, 60, "it is no problem")
    assert live.node(node).reason == OWN
    act(live, node, "State=RESUME")
    until(lambda: live.node(node).in_service, 60, "it serves")
    end(live, job, node)
    assert live.accepted(live.instance(node)) == 0


@pytest.mark.parametrize("phase", BEFORE)
@story(
    job="Node with a fault, and its job",
    act="an administrator resumes the node before it is replaced",
    slurm="The node serves and is not replaced. Its job runs on, or again elsewhere where the fault"
    " does not let it run on.",
    explain="Somebody resumed the node; `status` lists it as in service with a known fault, and has"
    " exit code 1.",
    owner="The job runs on, or again by itself; `hpctl replace` or `hpctl undrain` ends the story"
    " of the node.",
)
def test_a_resume_before_the_remedy_takes_the_node_over(
    live: Chaos, phase: NodeRecoveryPhase
) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=RESUME")
    is_let_go(live, node, "another user or tool resumed the node")
    PHASES[phase].end(live)
    runs_on(live, job, phase)
    serves_untreated(live, node, instance)
    end(live, job, node)


@pytest.mark.parametrize("phase", AFTER)
@story(
    job="Node with a fault, and its job",
    act="an administrator resumes the node after its replacement was ordered",
    slurm="The new instance registers and serves; no other is ordered. The job runs again.",
    explain="Somebody resumed the node; `status` is fine once the new instance is there.",
    owner="The job runs again by itself.",
)
def test_a_resume_after_the_order_takes_the_node_over(
    live: Chaos, phase: NodeRecoveryPhase
) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=RESUME")
    is_let_go(live, node, "another user or tool resumed the node")
    PHASES[phase].end(live)
    is_replaced(live, node, instance)
    until(lambda: live.node(node).in_service, 60, "it serves")
    runs_on(live, job, phase)
    end(live, job, node)
    assert live.accepted(live.instance(node)) == 0


@pytest.mark.parametrize("phase", REBOOT_PHASES)
@pytest.mark.parametrize("verb", ["drain", "resume"])
@story(
    job="Node with a fault that a reboot treats, and its job",
    act="an administrator drains or resumes the node while its instance reboots, or after it",
    slurm="The instance reboots once and registers. A drained node stays drained with that Reason"
    " until it is resumed; a resumed one serves. The job runs again elsewhere.",
    explain="Somebody changed the Reason, or resumed the node; hpctl orders nothing more.",
    owner="The job runs again by itself.",
)
def test_an_act_after_the_reboot_was_ordered_takes_the_node_over(
    live: Chaos, phase: NodeRecoveryPhase, verb: str
) -> None:
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    instance = live.instance(node)
    ordered = live.accepted(instance, REBOOT)
    REBOOT_PHASES[phase].begin(live)
    live.xid(node)
    await_phase(lambda: live.phase(node), phase, NodeRecoveryPhase)
    if verb == "drain":
        act(live, node, "State=DRAIN", f"Reason={OWN}")
        is_let_go(live, node, f"another user or tool changed the Reason to '{OWN}'")
    else:
        act(live, node, "State=RESUME")
        is_let_go(live, node, "another user or tool resumed the node")
    REBOOT_PHASES[phase].end(live)
    runs_on(live, job, phase)
    until(lambda: live.node(node).responding and not live.node(node).down, 60, "it registers")
    if verb == "drain":
        assert live.node(node).reason == OWN
        act(live, node, "State=RESUME")
    until(lambda: live.node(node).in_service, 60, "it serves")
    end(live, job, node)
    assert live.accepted(instance, REBOOT) == ordered + 1
    assert live.instance(node) == instance
