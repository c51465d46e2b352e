"""Whom the ranks wait for, by two answers."""

import pytest

from hpctl.jobs.hangs.ras_judge import (
    APART_S,
    RasHangCause,
    RasHangFinding,
    RasReportSample,
    diagnose_hang_from_ras_samples,
)
from hpctl.jobs.hangs.ras_report import RasReport, parse_ras_report
from tests.stubs.ras.job import Communicator, Job, as_json, job


def answer(state: Job) -> RasReport:
    return parse_ras_report(as_json(state).encode())


def judged(first: RasReport, second: RasReport, apart: float = APART_S) -> RasHangFinding:
    return diagnose_hang_from_ras_samples(
        RasReportSample(first, 100.0), RasReportSample(second, 100.0 + apart)
    )


def still(state: Job) -> RasHangFinding:
    return judged(answer(state), answer(state))


def stepped(times: int) -> Job:
    state = job()
    state.communicators[0].step(times=times)
    return state


def ranks(finding: RasHangFinding) -> list[int]:
    return sorted(member.rank for member in finding.members)


def test_the_rank_that_launched_fewer_is_behind() -> None:
    state = stepped(1200)
    state.communicators[0].step(but=(5,))
    finding = still(state)
    assert (finding.cause, ranks(finding)) == (RasHangCause.BEHIND, [5])
    assert "rank 5 (GPU 1 of 10.0.0.2, process 2001) launched 1200" in finding.why
    assert "7 others 1201" in finding.why


def test_counts_that_grow_are_no_hang() -> None:
    state = job()
    state.communicators[0].step(but=(5,))
    first = answer(state)
    state.communicators[0].step(but=(6,))
    assert judged(first, answer(state)).cause is RasHangCause.MOVING


def test_a_process_that_does_not_answer_twice_is_missing() -> None:
    state = stepped(9)
    state.communicators[0].step(but=(5,))
    state.processes[3].unresponsive = True
    finding = still(state)
    assert (finding.cause, ranks(finding)) == (RasHangCause.MISSING, [3])
    assert finding.sure


def test_one_that_was_given_up_meanwhile_is_missing() -> None:
    state = stepped(1)
    first = answer(state)
    state.processes[3].dead = True
    finding = judged(first, answer(state))
    assert (finding.cause, ranks(finding)) == (RasHangCause.MISSING, [3])


def test_a_process_that_was_late_once_is_not_taken_for_a_movement() -> None:
    state = job()
    state.communicators[0].step(but=(5,))
    state.processes[3].unresponsive = True
    first = answer(state)
    state.processes[3].unresponsive = False
    finding = judged(first, answer(state))
    assert (finding.cause, ranks(finding)) == (RasHangCause.BEHIND, [5])


def test_one_that_stopped_answering_between_the_looks_is_missing_but_not_for_sure() -> None:
    state = stepped(1)
    first = answer(state)
    state.processes[3].unresponsive = True
    finding = judged(first, answer(state))
    assert (finding.cause, finding.sure) == (RasHangCause.MISSING, False)


def test_where_all_are_equal_no_one_is_named() -> None:
    finding = still(stepped(7))
    assert (finding.cause, finding.members) == (RasHangCause.EQUAL, ())


def test_an_error_of_ones_own_goes_before_those_of_others() -> None:
    state = stepped(7)
    state.communicators[0].errors = {1: 6, 2: 2, 3: 6}
    finding = still(state)
    assert (finding.cause, ranks(finding)) == (RasHangCause.FAILED, [2])
    assert "system error" in finding.why


def tensor_parallel() -> Job:
    """Rank 5 computes for ever. Its tensor group waits for it, and the data groups for that one."""
    state = job()
    data = [Communicator(0x100 + gpu, [gpu, 4 + gpu]) for gpu in range(4)]
    tensor = [Communicator(0x200 + node, list(range(4 * node, 4 * node + 4))) for node in (0, 1)]
    state.communicators = [*data, *tensor]
    for one in state.communicators:
        one.step(times=10)
    tensor[0].step()
    tensor[1].step(but=(1,))
    for one in data:
        one.step(but=(1,))
    return state


def small_tensor_groups(everyone: bool) -> Job:
    """Rank 5 computes for ever in the pair (4, 5); 4 waits for it, and larger groups for 4."""
    state = job()
    pairs = [Communicator(0x200 + n, [2 * n, 2 * n + 1]) for n in range(4)]
    larger = [Communicator(0x100 + n, list(range(n, 8, 2))) for n in range(2)]
    if everyone:
        larger = [Communicator(0x100, list(range(8)))]
    state.communicators = [*larger, *pairs]
    for one in state.communicators:
        one.step(times=10)
        late = [rank for rank, member in enumerate(one.members) if member in (4, 5)]
        one.step(but=(1,) if len(one.members) == 2 and late else tuple(late))
    return state


@pytest.mark.parametrize("groups", [None, False, True])
def test_victims_that_wait_in_another_group_are_not_blamed(groups) -> None:
    state = tensor_parallel() if groups is None else small_tensor_groups(groups)
    finding = still(state)
    assert finding.cause is RasHangCause.BEHIND
    assert [member.process for member in finding.members] == [("10.0.0.2", 2001, 1)]


def test_ranks_that_launched_as_many_of_other_kinds_have_diverged() -> None:
    state = job()
    one = state.communicators[0]
    one.step(times=10)
    one.step("AllGather", but=(6,))
    one.step("AllReduce", but=(0, 1, 2, 3, 4, 5, 7))
    finding = still(state)
    assert (finding.cause, ranks(finding)) == (RasHangCause.DIVERGED, [6])


def test_a_communicator_that_ends_is_not_judged() -> None:
    state = job()
    state.communicators[0].step(but=(1,))
    state.communicators[0].finalizing = {0}
    assert still(state).cause is not RasHangCause.BEHIND
