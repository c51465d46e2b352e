"""What every Scheduler promises about reservations: spares are kept, released, refilled."""

from datetime import timedelta

import pytest

from hpctl.capacity.facts import list_jobs_waiting_for_nodes
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.outcome import OutcomeKind
from tests.slurm.contract.beds import Bed, job_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

NAME = "hpctl-spares-w"


@pytest.fixture
def spare_bed(bed: Bed):
    yield bed
    bed.scheduler.reserve(NAME, ())
    bed.scheduler.reserve("other", ())


def held(bed: Bed) -> set[str]:
    one = bed.scheduler.reservations().get(NAME)
    return set(one.nodes) if one else set()


def test_a_reservation_holds_exactly_what_was_asked_for(spare_bed: Bed) -> None:
    reserve, (a, b, c, _) = spare_bed.scheduler.reserve, spare_bed.nodes
    assert held(spare_bed) == set()
    for nodes in ([a, b], [a, b], [b, c], [c]):
        assert reserve(NAME, nodes).kind is OutcomeKind.ACCEPTED
        assert held(spare_bed) == set(nodes)
    assert reserve(NAME, ()).kind is OutcomeKind.ACCEPTED
    assert NAME not in spare_bed.scheduler.reservations()
    assert reserve(NAME, ()).kind is OutcomeKind.ACCEPTED


def test_a_node_tells_its_leaf_switch_and_none_without_a_topology(spare_bed: Bed) -> None:
    bed, (a, b, c, d) = spare_bed, spare_bed.nodes
    bed.set_topology({})
    assert bed.scheduler.leaves() == {}
    known = {a: "s0", b: "s0", c: "s1", d: "s1"}
    bed.set_topology(known)
    assert bed.scheduler.leaves() == known
    bed.set_topology({})


def test_no_job_gets_a_spare_until_it_is_released(spare_bed: Bed) -> None:
    bed, (a, b, *_) = spare_bed, spare_bed.nodes
    assert bed.scheduler.reserve(NAME, [a, b]).kind is OutcomeKind.ACCEPTED
    job = bed.submit(3)
    bed.until("it waits", lambda: job_of(bed, job).reason not in ("", "None"))
    now = job_of(bed, job).submit + timedelta(hours=1)
    view = PlanningView(bed.scheduler.view(), CloudProviderView(now), {}, {}, EngineState())
    assert [(w.job, w.nodes) for w in list_jobs_waiting_for_nodes(view, now)] == [(job, 3)]
    assert job_of(bed, job).wants == 3
    assert bed.scheduler.reserve(NAME, [a]).kind is OutcomeKind.ACCEPTED
    bed.until("it runs on the released node", lambda: job_of(bed, job).running, 40)
    assert b in job_of(bed, job).nodes
    assert a not in job_of(bed, job).nodes
    bed.cancel(job)


def test_a_node_with_a_job_or_in_another_reservation_is_refused_whole(spare_bed: Bed) -> None:
    bed = spare_bed
    job = bed.submit(1)
    bed.until("it runs", lambda: job_of(bed, job).running)
    (busy,) = job_of(bed, job).nodes
    a, b, _ = (n for n in bed.nodes if n != busy)
    refused = bed.scheduler.reserve(NAME, [a, busy])
    assert (refused.kind, refused.transient) == (OutcomeKind.REJECTED, True)
    assert held(bed) == set()
    assert bed.scheduler.reserve(NAME, [a]).kind is OutcomeKind.ACCEPTED
    assert bed.scheduler.reserve("other", [b]).kind is OutcomeKind.ACCEPTED
    for more in (busy, b):
        refused = bed.scheduler.reserve(NAME, [a, more])
        assert (refused.kind, refused.transient) == (OutcomeKind.REJECTED, True)
        assert held(bed) == {a}
    bed.cancel(job)


def test_a_node_that_slurm_does_not_know_is_refused(spare_bed: Bed) -> None:
    refused = spare_bed.scheduler.reserve(NAME, ["zz9"])
    assert refused.kind is OutcomeKind.REJECTED
    assert not refused.transient


def test_nothing_is_asked_while_the_controller_is_away(spare_bed: Bed) -> None:
    node = spare_bed.nodes[0]
    spare_bed.stop_controller()
    try:
        assert spare_bed.scheduler.reserve(NAME, [node]).kind is OutcomeKind.REJECTED
    finally:
        spare_bed.start_controller()
        spare_bed.until("it answers", lambda: spare_bed.scheduler.view().nodes, 30)


def test_a_node_tells_since_when_it_is_idle(spare_bed: Bed) -> None:
    bed = spare_bed
    job = bed.submit(1)
    bed.until("it runs", lambda: job_of(bed, job).running)
    (node,) = job_of(bed, job).nodes
    bed.cancel(job)
    bed.until("it is idle", lambda: bed.scheduler.view().nodes[node].state == "IDLE", 40)
    view = bed.scheduler.view()
    busy, ended = view.nodes[node].last_busy, view.jobs[job].end
    assert busy is not None
    assert ended is not None
    assert abs((busy - ended).total_seconds()) <= 5
