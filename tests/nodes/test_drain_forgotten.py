"""A slurmctld that is killed before it has saved a DRAIN comes back with the node in service."""

import contextlib
import shutil
import time

import pytest

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


def closed(live: Chaos, node: str) -> bool:
    return (
        live.node(node).drained
        and parse_recovery_id_from_reason(live.node(node).reason) == live.last(node).id
    )


def resumes(live: Chaos, node: str) -> bool:
    """22.05 opens a node that it has not heard again, and calls the order invalid all the same."""
    with contextlib.suppress(HpctlError):
        live.sandbox.scontrol("update", f"NodeName={node}", "State=RESUME")
    return not live.node(node).drained


def test_a_drain_that_was_not_saved_is_made_again_and_no_resume_of_an_operator() -> None:
    # It closes the node and waits for its job to end, so that nothing else is done meanwhile.
    waits = {"catalogue": {"xid-48": {"urgency": "after_jobs"}}}
    with cluster(waits, nodes=4) as live:
        (victim,) = live.victims(1)
        live.start("sleep 600", f"--nodelist={victim}")
        (state,) = live.sandbox.state_dir.rglob("node_state")
        time.sleep(6)  # slurmctld saves every 5 s what has changed
        kept = state.with_name("kept")
        shutil.copy2(state, kept)
        live.xid(victim, code=48)
        until(lambda: closed(live, victim), 20, "drained")
        until(lambda: live.last(victim).phase == "cordoned", 20, "and seen so")
        live.sandbox.kill_slurmctld()
        for name in ("node_state", "node_state.old"):
            shutil.copy2(kept, state.with_name(name))
        live.sandbox.start_slurmctld()
        until(lambda: live.last(victim).drains == 2, 60, "drained again")
        until(lambda: closed(live, victim), 20, "the node is closed")
        (recovery,) = live.of(victim)
        assert not recovery.ended
        # Now an operator's word counts.
        until(lambda: resumes(live, victim), 30, "an operator resumes it")
        until(lambda: live.last(victim).ended, 20, "the recovery is cancelled")
        assert live.last(victim).phase == "cancelled"
