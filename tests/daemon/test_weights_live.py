"""Jobs get the nodes first that will last, once `hpctl cluster forecast` has set their weights."""

import json

import pytest

from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


def test_a_job_goes_to_a_node_that_has_not_broken(sandbox_factory):
    # What a new instance would leave behind, one that was rebooted has still.
    config = {**FAST, "catalogue": {"xid-79": {"ladder": ["reboot"]}}}
    live = Live(sandbox_factory(nodes=2, mode="own", daemon=True, config=config, slurm_conf=EAGER))

    def weights(*more: str) -> dict[str, str]:
        return dict(json.loads(live.hpctl("cluster", "forecast", *more, "--json"))["weights"])

    def first() -> str:
        """Where a job goes to."""
        job = live.submit("sleep 600", "--nodes=1", "--exclusive")
        until(lambda: live.running(job), 20, "the job runs")
        (node,) = live.job(job).nodes
        live.sandbox.run(["scancel", str(job)])
        until(lambda: live.node(node).state == "IDLE", 20, "it ends")
        return str(node)

    broken = first()
    (sound,) = {*live.sandbox.nodes} - {broken}
    live.sandbox.inject(broken, "xid", code=79)
    until(lambda: any(r.phase == "returned" for r in live.node_recoveries()), 60, "it returns")
    until(lambda: live.node(broken).state == "IDLE", 20, "it is idle")
    assert weights("--dry-run")["1"] == sound
    assert " Weight=1 " in live.sandbox.scontrol("show", "node", broken)
    ((one, of_sound), (more, of_broken)) = weights("--set-weights").items()
    assert (one, of_sound, of_broken) == ("1", sound, broken)
    assert f" Weight={more} " in live.sandbox.scontrol("show", "node", broken)
    assert first() == sound
    live.sandbox.scontrol("update", f"NodeName={sound}", "Weight=100")
    assert first() == broken, "it is the weight that decides"
    live.sandbox.scontrol("reconfigure")
    weighed = " Weight=100 "
    until(lambda: weighed not in live.sandbox.scontrol("show", "node", sound), 10, "as configured")
