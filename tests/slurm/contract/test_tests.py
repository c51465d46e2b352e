"""What every Scheduler promises about the test of a node: in its reservation, once, to its end."""

import pytest

from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import OutcomeKind
from tests.slurm.contract.beds import Bed, job_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

NAME = "hpctl-accept-n-1-1"


@pytest.fixture
def test_bed(bed: Bed):
    yield bed
    bed.scheduler.cancel_node_test(NAME)
    bed.until("deleted", lambda: bed.scheduler.reserve(NAME, ()).kind is OutcomeKind.ACCEPTED)


def asked(bed: Bed, node: str, partition: str = ""):
    return bed.scheduler.test(NodeTestJobSpec(NAME, NodeName(node), partition, "sleep 60", 120.0))


def test_a_test_runs_in_its_reservation_where_no_other_job_does(test_bed: Bed) -> None:
    bed, node = test_bed, test_bed.nodes[1]
    assert bed.scheduler.reserve(NAME, [node], own=True).kind is OutcomeKind.ACCEPTED
    first = asked(bed, node, bed.scheduler.view().nodes[node].partitions[0])
    assert first.kind is OutcomeKind.ACCEPTED
    test = int(first.detail)
    bed.until("it runs", lambda: job_of(bed, test).running, 40)
    job = job_of(bed, test)
    assert (job.nodes, job.name, job.requeue) == ((node,), NAME, False)
    # Asked again, as after a crash: the same job, while it runs and when it has ended.
    assert asked(bed, node) == first
    refused = bed.scheduler.reserve(NAME, ())
    assert (refused.kind, refused.transient) == (OutcomeKind.REJECTED, True)
    assert bed.scheduler.cancel_node_test(NAME).kind is OutcomeKind.ACCEPTED
    bed.until("it has ended", lambda: job_of(bed, test).state == "CANCELLED", 40)
    assert asked(bed, node).detail == first.detail
    assert bed.scheduler.cancel_node_test(NAME).kind is OutcomeKind.ACCEPTED


def test_without_its_reservation_a_test_is_refused(test_bed: Bed) -> None:
    test = NodeTestJobSpec("hpctl-accept-n-2-1", test_bed.nodes[0], "", "true", 60.0)
    refused = test_bed.scheduler.test(test)
    assert refused.kind is OutcomeKind.REJECTED
