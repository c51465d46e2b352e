"""What is so now, and since when: for as long as it is so, and bounded."""

import math
import time
from datetime import timedelta
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, HoldLifted, JobRecoveryOpened, RequestTaken
from hpctl.engine.waiting import (
    GAVE_UP_SHOWN_S,
    find_jobs_awaiting_operator,
    find_nodes_awaiting_operator,
)
from hpctl.service import alert_gauges
from hpctl.service.alert_gauges import MOST_NAMED, read_free_disk_ratio
from hpctl.service.metrics import DaemonMetrics
from hpctl.vocabulary.identity import RecoveryId, RuleId
from hpctl.vocabulary.policy import RecoveryPolicy
from tests.fakes.values import at, attempt, node_name, opened, slurm_job, slurm_node, view_of
from tests.service.metrics.test_metrics import Bench, moved

pytestmark = pytest.mark.integration

NODE, JOB = RecoveryId("n-1"), RecoveryId("j-1")
SINCE = "hpctl_waiting_since_timestamp_seconds"
HELD = {"state": "PENDING", "reason": "JobHeldUser", "nodes": ()}


def drained(number: int, owner: str):
    flags = frozenset({"DRAIN"})
    return slurm_node(number, flags=flags, reason=f"hpctl:{owner} broken")


def cluster(*nodes, jobs=()):
    view = view_of(nodes=4)
    named = {**view.scheduler.nodes, **{node.name: node for node in nodes}}
    numbered = {job.id: job for job in jobs}
    return {"scheduler": replace(view.scheduler, nodes=named, jobs=numbered)}


class ElapsedTime:
    """The seconds since the test began."""

    seconds = 0.0


@pytest.fixture
def clock(monkeypatch):
    """The wall clock and the monotonic one, which the test moves."""
    now = ElapsedTime()
    watch = Mock(
        spec_set=time,
        monotonic=lambda: now.seconds,
        time=lambda: (at(0) + timedelta(seconds=now.seconds)).timestamp(),
    )
    monkeypatch.setattr(alert_gauges, "time", watch)
    return now


def test_a_node_waits_until_an_operator_takes_it_up(clock):
    bench = Bench()
    node = drained(1, NODE)
    bench.fold(opened(), *moved(NODE, (30, "needs_human")), **cluster(node))
    for hours in (1, 5, 24):
        clock.seconds = hours * 3600.0
        bench.fold(**cluster(node))
        assert bench.value(SINCE, kind="node", name="n1") == at(30).timestamp()
        assert bench.value("hpctl_waiting", kind="node") == 1
    clock.seconds += 60.0
    bench.fold(**cluster(slurm_node(1)))
    assert bench.value("hpctl_waiting", kind="node") == 0
    assert bench.value(SINCE, kind="node", name="n1") is None


def test_a_restart_or_another_leader_changes_no_since(clock):
    bench = Bench()
    node = drained(1, NODE)
    bench.fold(opened(), *moved(NODE, (30, "needs_human")), **cluster(node))
    bench.fold(GateBlocked(at(60), "n2", "offender", "thrice", RuleId("xid-79")), **cluster(node))
    bench.metrics = DaemonMetrics()
    clock.seconds = 7200.0
    bench.fold(**cluster(node))
    assert bench.value(SINCE, kind="node", name="n1") == at(30).timestamp()
    assert bench.value("hpctl_holds_since_timestamp_seconds", gate="offender") == at(60).timestamp()


def job_ended(signals, *, at_s: float = 1.0):
    opening = JobRecoveryOpened(
        at(at_s), JOB, attempt(), cause=NODE, bad_nodes=(), why="", partition="all"
    )
    return [opened(), opening, *moved(JOB, *signals)]


HELD_BY_HPCTL = ((2, "stop_wanted"), (3, "queued"), (4, "held"))


def test_a_held_job_waits_until_it_is_released():
    bench = Bench()
    bench.fold(*job_ended(HELD_BY_HPCTL))
    state = bench.state
    (one,) = find_jobs_awaiting_operator(state, {1: slurm_job(1, **HELD)}, at(9000))
    assert (one.job, one.since, str(one.end)) == (1, at(4), "held")
    released = slurm_job(1, **{**HELD, "reason": "Resources"})
    for jobs in ({1: released}, {1: slurm_job(1)}, {}):
        assert find_jobs_awaiting_operator(state, jobs, at(9000)) == []


