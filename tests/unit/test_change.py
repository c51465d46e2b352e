"""The table of a change of capacity, its ids and its deadlines."""

import pytest
from msgspec.structs import replace

from hpctl.core.change import (
    ENDS,
    TRANSITIONS,
    Change,
    ChangeFacts,
    Kind,
    Phase,
    Signal,
    advance,
    open_change,
)
from hpctl.core.journal import Corrupt, replay
from hpctl.core.model import RecoveryId, SlurmNode
from hpctl.core.recovery import Do, Move, Wait, recovery_id
from tests.fakes.capacity import N1, SCALE
from tests.fakes.values import at
from tests.unit.test_plan_capacity import ADD, OURS, REMOVE


def test_no_two_changes_have_one_id() -> None:
    first = recovery_id("s", "x")
    assert recovery_id("s", "x", known={first}) != first


def test_every_open_phase_has_a_way_out_and_a_deadline() -> None:
    for kind in Kind:
        reached = {Phase.OPEN} | {to for (k, _, _), to in TRANSITIONS.items() if k is kind}
        for phase in reached - ENDS:
            assert (kind, phase, Signal.DEADLINE) in TRANSITIONS
            about = replace(REMOVE if kind is not Kind.ADD else ADD, kind=kind, nodes=(N1,))
            change = replace(open_change(about), phase=phase)
            facts = ChangeFacts(cloud_at=at(-9), node=SlurmNode(N1, "IDLE", **OURS))
            answer = advance(change, facts, SCALE, at(10**7))
            assert isinstance(answer, Move | Do), (kind, phase)
            if isinstance(answer, Move):
                assert (kind, phase, answer.signal) in TRANSITIONS


def test_two_changes_about_the_same_thing_are_corruption() -> None:
    with pytest.raises(Corrupt):
        replay([REMOVE, replace(REMOVE, recovery=RecoveryId("s-9"))])


def test_waits_say_until_when() -> None:
    facts = ChangeFacts(cloud_at=at(0))
    answer = advance(Change(ADD, Phase.ARRIVING, at(0)), facts, SCALE, at(1))
    assert isinstance(answer, Wait)
    assert answer.until == at(5400)
