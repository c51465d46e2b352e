"""A slow wave: node after node fails, forged or not, and none is ever in treatment with another.

Each is handed to a person and closed. The budget of one hour alone would remedy ten nodes an hour
of a cluster of any size; what is out of service for a reason of ours counts as a remedy under way.
"""

import pytest

from tests.daemon.chaos import cluster, stays
from tests.live import until

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]
LIMIT = 3


def test_nodes_that_are_left_to_a_person_spend_the_budget() -> None:
    config = {"budgets": {"open_min": LIMIT}, "node": {"replace_deadline_s": 2.0}}
    with cluster(config) as live:
        *wave, last = live.victims(LIMIT + 1)
        live.sandbox.inject_api("partial", nodes=wave, code="InstanceIdInUse", calls=99)
        for node in wave:
            live.xid(node)
            until(lambda n=node: live.phase(n) == "escalated", 40, f"{node} is handed over")
            assert not live.state().open_nodes, "the wave is so slow that they never meet"
            assert live.node(node).drained
        live.xid(last)
        until(lambda: last in live.state().holds, 20, "the remedy of the next one waits")
        held = live.state().holds[last]
        assert held.gate == "budget"
        assert f"{LIMIT} nodes are left closed to a person" in held.why
        assert live.node(last).drained
        instance = live.last(last).opened_for.instance
        stays(lambda: not live.asked(instance), 5, f"{last} is not replaced")
        # A person who gives one back makes room for the next.
        live.sandbox.inject_api("clear")
        live.put_back(wave[0])
        until(lambda: bool(live.asked(instance)), 60, f"{last} is replaced")
