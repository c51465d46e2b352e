"""A slurmctld at rest is asked next to nothing, and what happens then is seen at once."""

import time

import pytest

from hpctl.sandbox.rpcs import count_query_rpcs
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
REST = {"loop": {"reconcile_s": 30.0, "rest_s": 300.0}}
WINDOW_S = 45.0
CALM_S = 14.0
"""Longer than a cycle at rest: it finds the log, or has read what came before."""
AT_ONCE_S = 15.0
"""Half a reconcile; two seconds on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def live():
    with cluster(REST, nodes=4) as live:
        yield live


def calm(live: Chaos) -> None:
    """Wait until slurmctld is asked nothing for longer than a cycle at rest."""
    limit = time.monotonic() + 120
    before = count_query_rpcs(live.sandbox)
    while time.monotonic() < limit:
        time.sleep(CALM_S)
        after = count_query_rpcs(live.sandbox)
        if after == before:
            return
        before = after
    raise AssertionError(f"slurmctld is still asked: {before}")


def seen_after_rest(live: Chaos, node: str) -> None:
    """A recovery of the node opens, long before the next reconcile."""
    began = time.monotonic()
    until(lambda: bool(live.of(node)), 40, f"a recovery of {node}")
    assert time.monotonic() - began < AT_ONCE_S


def test_a_cluster_at_rest_costs_slurmctld_at_most_ten_rpcs_a_minute(live: Chaos):
    calm(live)
    before = count_query_rpcs(live.sandbox)
    time.sleep(WINDOW_S)
    asked = count_query_rpcs(live.sandbox) - before
    assert asked.total() <= 10 * WINDOW_S / 60, asked


def test_a_fault_after_a_rest_closes_its_node_at_once(live: Chaos):
    (victim,) = live.victims(1)
    calm(live)
    live.xid(victim)
    seen_after_rest(live, victim)
    live.returned(victim)


def test_a_mark_of_the_health_agent_after_a_rest_is_seen_at_once(live: Chaos):
    (victim,) = live.victims(1)
    calm(live)
    live.mark(victim)
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=FAIL", "Reason=Action:Replace")
    seen_after_rest(live, victim)
    live.returned(victim)


def test_a_run_that_fails_after_a_rest_is_started_again(live: Chaos):
    comment = 'hpctl:{"policy":{"restarts":2}}'
    body = 'sleep 20\ntest "$SLURM_RESTART_COUNT" || exit 3\nsleep 600'
    job = live.start(body, f"--comment={comment}")
    until(lambda: live.job(job).restarts == 1 and live.running(job), 60, "it runs again")
    live.sandbox.run(["scancel", str(job)])


def test_a_slurmctld_that_was_killed_at_rest_is_followed_again(live: Chaos):
    live.sandbox.kill_slurmctld()
    live.sandbox.start_slurmctld()
    calm(live)
    (victim,) = live.victims(1)
    live.mark(victim)
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=FAIL", "Reason=Action:Replace")
    seen_after_rest(live, victim)
    live.returned(victim)
    live.settle()
