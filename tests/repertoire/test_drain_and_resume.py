"""Drain and resume by an administrator: from then on the node is the administrator's."""

import sys
from collections.abc import Iterator
from typing import Final

import pytest

from hpctl.vocabulary.node_recovery import NodePhase
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.phases import (
    AFTER_JOBS,
    CONFIG,
    HEALTHY_LATE,
    PASSING,
    REMEDY_LATE,
    REPLACE_STUCK,
    await_phase,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
OWN: Final = "firmware, ticket 17"
BEFORE: Final = {NodePhase.CORDONED: PASSING, NodePhase.VACATED: REMEDY_LATE}
"""Phases before anything is done to the instance."""
AFTER: Final = {
    NodePhase.REMEDYING: REPLACE_STUCK,
    NodePhase.REJOINING: HEALTHY_LATE,
    NodePhase.VERIFYING: HEALTHY_LATE,
}
"""Phases after the instance was ordered to be replaced."""
PHASES: Final = {**BEFORE, **AFTER}


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


def treat(live: Chaos, phase: NodePhase) -> tuple[int, str, str]:
    """Break the node of a job, and wait for the phase. Returns job, node and instance."""
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    instance = live.instance(node)
    PHASES[phase].begin(live)
    waits = phase is NodePhase.CORDONED
    live.xid(node, code=AFTER_JOBS if waits else 79)
    await_phase(lambda: live.phase(node), phase, NodePhase)
    return job, node, instance


@pytest.mark.parametrize("phase", PHASES)
@story(
    job="Node that hpctl treats",
    act="an administrator drains it with a Reason of their own, in each phase of its recovery",
    slurm="x",
)
def test_a_drain(live: Chaos, phase: NodePhase) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=DRAIN", f"Reason={OWN}")
    until(lambda: live.last(node).ended, 60, "hpctl lets go")
    PHASES[phase].end(live)
    print(
        "PHASE",
        phase,
        live.last(node).phase,
        [(t.signal, t.why) for t in live.last(node).trail][-2:],
    )
    print(live.node(node), status(live), live.hpctl("explain", node, check=False), sep="\n")
    until(lambda: live.running(job), 60, "the job runs")
    until(lambda: live.node(node).responding, 60, "registers")
    print(
        "LATER", live.node(node), status(live), live.hpctl("explain", node, check=False), sep="\n"
    )
    act(live, node, "State=RESUME")
    until(lambda: live.node(node).in_service, 60, "serves")
    print(
        "RESUMED", live.node(node), status(live), live.hpctl("explain", node, check=False), sep="\n"
    )
    print("accepted", live.accepted(instance), len(live.of(node)), live.job(job).restarts)
    live.sandbox.run(["scancel", str(job)])
    print(live.hpctl("undrain", node, check=False))


@pytest.mark.parametrize("phase", PHASES)
@story(
    job="Node that hpctl treats",
    act="an administrator resumes it, in each phase of its recovery",
    slurm="x",
)
def test_a_resume(live: Chaos, phase: NodePhase) -> None:
    job, node, instance = treat(live, phase)
    act(live, node, "State=RESUME")
    until(lambda: live.last(node).ended, 60, "hpctl lets go")
    PHASES[phase].end(live)
    print(
        "PHASE",
        phase,
        live.last(node).phase,
        [(t.signal, t.why) for t in live.last(node).trail][-2:],
    )
    print(live.node(node), status(live), live.hpctl("explain", node, check=False), sep="\n")
    until(lambda: live.running(job), 60, "the job runs")
    until(lambda: live.node(node).responding and live.node(node).in_service, 60, "registers")
    print(
        "LATER", live.node(node), status(live), live.hpctl("explain", node, check=False), sep="\n"
    )
    print("accepted", live.accepted(instance), len(live.of(node)), live.job(job).restarts)
    live.sandbox.run(["scancel", str(job)])
    print(live.hpctl("undrain", node, check=False))
