"""Whose job it is that the supervisor looks at."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest

from hpctl.core.compat import UTC
from hpctl.core.model import JobId, NodeName, SlurmJob, SlurmNode
from hpctl.errors import Unavailable
from hpctl.jobs.run.allocation import Allocation, NoSuchJob, Questions
from hpctl.jobs.run.ground import Ground

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OURS = SlurmJob(JobId(7), "RUNNING", NOW, restarts=1, nodes=(NodeName("n1"),))


class Said:
    """slurmctld, which says one thing after the other."""

    def __init__(self, *jobs: SlurmJob) -> None:
        self.jobs = list(jobs)

    def allocation(self) -> Allocation:
        return Allocation(self.jobs.pop(0), "7")


def ground(*jobs: SlurmJob, restart: int = 1) -> Ground:
    return Ground(cast(Questions, Said(*jobs)), lambda _: None, restart)


def test_its_own_run_is_its_own() -> None:
    mine = ground(OURS, replace(OURS, comment="more"))
    assert mine.glance()
    assert mine.alive
    assert mine.glance()
    assert mine.alive
    assert mine.other == ""


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (replace(OURS, restarts=2, submit=NOW + timedelta(minutes=3)), "is at restart 2 by now"),
        (replace(OURS, submit=NOW + timedelta(days=9)), "is not the one"),
    ],
)
def test_another_run_with_the_same_id_is_left_alone(later: SlurmJob, said: str) -> None:
    left = ground(OURS, later)
    assert left.glance()
    before = left.alive
    assert left.glance()
    assert (before, left.alive) == (True, False)
    assert said in left.over


def test_a_supervisor_that_first_looks_when_its_run_is_over_launches_nothing() -> None:
    late = ground(OURS, restart=0)
    assert late.glance()
    assert not late.alive
    assert "restart 1 by now" in late.other
    assert "belongs to restart 0" in late.other


class Failing:
    """slurmctld, which fails in one way."""

    def __init__(self, error: Unavailable) -> None:
        self.error = error

    def allocation(self) -> Allocation:
        raise self.error


def test_a_signal_ends_the_wait_for_slurmctld() -> None:
    said: list[str] = []
    # The first question is asked, and the wait after it is under way.
    failing = cast(Questions, Failing(Unavailable("nobody answers")))
    left = Ground(failing, said.append, stopped=lambda: bool(said))
    began = time.monotonic()
    assert left.look().healthy == ()
    assert time.monotonic() - began < 1
    assert not left.alive
    assert said == ["waiting for slurmctld: nobody answers"]


def test_a_job_that_was_never_known_is_not_waited_for() -> None:
    said: list[str] = []
    with pytest.raises(NoSuchJob):
        Ground(cast(Questions, Failing(NoSuchJob("no job 999"))), said.append).look()
    assert said == []


class Nodes:
    """slurmctld, which describes the job's one node differently each time."""

    def __init__(self, *seen: SlurmNode) -> None:
        self.seen = list(seen)

    def allocation(self) -> Allocation:
        return Allocation(OURS, "7")

    def states(self, _: object) -> dict[NodeName, SlurmNode]:
        return {N1: self.seen.pop(0)}


N1 = NodeName("n1")
FINE = SlurmNode(N1, "ALLOCATED")
TREATED = replace(FINE, flags=frozenset({"DRAIN"}), reason="hpctl:r1 xid 79")
BY_HAND = replace(TREATED, reason="disk swap, Ada")


@pytest.mark.parametrize(
    ("seen", "fit", "healed"),
    [
        ((TREATED, FINE), True, True),
        ((TREATED, replace(FINE, flags=frozenset({"NOT_RESPONDING"})), FINE), True, True),
        # Nobody has looked at it.
        ((FINE, FINE), False, False),
        ((BY_HAND, FINE), False, False),
        # It is in treatment again.
        ((TREATED, FINE, TREATED), False, False),
    ],
)
def test_a_suspect_that_hpctl_gave_back_may_serve_again(
    seen: tuple[SlurmNode, ...], fit: bool, healed: bool
) -> None:
    place = Ground(cast(Questions, Nodes(*seen)), lambda _: None, 1)
    place.suspect({N1: "its ranks did not end at SIGKILL"})
    for _ in seen:
        last = place.look()
    assert (last.healthy == (N1,), N1 in place.healed) == (fit, healed)
