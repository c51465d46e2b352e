"""What slurmctld says of the allocation, what the supervisor keeps of it, and which nodes fit."""

import time
from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.jobs.run.allocation import (
    AWAY_S,
    AllocationQueries,
    AllocationState,
    NoSuchJobError,
    choose_step_nodes,
    sort_nodes_by_fitness,
)
from hpctl.slurm.records import SlurmJobRecord
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.fakes.values import T0 as NOW

PROGRAM = """#!/bin/sh
case "$*" in
*version*) echo "slurm 25.11.7" ;;
*) echo "{message}" >&2; exit 1 ;;
esac
"""


def asked(directory, message):
    for name in ("scontrol", "squeue"):
        path = directory / name
        path.write_text(PROGRAM.format(message=message))
        path.chmod(0o755)
    with pytest.raises(ServiceUnavailable) as error:
        AllocationQueries(999, SlurmCommandRunner(bin_dir=directory)).allocation()
    return error.value


def test_missing_job_differs_from_a_controller_that_is_away(tmp_path):
    unknown = asked(tmp_path, "slurm_load_jobs error: Invalid job id specified")
    assert isinstance(unknown, NoSuchJobError)
    away = asked(tmp_path, "slurm_load_jobs error: Unable to contact slurm controller")
    assert not isinstance(away, NoSuchJobError)


A, B, C, D = (f"n{number}" for number in range(1, 5))


def node(name: str, state: str = "ALLOCATED", *flags: str, reason: str = "") -> SlurmNode:
    return SlurmNode(name, state, frozenset(flags), reason)


def test_each_way_of_being_unfit():
    states = {
        A: node(A, "DOWN", "DRAIN", reason="hpctl:r1 xid 79"),
        B: node(B, "ALLOCATED", "NOT_RESPONDING"),
        C: node(C, "ALLOCATED", "DRAIN", reason="hpctl:r2 ecc"),
    }
    fit = sort_nodes_by_fitness((A, B, C, D), states, {})
    assert (fit.healthy, set(fit.unfit)) == ((), {A, B, C, D})
    assert "hpctl:r1" in fit.unfit[A]


def test_an_operators_drain_lets_the_job_finish_on_the_node():
    states = {A: node(A, "ALLOCATED", "DRAIN", reason="maintenance on Friday"), B: node(B)}
    assert sort_nodes_by_fitness((A, B), states, {}).healthy == (A, B)


def test_survivors_come_before_the_spare_and_the_spare_before_offenders():
    assert choose_step_nodes((A, B, C), 2, before=(B, D)) == (A, B)
    assert choose_step_nodes((A, B, C), 2, before=(B, C)) == (B, C)
    assert choose_step_nodes((A, B, C), 2, before=(A, B), avoid={A}) == (B, C)
    assert choose_step_nodes((A, B, C), 3, avoid={A}) == (A, B, C)
    assert choose_step_nodes((A, B, C), 3, exclude={B}) == (A, C)
    leaves = {A: "s0", B: "s1", C: "s0"}
    for known, spare in ((leaves, C), ({}, B)):
        assert choose_step_nodes((A, B, C), 2, before=(A, D), leaves=known) == (A, spare)


OURS = SlurmJob(7, "RUNNING", NOW, restarts=1, nodes=("n1",))


class Slurmctld:
    """Answers one thing after the other: jobs, failures, and states of the job's one node."""

    def __init__(self, *answers, seen=()):
        self.answers, self.seen = list(answers), list(seen)

    def allocation(self) -> SlurmJobRecord:
        answer = self.answers.pop(0) if self.answers else OURS
        if isinstance(answer, ServiceUnavailable):
            raise answer
        return SlurmJobRecord(answer)

    def states(self, _) -> dict[str, SlurmNode]:
        return {A: self.seen.pop(0)}


def asking(*jobs: SlurmJob, restart: int = 1) -> AllocationState:
    return AllocationState(Slurmctld(*jobs), lambda _: None, restart)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (replace(OURS, restarts=2, submit=NOW + timedelta(minutes=3)), "is at restart 2 by now"),
        (replace(OURS, submit=NOW + timedelta(days=9)), "is not the one"),
    ],
)
def test_another_run_with_the_same_id_is_not_touched(later, message):
    left = asking(OURS, later)
    assert left.poll_job_state()
    before = left.alive
    assert left.poll_job_state()
    assert (before, left.alive) == (True, False)
    assert message in left.over


def test_a_supervisor_that_first_looks_when_its_run_is_over_launches_nothing():
    late = asking(OURS, restart=0)
    assert late.poll_job_state()
    assert not late.alive
    assert "restart 1 by now" in late.other
    assert "belongs to restart 0" in late.other


def test_a_signal_ends_the_wait_for_slurmctld():
    message: list[str] = []
    # The first question is asked, and the wait after it is under way.
    failing = Slurmctld(ServiceUnavailable("nobody answers"))
    left = AllocationState(failing, message.append, stopped=lambda: bool(message))
    began = time.monotonic()
    assert left.look().healthy == ()
    assert time.monotonic() - began < AWAY_S
    assert not left.alive
    assert message == ["waiting for slurmctld: nobody answers"]


def test_a_job_that_was_never_known_is_not_waited_for():
    message: list[str] = []
    with pytest.raises(NoSuchJobError):
        AllocationState(Slurmctld(NoSuchJobError("no job 999")), message.append).look()
    assert message == []


FINE = SlurmNode(A, "ALLOCATED")
TREATED = replace(FINE, flags=frozenset({"DRAIN"}), reason="hpctl:r1 xid 79")


@pytest.mark.parametrize(
    ("seen", "fit", "healed"),
    [
        ((TREATED, FINE), True, True),
        ((TREATED, replace(FINE, flags=frozenset({"NOT_RESPONDING"})), FINE), True, True),
        # Nobody has looked at it.
        ((FINE, FINE), False, False),
        ((replace(TREATED, reason="disk swap, Ada"), FINE), False, False),
        # It is in treatment again.
        ((TREATED, FINE, TREATED), False, False),
    ],
)
def test_a_suspect_that_hpctl_gave_back_may_serve_again(seen, fit, healed):
    place = AllocationState(Slurmctld(seen=seen), lambda _: None, 1)
    place.suspect({A: "its ranks did not end at SIGKILL"})
    for _ in seen:
        last = place.look()
    assert (last.healthy == (A,), A in place.healed) == (fit, healed)
