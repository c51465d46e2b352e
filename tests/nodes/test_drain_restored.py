"""A slurmctld that is killed before it has saved a RESUME comes back with the drain before it."""

import pytest

from tests.daemon.chaos import cluster
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


def test_a_drain_that_was_lifted_is_lifted_again() -> None:
    with cluster(nodes=4) as live:
        (victim,) = live.victims(1)
        live.xid(victim, code=48)
        healed = live.returned(victim)
        # What slurmctld restores is just what hpctl had written.
        reason = f"hpctl:{healed.id} {healed.meaning}"
        update = ("update", f"NodeName={victim}", "State=DRAIN")
        live.sandbox.scontrol(*update, f"Reason={reason}")
        until(lambda: live.last(victim).rule == "drain-restored", 20, "it is seen")
        again = live.returned(victim)
        assert (again.by, again.id != healed.id) == ("hpctl", True)
        assert not live.node(victim).drained
        assert len(live.of(victim)) == 2
        assert "slurmctld restored a drain" in live.hpctl("explain", victim)
        # Nobody else's is touched.
        live.sandbox.scontrol(*update, "Reason=bad fan")
        live.settle()
        assert live.node(victim).reason.startswith("bad fan")
