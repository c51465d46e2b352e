"""A hang in the ranks' notes, explained by a RAS service on a socket, with short waits."""

import time
from datetime import datetime

import pytest

from hpctl.jobs.crash import NOT_COME
from hpctl.jobs.hangs.ras_judge import JobRankResolver, RasHangInvestigation
from hpctl.jobs.hangs.ras_report import RasAddress
from hpctl.jobs.run.progress import RunProgress
from hpctl.jobs.run.progress_notes import ProgressNote
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence
from hpctl.jobs.run_failure import FailedRunContext, diagnose_run_hang
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.stubs.ras.job import Job, job
from tests.stubs.ras.service import Fault, Service
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

HOSTS = {"10.0.0.1": "node-1", "10.0.0.2": "node-2"}
APART_S = 0.3


def hung(state: Job, *, bound: float = 0.2, notes: bool = True) -> RunProgress:
    """All eight ranks stepped in lockstep, and say no more."""
    began = time.monotonic() - 100.0
    policy = RunPolicy(hang_floor_s=bound, hang_factor=3.0)
    progress = RunProgress(policy, began, datetime.now(UTC))
    for step in range(20):
        for rank, process in enumerate(state.processes):
            pid = process.pid if notes else None
            node = f"node-{process.host[-1]}" if notes else None
            progress.add(ProgressNote(step=step, rank=rank, node=node, pid=pid), began + step / 100)
    return progress


def trouble_of(progress: RunProgress) -> Trouble:
    trouble = progress.trouble(time.monotonic())
    assert trouble.kind is TroubleKind.HANG
    return trouble


@pytest.fixture
def state() -> Job:
    made = job()
    made.communicators[0].step(times=100)
    return made


def test_the_rank_behind_is_named_with_node_and_gpu(state: Job) -> None:
    state.communicators[0].step(but=(5,))
    progress = hung(state)
    with Service(state) as service:
        inquiry = RasHangInvestigation(
            RasAddress("localhost", service.port), HOSTS, apart_s=APART_S
        )
        hang = inquiry.explain(progress, trouble_of(progress))
    names = JobRankResolver(progress.ranks, HOSTS, 8)
    trouble = diagnose_run_hang(
        hang.trouble,
        FailedRunContext(),
        lambda: (CollectiveTimeoutEvidence(ras=hang.finding), names),
        RunPolicy(),
    )
    assert (trouble.rank, trouble.node, trouble.device) == (5, "node-2", "GPU 1")
    assert trouble.signature == NOT_COME
    said = "NCCL's RAS: rank 5 on node-2 (GPU 1) launched 100 AllReduce, 7 others 101 ("
    assert trouble.why.startswith(said)
    assert "no step for" in trouble.why
    assert '"nccl_version"' in trouble.evidence


def test_where_nccl_names_no_rank_the_ranks_own_notes_do(state: Job) -> None:
    progress = hung(state)
    for rank in range(1, 8):
        progress.add(ProgressNote(step=20, rank=rank), progress.started + 0.3)
    with Service(state) as service:
        inquiry = RasHangInvestigation(RasAddress("localhost", service.port), apart_s=APART_S)
        trouble = inquiry.explain(progress, trouble_of(progress)).trouble
    assert (trouble.rank, trouble.node) == (0, "node-1")
    assert "all ranks launched the same collectives" in trouble.why


def test_counts_that_grow_clear_the_run(state: Job) -> None:
    progress = hung(state, bound=2.0)
    with Service(state) as service:
        inquiry = RasHangInvestigation(RasAddress("localhost", service.port), apart_s=APART_S)
        hang = trouble_of(progress)
        inquiry.watch(progress, time.monotonic())
        until(lambda: service.queries)
        state.communicators[0].step()
        assert inquiry.explain(progress, hang) is None
    assert progress.hang(time.monotonic()) is None
    assert progress.trouble(time.monotonic()) is None
    assert progress.hang(time.monotonic() + 60) is not None


def test_counts_that_grow_without_end_and_without_a_step_do_not(state: Job) -> None:
    progress = hung(state)
    progress.policy = RunPolicy(hang_floor_s=0.2, hang_start_s=5.0)
    with Service(state) as service:
        inquiry = RasHangInvestigation(RasAddress("localhost", service.port), apart_s=APART_S)
        hang = trouble_of(progress)
        inquiry.watch(progress, time.monotonic())
        inquiry._thread.join(PATIENCE_S)
        state.communicators[0].step()
        explained = inquiry.explain(progress, hang)
    assert "without steps" in explained.trouble.why


def test_without_a_service_the_ranks_own_notes_answer_at_once() -> None:
    state = job()
    progress = hung(state)
    for rank in range(8):
        if rank != 3:
            progress.add(ProgressNote(step=20, rank=rank), progress.started + 0.3)
    begun = time.monotonic()
    inquiry = RasHangInvestigation(RasAddress("127.0.0.1", 1))
    trouble = inquiry.explain(progress, trouble_of(progress)).trouble
    assert time.monotonic() - begun < 5.0
    assert (trouble.rank, trouble.node) == (3, "node-1")
    assert "NCCL RAS: cannot query" in trouble.evidence


def test_a_service_without_json_is_the_reason_in_the_evidence(state: Job) -> None:
    progress = hung(state)
    with Service(state, "2.26.2") as service:
        inquiry = RasHangInvestigation(
            RasAddress("localhost", service.port), HOSTS, apart_s=APART_S
        )
        trouble = inquiry.explain(progress, trouble_of(progress)).trouble
    assert "NCCL RAS: RAS answers no JSON before NCCL 2.28" in trouble.evidence


@pytest.mark.parametrize("fault", [Fault.HALF, Fault.GARBAGE, Fault.OTHER, Fault.CLOSES])
def test_a_broken_service_leaves_the_trouble_as_it_is(state: Job, fault: Fault) -> None:
    progress = hung(state)
    hang = trouble_of(progress)
    with Service(state, fault=fault) as service:
        explained = RasHangInvestigation(RasAddress("localhost", service.port)).explain(
            progress, hang
        )
    assert explained.trouble.why == hang.why
