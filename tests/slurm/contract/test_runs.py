"""What every Scheduler promises about runs that go on without a node, wait, or change size."""

import os

import pytest

from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from tests.fakes.slurmctld import UID
from tests.slurm.contract.beds import Bed, job_of, node_of
from tests.slurm.contract.test_jobs import requeued, running

pytestmark = [pytest.mark.integration, pytest.mark.contract]

PING_S = 6.0
"""Longer than slurmctld's pings are apart in these clusters, a third of SlurmdTimeout."""
MINE = format_hpctl_node_reason("r1", "xid 79")


def quarantine(bed: Bed, node: str) -> None:
    """DRAIN, then DOWN."""
    bed.scheduler.drain({node: MINE})
    assert bed.scheduler.down({node: MINE})[node].kind is OutcomeKind.ACCEPTED


def runs(bed, job, *, exclude=(), elastic=False):
    """Started, again and again: a node that was resumed gets work only after its next ping."""

    def running() -> bool:
        shown = job_of(bed, job)
        if shown.state == "PENDING" and not shown.completing:
            bed.scheduler.start_pending_job(job, exclude, (), 0.0, elastic)
        return job_of(bed, job).running

    bed.until("running", running, 30)


def serve_again(bed: Bed, *nodes: str) -> None:
    """Give nodes back, and wait until slurmctld would give them work."""
    bed.scheduler.resume_nodes(dict.fromkeys(nodes, "r1"))

    def serves(node: str) -> bool:
        shown = node_of(bed, node)
        return shown.responding and shown.state in ("IDLE", "ALLOCATED", "MIXED")

    bed.until("in service", lambda: all(map(serves, nodes)))
    resumed = bed.scheduler.view().as_of

    def pinged() -> bool:
        return (bed.scheduler.view().as_of - resumed).total_seconds() > PING_S

    bed.until("answered a ping, which nobody can see", pinged)


def in_queue(bed: Bed, job: int) -> None:
    bed.until("in the queue", lambda: job_of(bed, job).state == "PENDING")
    bed.until("cleared", lambda: not job_of(bed, job).completing)
    bed.wait_for_a_second_to_begin()


def test_a_job_has_an_owner_and_a_batch_host(bed: Bed) -> None:
    shown = job_of(bed, running(bed, 2))
    assert shown.uid == (os.getuid() if bed.real else UID)
    assert shown.batch_host in shown.nodes


def test_a_start_may_wait_and_comes_with_or_without_a_nudge(bed: Bed) -> None:
    job = running(bed)
    requeued(bed, job, job_of(bed, job).attempt)
    in_queue(bed, job)
    bed.until(
        "sent",
        lambda: bed.scheduler.start_pending_job(job, (), (), 4.0).kind is OutcomeKind.ACCEPTED,
    )
    shown = job_of(bed, job)
    assert shown.eligible is not None
    assert 2.5 <= (shown.eligible - bed.scheduler.view().as_of).total_seconds() <= 5
    assert shown.state == "PENDING"
    assert "JobHeld" not in shown.reason

    def over() -> bool:
        return bed.scheduler.view().as_of >= shown.eligible

    bed.until("the wait is over", over)

    def started_or_nudged() -> bool:
        nudge = bed.scheduler.start_pending_job
        return job_of(bed, job).running or nudge(job, ()).kind is OutcomeKind.ACCEPTED

    bed.until("it started by itself, or was nudged", started_or_nudged)
    assert bed.until("running", lambda: job_of(bed, job).running) < 5


def grown(bed: Bed, job: int, size: int) -> None:
    """Requeued and started until it has all its nodes: one that was resumed serves a bit later."""

    def whole() -> bool:
        if len(job_of(bed, job).nodes) == size:
            return True
        requeued(bed, job, job_of(bed, job).attempt)
        in_queue(bed, job)
        runs(bed, job, elastic=True)
        return len(job_of(bed, job).nodes) == size

    bed.until("as large as it may be", whole, 90)


@pytest.mark.parametrize("per_node", [0, 4])
def test_an_elastic_job_starts_smaller_and_grows_back(bed: Bed, per_node: int) -> None:
    job = bed.submit(4, least=3, per_node=per_node)
    runs(bed, job, elastic=True)
    grown(bed, job, 4)
    victim = job_of(bed, job).nodes[-1]
    quarantine(bed, victim)
    in_queue(bed, job)
    runs(bed, job, elastic=True)
    assert set(job_of(bed, job).nodes) == set(bed.nodes) - {victim}
    serve_again(bed, victim)
    grown(bed, job, 4)


def test_the_reason_of_a_hold_takes_the_place_of_the_last_one(bed: Bed) -> None:
    job = running(bed, comment='hpctl:{"ckpt":"/a"}')
    for why in ("hpctl: once", "hpctl: twice"):
        requeued(bed, job, job_of(bed, job).attempt)
        in_queue(bed, job)
        assert bed.scheduler.hold(job, why).kind is OutcomeKind.ACCEPTED
        assert job_of(bed, job).comment == f'hpctl:{{"ckpt":"/a"}} | {why}'


def test_a_no_kill_job_runs_on_without_a_node_and_not_without_its_batch_host(bed: Bed) -> None:
    """Last in its file, and so on its cluster: on 22.05 the nodes are slow to take jobs of many
    nodes for minutes (PENDING, Resources, until the backfill scheduler comes by)."""
    job = running(bed, 3, no_kill=True)
    first = job_of(bed, job)
    host = first.batch_host
    other = next(n for n in first.nodes if n != host)
    quarantine(bed, other)
    bed.until("taken away", lambda: other not in job_of(bed, job).nodes)
    assert (job_of(bed, job).state, job_of(bed, job).restarts) == ("RUNNING", 0)
    assert host is not None
    quarantine(bed, host)
    bed.until("taken away", lambda: host not in job_of(bed, job).nodes)
    lost = job_of(bed, job)
    assert lost.batch_host == host
    assert lost.state in ("FAILED", "RUNNING")
    serve_again(bed, other)
    requeued(bed, job, first.attempt)
    in_queue(bed, job)
    # Away from the lost host: on 22.05 the old script still runs there.
    runs(bed, job, exclude=(host,))
    again = job_of(bed, job)
    assert (set(again.nodes), again.restarts) == (set(bed.nodes) - {host}, 1)
