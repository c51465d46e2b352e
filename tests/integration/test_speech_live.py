"""What hpctl says of a fault on a live cluster: `status` names it, and what is said is so."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.chaos import Chaos, cluster, merged
from tests.integration.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
SOONER = {
    "ages": {"silent_s": 12.0},
    "catalogue": {"slurm-down": {"settle_s": 5.0}, "agent-silent": {"settle_s": 15.0}},
}


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(SOONER, slurm_conf="SlurmdTimeout=10\n", nodes=4) as found:
        yield found


def said(live: Chaos) -> tuple[list[str], int]:
    """The problems of `hpctl status`, and its exit code."""

    words = [sys.executable, "-m", "hpctl", "status", "--json"]
    done = live.sandbox.run(words, check=False)
    return json.loads(done.stdout)["problems"], done.returncode


def named(live: Chaos, what: str, timeout_s: float = 60.0) -> list[str]:
    """Wait until `status` names it and exits 1."""
    found: list[Any] = []

    def seen() -> bool:
        problems, code = said(live)
        found[:] = [p for p in problems if what in p]
        return bool(found) and code == 1

    until(seen, timeout_s, f"status names {what}")
    return found


def test_a_dead_slurmd_is_named_rebooted_and_given_back(live: Chaos) -> None:
    (victim,) = live.victims(1)
    instance = live.instance(victim)
    live.mark(victim)
    live.sandbox.inject(victim, "kill-slurmd")
    named(live, victim)
    until(lambda: bool(live.of(victim)), 60, "a recovery")
    named(live, victim, 10)
    assert live.returned(victim).rule == "slurm-down"
    assert live.accepted(instance, "BatchRebootClusterNodes") == 1
    until(lambda: said(live) == ([], 0), 20, "all is well again")


def test_a_node_that_an_operator_closed_and_killed_is_no_problem(live: Chaos) -> None:
    (victim,) = live.victims(1)
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=DRAIN", "Reason=disk swap, Ann")
    live.mark(victim)
    live.sandbox.inject(victim, "kill-slurmd")
    until(lambda: live.node(victim).down, 60, "DOWN")
    time.sleep(8)
    assert said(live) == ([], 0)
    assert live.of(victim) == []
    live.sandbox.scontrol("update", f"NodeName={victim}", "State=RESUME")
    until(lambda: bool(live.of(victim)), 60, "in service and dead, it is a fault again")
    live.returned(victim, 90)


def test_three_buses_lost_stay_closed_until_somebody_says_so() -> None:
    """Separate GPUs that fell off the bus within minutes: no node of theirs gets a job back."""
    over = {"budgets": {"correlated_min": 3, "open_min": 8, "partition_min": 8}}
    patient = {**over, "node": {"remedy_after_s": 3.0}}
    with cluster(patient, nodes=5) as live:
        job = live.start("sleep 600", "--nodes=2")
        victims = [*map(str, live.job(job).nodes), *live.victims(2)]
        # One that was treated and serves again counts no more.
        live.xid(victims[3])
        live.returned(victims[3])
        for victim in victims[:3]:
            live.xid(victim)
            time.sleep(0.5)
        until(lambda: set(victims[:3]) <= set(live.state().holds), 20, "the remedies wait")
        until(lambda: live.running(job, restarts=1), 30, "the job runs elsewhere")
        time.sleep(5)
        assert all(live.node(v).drained for v in victims[:3])
        assert not set(live.job(job).nodes) & set(victims[:3])
        assert live.calls("BatchReplaceClusterNodes") == 1
        problems, code = said(live)
        assert code == 1
        assert all(any(v in p and "correlated" in p for p in problems) for v in victims[:3])
        held = " ".join(live.hpctl("recoveries").split())  # a line may be wrapped anywhere
        assert "its remedy waits" in held
        live.hpctl("approve", "--rule", "xid-79")
        for victim in victims[:3]:
            live.returned(victim, 60)


def test_what_the_cloud_says_of_a_failed_replacement_is_said(live: Chaos) -> None:
    (victim,) = live.victims(1)
    live.sandbox.inject_api("no-capacity", seconds=1.0, calls=99)
    live.xid(victim)
    lines = named(live, "InsufficientInstanceCapacity")
    assert any(victim in line and "AWS has no" in line for line in lines)
    told = json.loads(live.hpctl("explain", victim, "--json"))
    assert "InsufficientInstanceCapacity" in told["next"]["what"]
    assert "Mend: " in told["next"]["what"]


@pytest.fixture(scope="module")
def soaked() -> Iterator[Chaos]:
    """The soak's own site: budgets out of the way, remedies that take a moment."""
    from tests.soak.run import SITE, SLURM

    slow = merged(SITE, SOONER)
    with cluster(slow, slurm_conf=SLURM, nodes=5) as found:
        yield found


def test_status_names_a_dead_slurmctld_and_a_dead_daemon(soaked: Chaos) -> None:
    """Neither can tell how the nodes are: exit code 3, whatever else is fine."""
    soaked.sandbox.kill_slurmctld()
    until(lambda: _code_and_unknowns(soaked)[0] in (1, 3), 60, "slurmctld is missed")
    assert "Slurm cannot be read" in _code_and_unknowns(soaked)[1]
    soaked.sandbox.start_slurmctld()
    until(lambda: said(soaked) == ([], 0), 60, "slurmctld is back")
    soaked.sandbox.kill_daemon()
    until(lambda: "has been silent" in _code_and_unknowns(soaked)[1], 60, "the daemon is missed")
    assert _code_and_unknowns(soaked)[0] in (1, 3)
    soaked.sandbox.start_daemon()


def _code_and_unknowns(live: Chaos) -> tuple[int, str]:

    done = live.sandbox.run([sys.executable, "-m", "hpctl", "status", "--json"], check=False)
    return done.returncode, " ".join(json.loads(done.stdout)["unknowns"])
