"""No randomness: the same story with a crash before and after every append and every call.

And the journal cut at every prefix. The end must be the one without a crash: the job runs, the
sick instance was replaced once, the node is back.
"""

import copy

import pytest

from hpctl.engine.journal.events import Event, NodeRecoveryOpened
from hpctl.engine.journal.state import replay_events
from hpctl.engine.journal.store import JournalStore
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.recovery import StepKind
from tests.engine.machine.daemon import Daemon, calm_down
from tests.engine.machine.scenario import POLICY, RULES, VARIANTS, End, Story, Variant
from tests.fakes.journal import Disk, MemoryJournal

pytestmark = pytest.mark.slow

IN_DOUBT_GAP = 2
"""How many boundaries after the first crash a second one leaves two reboots in doubt."""

STRIDE = 3

by_name = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)


def _good(end: End, variant: Variant) -> None:
    assert end.job == "RUNNING"
    assert not end.job_on_sick_node
    assert len(end.in_service) == 8, end
    assert end.open == 0
    replaced = [instance for kind, instance, _ in end.orders if kind == "replace"]
    assert len(replaced) == len(set(replaced)) == variant.nodes, end.orders


def _ordered_once(story: Story) -> None:
    orders = [(o.kind, o.instance) for o in story.world.provider.orders]
    replaced = [o for o in orders if o[0] == "replace"]
    assert len(replaced) == len(set(replaced)), orders
    assert len(orders) - len(replaced) <= story.variant.nodes + 1, orders


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
@by_name
def test_crash_at_every_boundary_ends_the_same(variant: Variant, stride: int) -> None:
    """At each third one of the variants in `make test`, and at every one of the plain story."""
    whole = Story(variant)
    wanted = whole.play()
    _good(wanted, variant)
    boundaries = whole.daemon.boundary.count
    assert boundaries > 20, whole.daemon.boundary.passed
    first = 1 + VARIANTS.index(variant) % stride
    if variant is VARIANTS[0]:
        first = stride = 1
    for number in range(first, boundaries + 1, stride):
        for after in (False, True):
            story = Story(variant)
            story.daemon.boundary.arm(number, after)
            end = story.play()
            where = f"{'after' if after else 'before'} {whole.daemon.boundary.passed[number - 1]}"
            assert story.daemon.crashes == 1, where
            _good(end, variant)
            _ordered_once(story)
            # Who comes first, we or the service, may depend on the crash; that is its only mark.
            assert end == wanted or variant.second_actor_s is not None, where


@pytest.mark.parametrize("gaps", [(1,), pytest.param((1, 2, 3, 5), marks=pytest.mark.nightly)])
def test_two_crashes_in_one_story_end_the_same(gaps: tuple[int, ...]) -> None:
    """After each boundary, and again a few later. One pair is beyond us, and a person is told.

    A reboot is felt each time, so one in doubt is repeated once: two crashes, each between the
    intent and the call, leave two in doubt.
    """
    variant = VARIANTS[0]
    whole = Story(variant)
    wanted, twice, lines = whole.play(), 0, []
    for number in range(1, whole.daemon.boundary.count + 1):
        for gap in gaps:
            story = _crashing_twice(variant, number, gap)
            end = story.play()
            twice += story.daemon.crashes == 2
            if _reboots_in_doubt(story) == 2:
                lines.append(number)
                assert (end.orders, end.open) == ((), 0), (number, gap)
                assert end.in_service == wanted.in_service[1:], (number, gap)
            else:
                assert end == wanted, (number, gap)
    assert twice > 0.75 * len(gaps) * whole.daemon.boundary.count
    assert len(lines) == (1 if IN_DOUBT_GAP in gaps else 0), lines


def _crashing_twice(variant: Variant, number: int, gap: int) -> Story:
    story = Story(variant)
    story.daemon.boundary.arm(number, True)
    restart = story.daemon.crashed

    def crashed() -> None:
        restart()
        if story.daemon.crashes == 1:
            story.daemon.boundary.arm(gap, False)

    story.daemon.crashed = crashed
    return story


def _reboots_in_doubt(story: Story) -> int:
    (rec,) = story.daemon.loop.state.nodes.values()
    escalated = rec.phase is NodeRecoveryPhase.ESCALATED
    reboots = [s for s in rec.steps if s.kind is StepKind.REBOOT]
    return sum(s.in_doubt for s in reboots) if escalated else 0


def test_crash_at_every_boundary_on_the_real_store(tmp_path) -> None:
    """The same on SQLite, opened again after each crash, each third boundary."""
    variant = VARIANTS[0]
    wanted, boundaries = None, 1
    for number in range(0, 500, 3):
        if number > boundaries:
            break
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        stores: list[JournalStore] = []

        def reopen(url: str = url, stores: list[JournalStore] = stores) -> JournalStore:
            for store in stores:
                store.close()
            stores.append(JournalStore(url))
            return stores[-1]

        story = Story(variant, POLICY, reopen(), reopen)
        story.daemon.boundary.arm(number, True)
        end = story.play()
        assert story.daemon.crashes == (number > 0)
        wanted = wanted or end
        boundaries = max(boundaries, story.daemon.boundary.count if number == 0 else 0)
        _good(end, variant)
        assert end == wanted, number
        for store in stores:
            store.close()


def _cuts(log: list[Event]) -> range:
    return range(len(log) + 1)


@by_name
def test_every_prefix_of_the_journal_is_legal_and_leads_to_a_legal_end(variant: Variant) -> None:
    """A journal restored from an older copy, in the world as it is now: all healthy again.

    What the prefix leaves open must end, and the fresh machine must not be touched.
    """
    story = Story(variant)
    story.play()
    log = list(story.daemon.journal.events())
    orders = list(story.world.provider.orders)
    assert any(isinstance(e, NodeRecoveryOpened) for e in log)
    for cut in _cuts(log):
        assert replay_events(log[:cut]).events == cut
        journal = MemoryJournal(Disk(log=list(log[:cut])))
        world = copy.deepcopy(story.world)
        daemon = Daemon(world, POLICY, RULES, journal)
        calm_down(world, daemon)
        state = daemon.loop.state
        assert not state.open_nodes, (cut, log[cut - 1])
        assert not state.open_jobs, (cut, log[cut - 1])
        assert world.provider.orders == orders, (cut, log[cut - 1])
        assert world.slurm.jobs[story.job].state in ("RUNNING", "COMPLETED")
        assert world.slurm.jobs[story.job].runs == story.world.slurm.jobs[story.job].runs
