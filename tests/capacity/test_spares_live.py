"""A spare is kept, released to the job that lost a node, and another one kept in its place."""

import pytest

from hpctl.vocabulary.change import ChangeKind
from hpctl.vocabulary.spares_reservation import RESERVATION
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


def test_a_job_that_lost_a_node_gets_the_spare(sandbox_factory):
    config = {**FAST, "spares": {"worker-1": 1}}
    live = Live(
        sandbox_factory(
            nodes=4, mode="own", daemon=True, config=config, boot_time=4.0, slurm_conf=EAGER
        )
    )

    def held() -> tuple[str, ...]:
        held = live.scheduler.reservations().get(f"{RESERVATION}worker-1")
        return held.nodes if held is not None else ()

    until(lambda: len(held()) == 1, 20, "a spare is kept")
    (spare,) = held()
    job = live.submit("srun sleep 600", "--nodes=3")
    until(lambda: live.running(job), 20, "job runs on all others")
    assert spare not in live.job(job).nodes
    victim = str(live.job(job).nodes[-1])
    live.sandbox.inject(victim, "xid", code=79)
    until(lambda: live.running(job, restarts=1), 20, "job runs again, on the spare")
    assert spare in live.job(job).nodes
    assert victim not in live.job(job).nodes
    behind = live.submit("sleep 600", "--nodes=1")
    (release,) = (c for c in live.state().changes.values() if c.opened.released)
    assert release.opened.released == (spare,)
    until(lambda: held() == (victim,), 60, "the healed node is the spare now")
    assert not live.running(behind), "the spare was refilled before a job that merely waits"
    until(lambda: all(c.ended for c in live.state().changes.values()), 10, "the change is seen")
    assert {c.opened.kind for c in live.state().changes.values()} == {ChangeKind.SPARES}
