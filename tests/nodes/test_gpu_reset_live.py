"""A fault whose ladder begins with a reset: healed without a reboot, or by one where it fails."""

import pytest

from hpctl.vocabulary.recovery import StepKind
from tests.daemon.chaos import cluster
from tests.fakes import nvidia_smi
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
REBOOT = "BatchRebootClusterNodes"


def test_a_gpu_is_reset_on_the_running_node_and_a_reboot_follows_where_it_fails():
    with cluster(nodes=4) as live:
        job = live.start("srun sleep 600", "--nodes=2")
        healed, fails = (str(node) for node in live.job(job).nodes)
        for node, answers in ((healed, ()), (fails, (nvidia_smi.UNSUPPORTED,))):
            machine = live.sandbox.spec.layout.of_node(node) / "hardware"
            nvidia_smi.install(machine, *answers, units="nvidia-dcgm.service")
        instances = {node: live.instance(node) for node in (healed, fails)}
        live.xid(healed, fails, code=48)
        until(lambda: live.running(job, restarts=1), 30, "the job runs elsewhere")
        done, climbed = live.returned(healed, 60), live.returned(fails, 60)
        assert done.generation == done.opened_for
        assert [s.kind for s in done.steps if s.kind in (StepKind.RESET, StepKind.REBOOT)] == [
            StepKind.RESET
        ]
        assert (live.instance(healed), live.accepted(instances[healed], REBOOT)) == (
            instances[healed], 0,
        )  # fmt: skip
        log = nvidia_smi.calls(live.sandbox.spec.layout.of_node(healed) / "hardware")
        assert "--gpu-reset --id=GPU-0" in log
        assert log[-2] == "start nvidia-dcgm.service"
        assert any(
            "is not supported" in t.why for t in climbed.trail if t.signal == "reset_in_vain"
        )
        assert climbed.generation.instance == climbed.opened_for.instance == instances[fails]
        assert climbed.generation.boot != climbed.opened_for.boot
        assert live.accepted(instances[fails], REBOOT) == 1
        said = live.hpctl("explain", fails)
        assert "not supported" in said
