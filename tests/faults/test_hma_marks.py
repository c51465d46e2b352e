"""A mark of HyperPod's health agent that is spent stays so, whatever slurmctld's clock does."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from hpctl.faults.hma_marks import is_hma_mark_fulfilled, preserve_fulfilled_hma_marks
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode
from tests.fakes.values import T0, slurm_node

HOURS = st.integers(-48, 48).map(lambda hours: timedelta(hours=hours))
MARKS = st.sampled_from(["Action:Reboot", "Action:Replace", "Action:Reboot : Not responding"])


def register(reason: str, up: timedelta, clock: timedelta) -> SlurmNode:
    """Return a node marked at T0 as slurmctld has it: it computes the boot time from its clock,
    which is off by `clock`, five minutes after the mark."""
    booted = T0 + timedelta(minutes=5) + clock - up
    return slurm_node(1, flags=frozenset({"DRAIN"}), reason=reason, reason_at=T0, boot_time=booted)


@given(reason=MARKS, clocks=st.lists(HOURS, max_size=8))
def test_a_spent_mark_stays_spent_whatever_the_clock_does(
    reason: str, clocks: list[timedelta]
) -> None:
    first = register(reason, up=timedelta(minutes=1), clock=timedelta())
    assert is_hma_mark_fulfilled(first)
    seen = SchedulerView(T0, {first.name: first})
    for clock in clocks:
        again = register(reason, up=timedelta(minutes=1), clock=clock)
        seen = preserve_fulfilled_hma_marks(seen, SchedulerView(T0, {again.name: again}))
        assert is_hma_mark_fulfilled(seen.nodes[again.name])


def test_a_new_mark_after_the_reboot_is_not_spent() -> None:
    first = register("Action:Reboot", up=timedelta(minutes=1), clock=timedelta())
    second = slurm_node(
        1,
        flags=first.flags,
        reason="Action:Reboot",
        reason_at=T0 + timedelta(minutes=9),
        boot_time=first.boot_time,
    )
    seen = preserve_fulfilled_hma_marks(
        SchedulerView(T0, {first.name: first}), SchedulerView(T0, {second.name: second})
    )
    assert not is_hma_mark_fulfilled(seen.nodes[second.name])
