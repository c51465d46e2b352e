"""Epilogs that do not end.

One node keeps a whole job COMPLETING. It is named, and a restart waits for it only so long.
"""

import pytest

from hpctl.engine.completing import is_job_freed_by_node_down
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
EPILOG = """#!/bin/sh
[ -e {base}/stuck.$SLURMD_NODENAME ] || exit 0
while [ -e {base}/stuck.$SLURMD_NODENAME ]; do sleep 0.2; done
"""
HALF = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --gres=gpu:4\n"
REGISTERED = 'hpctl:{"ckpt":"/none"}'
QUICK = {"completing_shown_s": 1.0, "completing_deadline_s": 12.0, "settle_s": 0.5}


@pytest.fixture(scope="module")
def live():
    files = {"epilog.sh": EPILOG}
    conf = "Epilog={base}/epilog.sh\n"
    with cluster(nodes=6, slurm_conf=conf, files=files, config={"job": QUICK}) as live:
        yield live


class Stuck:
    """The Epilog of a node, which does not end until it is let go."""

    def __init__(self, live: Chaos, node: str) -> None:
        self._path = live.sandbox.state_dir.parent / f"stuck.{node}"

    def __enter__(self) -> None:
        self._path.touch()

    def __exit__(self, *_: object) -> None:
        self._path.unlink()


def named(live: Chaos, job: int, node: str) -> None:
    """Both commands name the node that keeps a job COMPLETING."""
    until(lambda: "COMPLETING" in live.hpctl("status", check=False), 60, "status tells")
    for target in (str(job), node):
        assert f"processes on {node} have not ended" in live.explained(target)


def crashed(live: Chaos, header: str = HALF) -> tuple[int, str]:
    """A job of two nodes that fails by itself soon, and its second node."""
    body = '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600\nsleep 1\nexit 3'
    job = live.start(body, "-N2", "--exclusive", f"--comment={REGISTERED}", header=header)
    return job, live.job(job).nodes[1]


@story(
    job="Registered batch job of two nodes that failed by itself",
    act="the Epilog of one of its nodes does not end",
    slurm=(
        "After `job.completing_deadline_s` the node is drained, set DOWN and rebooted; the job is"
        " requeued and starts."
    ),
    explain="`explain` of job and node, and `status`, name the node and what hpctl does when.",
    owner="Nothing to do; the restart comes after the deadline.",
)
def test_a_failed_job_restarts_though_an_epilog_is_stuck(live: Chaos):
    job, node = crashed(live)
    with Stuck(live, node):
        live.mark(node)
        named(live, job, node)
        until(lambda: live.running(job, 1), 60, "the job restarts")
    assert live.last(node).rule == "completing-stuck"
    live.returned(node)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job of two nodes that was requeued away from a faulty node",
    act="the Epilog of its healthy node does not end",
    slurm=(
        "The faulty node is replaced meanwhile. The healthy one is set DOWN after the deadline on"
        " Slurm 23.11.11, 24.05.6, 24.11.1, 25.05 and later. Earlier releases would break the job,"
        " which therefore starts as soon as the Epilog ends."
    ),
    explain="`explain` of job and node, and `status`, name the healthy node and what to do.",
    owner="Nothing to do.",
)
def test_a_requeued_job_names_the_healthy_node_that_it_waits_for(live: Chaos):
    job = live.start("sleep 600", "-N2")
    faulty, healthy = live.job(job).nodes
    with Stuck(live, healthy):
        live.xid(faulty)
        until(lambda: live.job(job).completing, 60, "it is COMPLETING")
        named(live, job, healthy)
        live.returned(faulty)
        view = live.scheduler.view()
        if is_job_freed_by_node_down(view.jobs[job], view):
            until(lambda: live.running(job, 1), 60, "the job restarts")
        else:
            served = lambda: live.node(healthy).in_service  # noqa: E731
            stays(served, 8, "the healthy node is left alone")
            assert "end the Epilog" in live.explained(str(job))
    until(lambda: live.running(job, 1), 60, "it runs as soon as the Epilog has ended")
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job that failed by itself, on a node with another job",
    act="the Epilog of the first job does not end there",
    slurm="The node is drained and set DOWN only once the other job has ended.",
    explain="The recovery of the node waits for the other job.",
    owner="The owner of the other job notices nothing.",
)
def test_another_job_on_the_node_is_not_disturbed(live: Chaos):
    other = live.start("sleep 600", header=HALF)
    (node,) = live.job(other).nodes
    body = '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600\nsleep 1\nexit 3'
    with Stuck(live, node):
        live.mark(node)
        job = live.start(body, f"--nodelist={node}", f"--comment={REGISTERED}", header=HALF)
        until(lambda: live.phase(node) == "cordoned", 60, "the node is drained")
        stays(lambda: live.running(other) and not live.node(node).down, 5, "the other job runs on")
        assert f"Waiting for: job {other} of root, which may run to its end" in live.explained(node)
        live.sandbox.run(["scancel", str(other)])
        until(lambda: live.phase(node) not in ("cordoned", "open"), 60, "then it is set DOWN")
    live.sandbox.run(["scancel", str(job)])
    live.returned(node)
