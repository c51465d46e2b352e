"""What an operator asks for, through the real command line, of a daemon at work."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hpctl.core.recovery import StepKind
from tests.integration.chaos import Chaos, cluster, stays
from tests.integration.live import until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def shared() -> Iterator[Chaos]:
    with cluster(nodes=4) as live:
        yield live


@pytest.fixture
def live(shared: Chaos) -> Iterator[Chaos]:
    yield shared
    shared.settle()


def test_cancel_leaves_the_node_drained_and_return_gives_it_back(live: Chaos) -> None:
    (node,) = live.victims(1)
    live.sandbox.inject_api("throttle", operations=["BatchReplaceClusterNodes"])
    live.xid(node)
    until(lambda: live.phase(node) == "vacated", 15, "vacated")
    live.hpctl("cancel", node)
    until(lambda: live.phase(node) == "cancelled", 5, "cancelled")
    stays(lambda: live.node(node).drained and len(live.of(node)) == 1, 3, "and nothing more")
    assert "has ended already" in refusal(live, "cancel", live.last(node).id)
    live.sandbox.inject_api("clear")
    live.put_back(node)
    assert not live.node(node).drained
    stays(lambda: len(live.of(node)) == 1, 2, "the old lines do not overrule the person")


def refusal(live: Chaos, *words: str) -> str:
    """What the command line says when it will not."""
    done = live.sandbox.run([sys.executable, "-m", "hpctl", *words], check=False)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


@pytest.mark.nightly
def test_an_escalated_node_is_given_back_by_its_operator(live: Chaos) -> None:
    live.reconfigure(catalogue={"xid-79": {"ladder": ["ask_human"]}})
    (node,) = live.victims(1)
    live.xid(node)
    until(lambda: live.phase(node) == "escalated", 15, "a person is asked")
    assert live.node(node).drained
    live.put_back(node)
    assert live.last(node).by
    assert not live.node(node).drained


@pytest.mark.nightly
def test_a_budget_hold_gives_way_to_an_approval(live: Chaos) -> None:
    live.reconfigure(budgets={"open_min": 1, "open_fraction": 0.0})
    live.sandbox.inject_api("stuck-replace")
    first, second = live.victims(2)
    live.xid(first)
    until(lambda: live.phase(first) == "remedying", 15, "one is in treatment")
    live.xid(second)
    until(lambda: second in live.state().holds, 10, "the other is held")
    hold = live.state().holds[second]
    assert hold.gate == "budget"
    assert hold.approvable
    live.hpctl("approve", second)
    until(lambda: live.phase(second) == "remedying", 15, "waved through")
    live.sandbox.inject_api("clear")
    live.returned(first)
    live.returned(second)


@pytest.mark.nightly
def test_a_reboot_is_ordered_and_another_order_is_refused_meanwhile(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    node = str(live.job(job).nodes[0])
    before = live.instance(node)
    live.reconfigure(node={"verify_healthy_s": 10.0})  # so that it is open for a while
    live.order("reboot", node)
    said = refusal(live, "replace", node, "--yes")
    assert "already" in said
    until(lambda: live.running(job, restarts=1), 40, "its job runs elsewhere")
    recovery = live.returned(node)
    assert StepKind.REPLACE not in {s.kind for s in recovery.steps}
    assert live.accepted(before, "BatchRebootClusterNodes") == 1
    assert live.instance(node) == before


@pytest.mark.nightly
def test_return_of_what_somebody_else_drained_is_refused(live: Chaos) -> None:
    (node,) = live.victims(1)
    live.sandbox.scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=disk swap, Ann")
    assert "not drained by hpctl" in refusal(live, "return", node)
    assert live.node(node).reason.startswith("disk swap, Ann")
    live.sandbox.scontrol("update", f"NodeName={node}", "State=RESUME")
