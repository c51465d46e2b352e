"""What each release says of what jobs ask for and nodes have: autoscaling counts by it."""

import re

import pytest
from msgspec.structs import replace

from hpctl.vocabulary.demand import NOTHING_KNOWN, JobResourceRequest, Tres
from hpctl.vocabulary.reason import format_hpctl_node_reason
from tests.slurm.contract.beds import job_of, node_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

GPU = ("gpu", 1)


@pytest.mark.slurm
def test_a_pending_job_wants_nodes_for_the_tasks_that_may_run_at_once(real):
    array = real.submit(2, options=["--array=0-9%3", "--hold"])
    assert job_of(real, array).wants == 6
    real.cancel(array)
    job = real.submit()
    real.until("running", lambda: job_of(real, job).running)
    assert job_of(real, job).wants == 0
    real.cancel(job)
    real.until("ended", lambda: job_of(real, job).state == "CANCELLED")
    assert job_of(real, job).wants == 0


@pytest.mark.slurm
def test_a_reason_has_no_spaces(real):
    """libslurm's has, and the core compares words."""
    reason = format_hpctl_node_reason("r1", "xid 79")
    real.scheduler.drain(dict.fromkeys(real.nodes[1:], reason))
    job = real.submit(3)
    real.until("said why", lambda: job_of(real, job).reason not in ("", "None"))
    # slurmctld says one or the other, by what it looked at last
    assert re.match("(ReqNodeNotAvail|Nodes_required_for_job_are_DOWN),_", job_of(real, job).reason)


@pytest.mark.slurm
def test_what_pending_jobs_ask_for_and_nodes_have(real, request):
    if "pyslurm" in request.node.name:
        job = real.submit(options=["--hold"])
        assert job_of(real, job).asks is None, "whole nodes are counted"
        return
    node = node_of(real, real.nodes[0])
    assert node.has == Tres(16, 0, (("gpu", 8),)), "CR_CPU deals out no memory"
    one = JobResourceRequest(total=Tres(1))
    cases = {
        (): one,
        ("--exclusive",): replace(one, whole=True),
        ("--gres=gpu:1", "-N2"): JobResourceRequest(
            nodes=2, each=Tres(0, 0, (GPU,)), total=Tres(2, 0, (("gpu", 2),))
        ),
        ("--gpus=4", "--array=0-9"): replace(one, tasks=10, total=Tres(1, 0, (("gpu", 4),))),
        ("-n2", "--gpus-per-task=1", "-c2"): JobResourceRequest(total=Tres(4, 0, (("gpu", 2),))),
        ("--exclusive=user", "-w", node.name): replace(one, whole=True, named=True),
    }
    for options, wanted in cases.items():
        args = ["sbatch", "--parsable", "--hold", "-o", "/dev/null", *options, "--wrap", "true"]
        job = int(real.sandbox.run(args).stdout.strip().split(";")[0])
        asks = job_of(real, job).asks
        # How many CPUs of each node is an estimate of Slurm's; the memory is all of a node's.
        seen = replace(asks, total=replace(asks.total, memory=0))
        assert replace(seen, each=NOTHING_KNOWN) == replace(wanted, each=NOTHING_KNOWN), options
        assert seen.each.gres == wanted.each.gres
        real.cancel(job)
