"""Resume of a node whose fault lasts.

The administrator's word counts, and a node that is faulty stays listed until its fault is gone.
"""

import sys

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4, config={"node": {"remedy_after_s": 60.0}}) as live:
        yield live


def status(live: Chaos) -> tuple[int, str]:
    """Exit code and text of `hpctl status`."""
    words = [sys.executable, "-m", "hpctl", "status"]
    done = live.sandbox.run(words, check=False, env={"COLUMNS": "500"})
    return done.returncode, done.stdout


def drained(live: Chaos) -> str:
    """A node that hpctl has drained for a fault."""
    (node,) = live.victims(1)
    live.xid(node)
    until(lambda: live.phase(node) == "vacated", 60, "it is drained")
    return node


@story(
    job="Node that hpctl has drained for an Xid 79",
    act="an administrator runs `scontrol update State=RESUME`",
    slurm="The node serves again. Only a new fault, a repeat of the old one or a boot drains it.",
    explain=(
        "`status` lists the node as in service with a known fault and has exit code 1; `explain`"
        " says by whose act and what ends it."
    ),
)
def test_a_resumed_node_with_a_fault_serves_and_stays_listed(live: Chaos):
    node = drained(live)
    live.sandbox.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
    until(lambda: live.phase(node) == "cancelled", 60, "the administrator wins")
    stays(lambda: live.node(node).in_service and len(live.of(node)) == 1, 5, "it is left so")
    code, text = status(live)
    assert code == 1
    assert f"{node} is in service with a fault known since" in text
    explained = live.explained(node)
    assert "another user or tool resumed the node" in explained
    assert f"hpctl replace {node}" in explained
    live.sandbox.inject(node, "xid", code=48)
    until(lambda: len(live.of(node)) == 2, 60, "a new fault opens another recovery")
    until(lambda: live.phase(node) == "vacated", 60, "it is drained again")
    live.sandbox.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
    until(lambda: live.phase(node) == "cancelled", 60, "the administrator wins again")
    live.hpctl("undrain", node)
    until(lambda: status(live)[0] == 0, 60, "hpctl undrain accepts the faults")
    assert live.node(node).in_service


@story(
    job="Node that hpctl has drained for an Xid 79",
    act="an operator runs `hpctl cancel RECOVERY`",
    slurm="The node stays drained.",
    explain="`status` lists it as out of service until `hpctl undrain`, `reboot` or `replace`.",
)
def test_a_node_left_drained_by_a_canceled_recovery_stays_listed(live: Chaos):
    node = drained(live)
    live.hpctl("cancel", live.last(node).id)
    until(lambda: live.phase(node) == "cancelled", 60, "it is canceled")
    code, text = status(live)
    assert code == 1
    assert f"{node} is out of service" in text
    assert f"hpctl undrain {node}" in live.explained(node)
    live.order("replace", node)
    live.returned(node)
    until(lambda: status(live)[0] == 0, 60, "nothing is left to list")
