"""An operator's order, followed: each line once, to the end, and no longer than a daemon lives."""

from collections.abc import Iterator

import pytest

from hpctl.engine.journal.events import StepStarted
from hpctl.engine.world import World
from hpctl.nodes.order_watch import (
    BEAT_S,
    EVERY_S,
    GONE_S,
    NodeOrderWatch,
    NodeOrderWatchDependencies,
)
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.recovery import StepKind
from tests.cli import worlds

NODE = NodeName("ip-10-1-0-2")
EVENTS = worlds.healed()


class Bed:
    """Worlds one after the other, the last one for good, on a clock that sleeping moves."""

    def __init__(self, *seen: World | ServiceUnavailable) -> None:
        self._seen = [*seen]
        self.told: list[str] = []
        self.now = 0.0

    def read(self) -> World:
        one = self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]
        if isinstance(one, ServiceUnavailable):
            raise one
        return one

    def sleep(self, seconds: float) -> None:
        assert self.now < 10_000, "nothing ends the watch"
        self.now += seconds

    def watch(self, *nodes: NodeName) -> NodeOrderWatch:
        ports = NodeOrderWatchDependencies(
            self.read, self.told.append, lambda: self.now, self.sleep
        )
        return NodeOrderWatch(nodes or (NODE,), ports)


def growing() -> Iterator[World]:
    """The world after each event of a recovery that ends well."""
    for count in range(2, len(EVENTS) + 1):
        yield worlds.world(EVENTS[:count])


def test_each_line_is_reported_once_until_the_node_is_back() -> None:
    bed = Bed(*growing())
    (ended,) = bed.watch().follow()
    assert (ended.node, ended.phase) == (NODE, NodeRecoveryPhase.RETURNED)
    assert len(bed.told) == len(set(bed.told))
    assert all(NODE in line for line in bed.told)
    assert bed.told[0].startswith("2026-11-21T12:00:00Z ip-10-1-0-2: GPU has fallen off the bus")
    assert bed.told[-1].endswith("Resumed ip-10-1-0-2: slurmctld shows the node in service.")


def test_a_step_is_reported_again_once_its_outcome_is_known() -> None:
    kinds = [isinstance(event, StepStarted) and event.step for event in EVENTS]
    under_way = EVENTS[: kinds.index(StepKind.REPLACE) + 1]
    bed = Bed(worlds.world(under_way), worlds.world(EVENTS))
    bed.watch().follow()
    started, accepted = [line for line in bed.told if "Replacing instance" in line]
    assert "accepted" in accepted
    assert "accepted" not in started


def test_a_recovery_that_opens_later_on_the_same_node_is_another_story() -> None:
    again = [*EVENTS, worlds.node_opened("n-99999999", worlds.gen(2, boot="b"), 80)]
    bed = Bed(worlds.world(EVENTS[:4]), worlds.world(again))
    (ended,) = bed.watch().follow()
    assert ended.id == "n-11111111"


def test_what_is_awaited_is_printed_once_a_minute_where_nothing_happens() -> None:
    still = [worlds.world(EVENTS[:4])] * int(3.5 * BEAT_S / EVERY_S)
    bed = Bed(*still, worlds.world(EVENTS))
    bed.watch().follow()
    assert sum(": waits for " in line for line in bed.told) == 3


def test_a_daemon_that_comes_back_in_time_is_waited_for() -> None:
    away = [ServiceUnavailable("the journal is locked", "")] * int(GONE_S / EVERY_S)
    bed = Bed(worlds.world(EVENTS[:4]), *away, worlds.world(EVENTS))
    assert bed.watch().follow()[0].ended


@pytest.mark.parametrize(
    "gone", [worlds.world(EVENTS[:4], daemon=None), ServiceUnavailable("the journal is locked", "")]
)
def test_an_order_without_a_daemon_is_left_to_the_next(gone: World | ServiceUnavailable) -> None:
    bed = Bed(worlds.world(EVENTS[:4]), gone)
    with pytest.raises(ServiceUnavailable, match="has not answered for 120 s"):
        bed.watch().follow()
    assert GONE_S < bed.now < GONE_S + 3 * EVERY_S


def test_every_node_is_waited_for() -> None:
    other = NodeName("ip-10-1-0-6")
    both = worlds.world(EVENTS[:4], worlds.troubled())
    bed = Bed(both, worlds.world(EVENTS, worlds.troubled()))
    ended = bed.watch(NODE, other).follow()
    assert [rec.phase for rec in ended] == [NodeRecoveryPhase.RETURNED, NodeRecoveryPhase.ESCALATED]
