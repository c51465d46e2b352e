"""HyperPod's health agent marks nodes in Slurm: evidence of a fault, and a second actor."""

import shutil
import time

import pytest

from benchmarks.hma import Mode, play
from tests.daemon.chaos import REPLACE, Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
HUNG = "trap '' TERM; while :; do sleep 1; done"


def mark(live: Chaos, node: str, action: str = "Replace", state: str = "FAIL") -> None:
    """What HMA does to a node."""
    live.sandbox.scontrol("update", f"NodeName={node}", f"State={state}", f"Reason=Action:{action}")


@pytest.fixture(scope="module")
def shared():
    with cluster(nodes=6) as live:
        yield live


def healed(live: Chaos, victim: str, before: str) -> None:
    """Back in service as another instance, by one replacement and one recovery."""
    live.returned(victim)
    assert live.node(victim).in_service
    assert live.instance(victim) != before
    assert live.accepted(before) == 1
    assert [r.phase for r in live.of(victim)] == ["returned"]


def test_a_mark_before_our_own_finding_is_no_operators_drain(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[-1])
    before = live.instance(victim)
    live.mark(victim)
    mark(live, victim)
    live.sandbox.inject(victim, "xid", code=79)
    until(lambda: live.running(job, restarts=1), 20, "the job runs elsewhere")
    healed(live, victim, before)


def test_mode_assist_moves_the_jobs_and_leaves_the_mark_to_the_service() -> None:
    with cluster(nodes=5, mode="assist", node_recovery="Automatic") as live:
        for finding in ("none", "before", "after"):
            job = live.start(f"srun sh -c {HUNG!r}" if finding == "none" else "srun sleep 600")
            victim = str(live.job(job).nodes[0])
            before = live.instance(victim)
            live.mark(victim)
            if finding == "before":
                live.sandbox.inject(victim, "xid", code=79)
                # Not before our DOWN: its Reason would replace a mark that came since we looked.
                # The job shows it: a node whose slurmd answers is DOWN for a moment only.
                until(lambda j=job: live.job(j).restarts == 1, 10, "down")
            mark(live, victim)
            if finding == "after":
                live.sandbox.inject(victim, "xid", code=79)
            until(lambda j=job: live.running(j, restarts=1), 20, "the job is moved")
            assert victim not in live.job(job).nodes
            live.returned(victim)
            assert live.node(victim).in_service
            assert live.instance(victim) != before, "by the service"
            assert len(live.of(victim)) == 1
            live.sandbox.run(["scancel", str(job)])
        assert live.calls(REPLACE) == 0
        live.settle()


SOONER = """#!/bin/sh
# HyperPod's health agent marks the node that {armed} names just before we look at it.
if [ "$1 $2" = "show node" ] && [ "$3" = "$(cat {armed} 2>/dev/null)" ]; then
    rm {armed}
    {scontrol} update NodeName="$3" State=FAIL Reason=Action:Replace
fi
exec {scontrol} "$@"
"""


@pytest.mark.nightly
def test_mode_assist_leaves_a_mark_that_came_a_moment_before_our_drain(tmp_path) -> None:
    armed = tmp_path / "armed"
    for name in ("scontrol", "squeue", "sinfo", "scancel"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    scontrol = (tmp_path / "scontrol").readlink()
    (tmp_path / "scontrol").unlink()
    (tmp_path / "scontrol").write_text(SOONER.format(armed=armed, scontrol=scontrol))
    (tmp_path / "scontrol").chmod(0o755)
    config = {"slurm": {"bin": str(tmp_path)}}
    with cluster(config, nodes=4, mode="assist", node_recovery="Automatic") as live:
        job = live.start("srun sleep 600")
        victim = str(live.job(job).nodes[0])
        before = live.instance(victim)
        armed.write_text(victim)
        live.xid(victim)
        until(lambda: live.running(job, restarts=1), 20, "the job is moved")
        assert not armed.exists()
        live.returned(victim)
        assert live.node(victim).in_service
        assert live.instance(victim) != before, "by the service"
        assert [r.phase for r in live.of(victim)] == ["returned"]
        assert live.calls(REPLACE) == 0
        live.settle()


@pytest.mark.nightly
def test_a_mark_alone_is_seen_long_before_the_next_reading_of_slurm() -> None:
    config = {"loop": {"reconcile_s": 30.0, "lease_s": 90.0}}
    with cluster(config, nodes=3) as live:
        for _ in range(2):
            (victim,) = live.victims(1)
            time.sleep(3.0)  # what wakes the loop by itself is over
            live.mark(victim)
            marked = time.monotonic()
            mark(live, victim)
            until(lambda v=victim: bool(live.of(v)), 25, "a recovery")
            assert time.monotonic() - marked < 15.0
            live.returned(victim)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["own", "assist"])
def test_a_slice_of_the_hundred_faults(mode: Mode) -> None:
    account = play(mode, 6, seed=79)
    assert account.problems == []
    assert {f.kind for f in account.faults} == {"before", "after", "alone"}
    assert account.marked == 6
