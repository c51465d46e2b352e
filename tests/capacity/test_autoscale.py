"""What autoscaling answers, one literal at a time."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.capacity.autoscale import (
    AutoscaledInstanceGroup,
    IdleNode,
    JobWaitingForNodes,
    PastScalingChange,
    ScaleDown,
    ScaleUp,
    ScalingDirection,
    ScalingHoldDecision,
    ScalingInput,
    compute_remaining_scaling_budget,
    decide_group_autoscaling,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.demand import JobResourceRequest, Tres
from hpctl.vocabulary.policy import AutoscalePolicy, InstanceGroupSizeLimits

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = InstanceGroupSizeLimits(min_count=1, max_count=8)
POLICY = AutoscalePolicy(enabled=True, groups={"w": LIMITS})


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(number: int, nodes: int, waited_s: float = 600) -> JobWaitingForNodes:
    return JobWaitingForNodes(number, ("train",), nodes, ago(waited_s))


def idle(count: int, for_s: float | None = 10) -> tuple[IdleNode, ...]:
    since = None if for_s is None else ago(for_s)
    return tuple(IdleNode(f"n{i}", f"i-{i:017x}", since) for i in range(1, count + 1))


def group(target=4, idle=(), *, arriving=0, blocked=""):
    return AutoscaledInstanceGroup(
        "w", ("train",), target, target - arriving, arriving, idle, blocked=blocked
    )


def past(direction=ScalingDirection.UP, ended_s=60, *, count=1, at_s=900, failed=False):
    ended = None if ended_s is None else ago(ended_s)
    return PastScalingChange("s-1", "w", direction, count, ago(at_s), ended, failed)


def answer(g, *jobs, history=(), policy=POLICY):
    (one,) = decide_group_autoscaling(ScalingInput({"w": g}, jobs, history), policy, NOW)
    return one


def rule(found: ScaleUp | ScaleDown | ScalingHoldDecision) -> str:
    assert isinstance(found, ScalingHoldDecision), found
    return found.rule


def test_a_group_grows_by_what_waiting_jobs_lack():
    up = answer(group(4, idle(1)), job(7, 3))
    assert (up.count, up.size, up.jobs) == (2, 6, (7,))


def test_demand_must_last():
    assert rule(answer(group(), job(7, 2, waited_s=119))) == "young"
    assert isinstance(answer(group(), job(7, 2, waited_s=120)), ScaleUp)


def test_a_smaller_job_behind_a_hopeless_one_is_served():
    up = answer(group(6), job(7, 9), job(8, 2))
    assert (up.count, up.jobs) == (2, (8,))


def test_nodes_leave_that_were_idle_for_long_the_longest_first():
    nodes = (*idle(2, 1800), IdleNode("old", "i-0", ago(9000)), *idle(1, 10))
    assert [n.node for n in answer(group(3, nodes)).nodes] == ["old", "n1"]


def test_a_node_that_is_idle_for_an_unknown_time_stays():
    assert rule(answer(group(4, idle(2, None)))) == "in_use"


def test_a_group_keeps_its_least_number_of_nodes_however_idle():
    assert rule(answer(group(1, idle(1, 9000)))) == "min_count"


def test_nothing_leaves_while_a_job_waits_however_young():
    assert rule(answer(group(4, idle(2, 9000)), job(7, 3, waited_s=1))) == "young"


def test_nothing_leaves_while_a_job_waits_in_another_partition_of_the_nodes():
    nodes = AutoscaledInstanceGroup(
        "w", ("train",), 4, 4, 0, idle(2, 9000), nodes_in=("train", "dev")
    )
    assert rule(answer(nodes, JobWaitingForNodes(8, ("dev",), 3, ago(1)))) == "wanted"
    assert isinstance(answer(nodes), ScaleDown)


@pytest.mark.parametrize(
    ("before", "failed", "held"),
    [
        (ScalingDirection.DOWN, False, True),
        (ScalingDirection.UP, False, False),
        (ScalingDirection.UP, True, True),
    ],
)
def test_a_group_does_not_turn_round_nor_ask_again_at_once(before, failed, held):
    found = answer(group(), job(7, 2), history=(past(before, 599, failed=failed),))
    assert isinstance(found, ScalingHoldDecision) is held
    later = answer(group(), job(7, 2), history=(past(before, 600, failed=failed),))
    assert isinstance(later, ScaleUp)


def test_a_removal_that_came_to_nothing_holds_no_growth_back():
    """A node got a job before it was closed: the next job is not to wait for the cooldown."""
    vain = past(ScalingDirection.DOWN, 5, count=0, failed=True)
    assert isinstance(answer(group(), job(7, 2), history=(vain,)), ScaleUp)
    assert rule(answer(group(4, idle(1, 9000)), history=(vain,))) == "cooldown"


def test_instance_hours_run_until_as_many_have_left():
    policy = AutoscalePolicy(enabled=True, groups={"w": LIMITS}, hours_per_day=10)
    two = past(count=2, at_s=3 * 3600)
    assert compute_remaining_scaling_budget([two], policy, NOW, {})[1] == pytest.approx(10 - 6)
    one_gone = past(ScalingDirection.DOWN, 3600, at_s=3700)
    assert compute_remaining_scaling_budget([two, one_gone], policy, NOW, {})[1] == pytest.approx(
        10 - 3 - 2
    )
    assert compute_remaining_scaling_budget([two], policy, NOW, {"w": group(1)})[
        1
    ] == pytest.approx(10 - 3)
    tight = AutoscalePolicy(enabled=True, groups={"w": LIMITS}, hours_per_day=9)
    assert rule(answer(group(), job(7, 4), history=(two,), policy=tight)) == "hours_per_day"


def small(number: int, gpus: int = 1, **more) -> JobWaitingForNodes:
    each = Tres(1, 0, (("gpu", gpus),))
    asks = JobResourceRequest(each=each, total=each, **more)
    return replace(job(number, asks.nodes * asks.tasks), asks=asks)


GPUS = Tres(96, 0, (("gpu", 8),))


def test_small_jobs_share_a_node():
    up = answer(replace(group(4), like=GPUS), *[small(n) for n in range(9)])
    assert (up.count, up.why) == (2, "jobs 0, 1, 2 and 6 more wait for 2 node(s), 2 too few")
    unknown = answer(group(4), *[small(n) for n in range(3)])
    assert unknown.count == 3, "of what the nodes have nobody told"


def test_an_array_is_served_as_far_as_there_is_room():
    assert answer(replace(group(4), like=GPUS), small(7, 8, tasks=100)).count == 4
    policy = AutoscalePolicy(
        enabled=True,
        groups={"w": InstanceGroupSizeLimits(0, 4), "x": InstanceGroupSizeLimits(0, 9)},
    )
    groups = {n: AutoscaledInstanceGroup(n, ("train",), 2, 2, like=GPUS) for n in ("w", "x")}
    found = decide_group_autoscaling(ScalingInput(groups, [small(7, 8, tasks=8)]), policy, NOW)
    assert [f.count for f in found if isinstance(f, ScaleUp)] == [2, 6]


@pytest.mark.parametrize(
    ("asks", "serves"),
    [
        ({"features": "p5"}, True), ({"features": "p5&efa"}, True), ({"features": "p4"}, False),
        ({"features": "p4|p5"}, True), ({"named": True}, False),
    ],
)  # fmt: skip
def test_a_job_that_these_nodes_cannot_serve_brings_none_but_keeps_what_is_there(asks, serves):
    here = replace(group(4, idle(1, 9000)), like=GPUS, features=frozenset({"p5", "efa"}), idle=())
    found = answer(here, small(7, **asks))
    assert isinstance(found, ScaleUp) is serves
    if not serves:
        assert rule(found) == "no_fit"
        assert rule(answer(replace(here, idle=idle(2, 9000)), small(7, **asks))) == "no_fit"
    assert rule(answer(here, small(7, gpus=9))) == "no_fit"


TWO = AutoscalePolicy(
    enabled=True, groups={"w": InstanceGroupSizeLimits(0, 8), "x": InstanceGroupSizeLimits(0, 8)}
)


def two(history: tuple[PastScalingChange, ...] = (), **first) -> list[str]:
    groups = {"w": replace(group(4), **first), "x": AutoscaledInstanceGroup("x", ("train",), 2, 2)}
    found = decide_group_autoscaling(ScalingInput(groups, [job(7, 2)], history), TWO, NOW)
    return [f.rule if isinstance(f, ScalingHoldDecision) else type(f).__name__ for f in found]


def test_a_group_that_gets_no_instances_leaves_its_jobs_to_the_next():
    """Refused a moment ago; blocked; or ordered long ago and not there."""
    assert two() == ["ScaleUp", "no_demand"]
    assert two((past(failed=True),)) == ["cooldown", "ScaleUp"]
    assert two(blocked="the cluster is Updating") == ["blocked", "ScaleUp"]
    assert two(target=6, arriving=2) == ["enough", "no_demand"]
    assert two(target=6, arriving=2, late=True) == ["late", "ScaleUp"]
    assert two((past(ended_s=None),)) == ["under_way", "no_demand"]


def test_what_arrives_in_the_next_group_is_not_ordered_in_the_first_as_well():
    groups = {"w": group(4), "x": AutoscaledInstanceGroup("x", ("train",), 4, 2, 2)}
    found = decide_group_autoscaling(ScalingInput(groups, [job(7, 2)]), TWO, NOW)
    assert [rule(f) for f in found] == ["no_demand", "enough"]


def test_off_stopped_blocked_and_unknown_say_so():
    off = AutoscalePolicy(groups={"w": LIMITS})
    assert rule(answer(group(), job(7, 2), policy=off)) == "off"
    assert rule(answer(group(blocked="the cluster is Updating"), job(7, 2))) == "blocked"
    (gone,) = decide_group_autoscaling(ScalingInput({}, [job(7, 2)]), POLICY, NOW)
    assert rule(gone) == "unknown"
    (stopped,) = decide_group_autoscaling(
        ScalingInput({"w": group()}, [job(7, 2)], stopped="paused"), POLICY, NOW
    )
    assert rule(stopped) == "stopped"


policies = st.builds(
    AutoscalePolicy,
    enabled=st.just(True),
    groups=st.builds(
        lambda low, more: {"w": InstanceGroupSizeLimits(low, low + more)},
        st.integers(0, 3),
        st.integers(0, 8),
    ),
    up_after_s=st.sampled_from([0.0, 60.0, 300.0]),
    down_after_s=st.sampled_from([0.0, 120.0, 900.0]),
    cooldown_s=st.sampled_from([0.0, 60.0, 600.0]),
    step=st.integers(1, 6),
    adds_per_day=st.integers(0, 15),
    hours_per_day=st.none() | st.sampled_from([0.0, 1.0, 6.0]),
)
pasts = st.builds(
    past, st.sampled_from(ScalingDirection), st.none() | st.integers(0, 900), count=st.integers(0,
    4),
    at_s=st.integers(900, 100_000), failed=st.booleans(),
)  # fmt: skip


@settings(max_examples=200)
@given(
    policy=policies,
    running=st.integers(0, 12),
    free=st.lists(st.integers(0, 1000), max_size=6),
    arriving=st.integers(0, 3),
    jobs=st.lists(
        st.builds(job, st.integers(1, 9), st.integers(1, 10), st.integers(0, 400)),
        unique_by=lambda w: w.job,
    ),
    history=st.lists(pasts, max_size=4),
)
def test_no_answer_leaves_the_bounds(policy, running, free, arriving, jobs, history):
    nodes = [replace(idle(1, for_s)[0], node=f"n{n}") for n, for_s in enumerate(free)]
    here = group(running + arriving, tuple(nodes[:running]), arriving=arriving)
    found = answer(here, *jobs, history=tuple(history), policy=policy)
    if isinstance(found, ScalingHoldDecision):
        return
    limits, up = policy.groups["w"], isinstance(found, ScaleUp)
    assert all(p.ended is not None for p in history), "one change at a time"
    turned = [p for p in history if (p.direction is ScalingDirection.UP) is not up and p.count]
    assert all(p.ended is not None and p.ended <= ago(policy.cooldown_s) for p in turned)
    if isinstance(found, ScaleUp):
        assert 1 <= found.count <= policy.step
        assert found.size == here.target + found.count <= limits.max_count
        adds = [
            p.count for p in history if p.direction is ScalingDirection.UP and p.at > ago(86400)
        ]
        assert sum(adds) + found.count <= policy.adds_per_day
        assert {w.since <= ago(policy.up_after_s) for w in jobs if w.job in found.jobs} == {True}
    else:
        assert not jobs, "a node was taken from a job that waits"
        assert len(found.nodes) <= policy.step
        assert here.alive - len(found.nodes) >= limits.min_count
        assert all(n.since is not None and n.since <= ago(policy.down_after_s) for n in found.nodes)