def test_a_job_that_was_given_up_waits_for_a_day_unless_it_runs():
    bench = Bench()
    bench.fold(*job_ended(((4, "deadline"),)))
    state = bench.state
    (one,) = find_jobs_awaiting_operator(state, {}, at(GAVE_UP_SHOWN_S))
    assert str(one.end) == "gave_up"
    assert find_jobs_awaiting_operator(state, {1: slurm_job(1)}, at(60)) == []
    assert find_jobs_awaiting_operator(state, {}, at(GAVE_UP_SHOWN_S + 5)) == []


def test_where_slurm_cannot_be_read_each_escalated_node_counts():
    bench = Bench()
    bench.fold(opened(), *moved(NODE, (30, "needs_human")))
    assert [rec.id for rec in find_nodes_awaiting_operator(bench.state, None)] == [NODE]
    assert find_nodes_awaiting_operator(bench.state, {"n1": slurm_node(1)}) == []


def test_the_oldest_are_named_and_the_others_share_a_series(clock):
    bench, nodes = Bench(), []
    for number in range(1, MOST_NAMED + 11):
        rid = RecoveryId(f"n-{number}")
        nodes.append(drained(number, rid))
        bench.state.fold(opened(rid, node_name(number)))
        bench.state.fold(moved(rid, (number, "needs_human"))[0])
    bench.fold(**cluster(*nodes))
    (family,) = [f for f in bench.metrics.registry.collect() if f.name == SINCE]
    assert len(family.samples) == MOST_NAMED + 1
    assert bench.value(SINCE, kind="node", name="other") == at(MOST_NAMED + 1).timestamp()
    assert bench.value("hpctl_waiting", kind="node") == MOST_NAMED + 10


def test_a_hold_counts_from_the_oldest_of_its_gate():
    bench = Bench()
    since, rule = "hpctl_holds_since_timestamp_seconds", RuleId("xid-79")
    bench.fold(*(GateBlocked(at(s), node_name(s), "budget", "full", rule) for s in (50, 20, 80)))
    assert bench.value(since, gate="budget") == at(20).timestamp()
    assert bench.value("hpctl_holds", gate="budget") == 3
    bench.fold(HoldLifted(at(90), node_name(20)))
    assert bench.value(since, gate="budget") == at(50).timestamp()
    bench.fold(*(HoldLifted(at(99), node_name(s)) for s in (50, 80)))
    assert bench.value(since, gate="budget") == 0


def test_a_pause_and_the_kill_switch_count_from_when_they_began(clock):
    bench, since = Bench(), "hpctl_paused_since_timestamp_seconds"
    clock.seconds = 100.0
    pause = RequestTaken(at(100), 1, "pause", "", "ada", "paused", True)
    bench.fold(pause)
    clock.seconds = 400.0
    bench.fold()
    assert bench.value(since, by="operator") == at(100).timestamp()
    assert bench.value(since, by="kill_switch") == 0
    bench.fold(replace(pause, at=at(400), request=2, verb="unpause"), stopped="/etc/hpctl/STOP")
    assert bench.value(since, by="operator") == 0
    assert bench.value(since, by="kill_switch") == at(400).timestamp()


def test_the_age_of_the_last_cycle_is_the_leaders(clock):
    leads = [True]
    made = DaemonMetrics(leader=lambda: leads[0])
    age = lambda: made.registry.get_sample_value("hpctl_cycle_age_seconds")  # noqa: E731
    made.cycle(0.1, view_of(nodes=1), RecoveryPolicy())
    clock.seconds = 500.0
    assert age() == 500.0
    leads[0] = False
    assert age() == 0.0
    leads[0] = True
    made.begin(view_of(nodes=1).state)
    assert age() == 0.0


def test_troubles_are_by_part():
    made = DaemonMetrics()
    made.take_troubles({"notify": "sink refused", "page": "", "observer": "slurm is away"})
    trouble = {
        part: made.registry.get_sample_value("hpctl_trouble", {"part": part})
        for part in alert_gauges.PARTS
    }
    assert [part for part, value in trouble.items() if value] == ["notify"]
    made.take_troubles({"notify": ""})
    assert made.registry.get_sample_value("hpctl_trouble", {"part": "notify"}) == 0


def test_the_free_share_of_a_disk(tmp_path):
    assert 0.0 <= read_free_disk_ratio(tmp_path) <= 1.0
    assert math.isnan(read_free_disk_ratio(tmp_path / "gone"))
    made = DaemonMetrics(state_dir=tmp_path)
    free = made.registry.get_sample_value("hpctl_state_dir_free_ratio")
    assert free == pytest.approx(read_free_disk_ratio(tmp_path), abs=0.05)
