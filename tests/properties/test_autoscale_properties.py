"""A cluster that autoscaling steers through random work: what holds whatever comes."""

from datetime import datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field

from hpctl.core.autoscale import (
    DAY,
    Direction,
    Group,
    Idle,
    Past,
    ScaleDown,
    ScaleUp,
    ScaleView,
    Waiting,
    decide,
)
from hpctl.core.compat import UTC
from hpctl.core.model import InstanceId, JobId, NodeName, RecoveryId
from hpctl.core.policy import AutoscalePolicy, GroupLimits

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
TICK = timedelta(seconds=30)


class Node(Struct):
    name: NodeName
    job: int = 0
    since: datetime = BEGIN


class World(Struct):
    """Nodes, a queue served in order, orders that take three minutes."""

    policy: AutoscalePolicy
    now: datetime = BEGIN
    nodes: list[Node] = field(default_factory=list)
    queue: list[tuple[int, int, datetime, int]] = field(default_factory=list)
    ends: dict[int, datetime] = field(default_factory=dict)
    coming: list[tuple[datetime, int, int]] = field(default_factory=list)
    history: list[Past] = field(default_factory=list)
    born: int = 0

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.born += 1
            self.nodes.append(Node(NodeName(f"n{self.born}"), since=self.now))

    def tick(self) -> None:
        self.now += TICK
        for number in [n for n, end in self.ends.items() if end <= self.now]:
            del self.ends[number]
            for node in self.nodes:
                if node.job == number:
                    node.job, node.since = 0, self.now
        for due, at, count in [c for c in self.coming if c[0] <= self.now]:
            self.coming.remove((due, at, count))
            self.grow(count)
            p = self.history[at]
            self.history[at] = Past(p.id, p.group, p.direction, p.count, p.at, self.now)
        for entry in list(self.queue):
            number, size, _, ticks = entry
            free = [n for n in self.nodes if not n.job]
            if len(free) < size:
                break
            for node in free[:size]:
                node.job = number
            self.ends[number] = self.now + ticks * TICK
            self.queue.remove(entry)

    def view(self) -> ScaleView:
        arriving = sum(c for _, _, c in self.coming)
        idle = tuple(Idle(n.name, InstanceId(n.name), n.since) for n in self.nodes if not n.job)
        here = len(self.nodes)
        group = Group("w", ("p",), here + arriving, here, arriving, idle)
        jobs = [Waiting(JobId(n), ("p",), size, at) for n, size, at, _ in self.queue]
        return ScaleView({"w": group}, jobs, list(self.history))

    def obey(self) -> ScaleUp | ScaleDown | None:
        (answer,) = decide(self.view(), self.policy, self.now)
        number = len(self.history)
        rid = RecoveryId(f"s-{number}")
        if isinstance(answer, ScaleUp):
            self.history.append(Past(rid, "w", Direction.UP, answer.count, self.now))
            self.coming.append((self.now + timedelta(minutes=3), number, answer.count))
            return answer
        if isinstance(answer, ScaleDown):
            for one in answer.nodes:
                past = Past(rid, "w", Direction.DOWN, 1, self.now, self.now)
                self.history.append(past)
                self.nodes = [n for n in self.nodes if n.name != one.node]
            return answer
        return None


JOBS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 10), st.integers(1, 60)), max_size=12)
POLICIES = st.builds(
    lambda low, span, up, down, cool, step, adds, hours: AutoscalePolicy(
        enabled=True,
        groups={"w": GroupLimits(low, low + span)},
        up_after_s=up,
        down_after_s=down,
        cooldown_s=cool,
        step=step,
        adds_per_day=adds,
        hours_per_day=hours,
    ),
    st.integers(0, 3),
    st.integers(0, 8),
    st.sampled_from([0.0, 60.0, 300.0]),
    st.sampled_from([0.0, 120.0, 900.0]),
    st.sampled_from([0.0, 60.0, 600.0]),
    st.integers(1, 6),
    st.integers(0, 15),
    st.none() | st.sampled_from([0.0, 1.0, 6.0]),
)


@settings(max_examples=60, deadline=None)
@given(policy=POLICIES, work=JOBS, begin=st.integers(0, 6))
def test_whatever_comes_the_bounds_are_kept(
    policy: AutoscalePolicy, work: list[tuple[int, int, int]], begin: int
) -> None:
    limits = policy.groups["w"]
    world = World(policy)
    world.grow(min(max(begin, limits.min_count), limits.max_count))
    turns: list[tuple[datetime, Direction]] = []
    for tick in range(260):
        for number, (at, size, ticks) in enumerate(work, 1):
            if at == tick:
                world.queue.append((number, size, world.now, ticks))
        world.tick()
        busy = {n.name for n in world.nodes if n.job}
        young = {n.name for n in world.nodes if (world.now - n.since).total_seconds() < 0}
        before = world.view()
        done = world.obey()
        size = len(world.nodes) + sum(c for _, _, c in world.coming)
        assert limits.min_count <= size <= limits.max_count
        if isinstance(done, ScaleDown):
            names = {i.node for i in done.nodes}
            assert not names & (busy | young)
            assert not before.waiting, "a node was taken from a job that waits"
            oldest = min(i.since for i in done.nodes if i.since)
            assert (world.now - oldest).total_seconds() >= policy.down_after_s
            turns.append((world.now, Direction.DOWN))
        if isinstance(done, ScaleUp):
            assert done.count <= policy.step
            turns.append((world.now, Direction.UP))
        added = [p for p in world.history if p.direction is Direction.UP]
        assert sum(p.count for p in added if p.at > world.now - DAY) <= policy.adds_per_day
    flips = [(a, b) for a, b in pairwise(turns) if a[1] is not b[1]]
    assert all((b[0] - a[0]).total_seconds() >= policy.cooldown_s for a, b in flips)


@settings(max_examples=20, deadline=None)
@given(nodes=st.integers(1, 8), jobs=st.integers(1, 4))
def test_work_that_fits_is_served_and_then_the_group_shrinks_again(nodes: int, jobs: int) -> None:
    policy = AutoscalePolicy(
        enabled=True, groups={"w": GroupLimits(0, 8)}, up_after_s=60, down_after_s=300
    )
    world = World(policy)
    for number in range(1, jobs + 1):
        world.queue.append((number, nodes, world.now, 10))
    for _ in range(200):
        world.tick()
        world.obey()
    assert not world.queue
    assert not world.nodes
