"""What the head node tells Prometheus: counted from recoveries, nodes and jobs, and bounded."""

import re
import time
from collections import Counter
from datetime import timedelta
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.world import World
from docgen.metrics import intake_registry
from hpctl.engine.journal.events import (
    GateBlocked,
    JobRecoveryOpened,
    JobReported,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.view import PlanningView
from hpctl.faults.catalogue import SHIPPED
from hpctl.service import metrics
from hpctl.service.metrics import CLASSES, DaemonMetrics, find_detection_rule_family
from hpctl.service.notify.daemon import NAMED
from hpctl.vocabulary.demand import Tres
from hpctl.vocabulary.identity import JobId, RecoveryId, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.spares_reservation import RESERVATION
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.proved_route import MOST_CODES, RequestRefusalCounter
from tests.fakes.values import (
    at,
    attempt,
    generation,
    node_name,
    opened,
    slurm_job,
    slurm_node,
    view_of,
)
from tests.process import promtool

pytestmark = pytest.mark.integration

DAY = timedelta(days=1)
JOB, NODE = RecoveryId("j-1"), RecoveryId("n-1")


class Bench:
    """Metrics over a state that events change."""

    def __init__(self, **nodes) -> None:
        self.state = replay_events([])
        self.metrics = DaemonMetrics()
        self.seen = {"state": self.state, **nodes}

    def fold(self, *events, **seen) -> "Bench":
        for event in events:
            self.state.fold(event)
        self.metrics.cycle(0.1, view_of(**{**self.seen, **seen}), RecoveryPolicy())
        return self

    def value(self, name: str, /, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def moved(rid: RecoveryId, *signals: tuple[float, str]) -> list[SignalSeen]:
    return [SignalSeen(at(seconds), rid, signal, "") for seconds, signal in signals]


def job_opened(seconds: float = 1, **changes) -> JobRecoveryOpened:
    values = {"cause": NODE, "bad_nodes": (), "why": "", "partition": "all", **changes}
    return JobRecoveryOpened(at(seconds), JOB, attempt(), **values)


def gpu_cluster(**changes):
    view = view_of(nodes=2)
    nodes = {
        name: replace(n, has=Tres(8, 8, (("gpu", 8),))) for name, n in view.scheduler.nodes.items()
    }
    jobs = {j.id: j for j in changes.pop("jobs", [slurm_job(partition="all")])}
    return {
        "scheduler": replace(
            view.scheduler, nodes={**nodes, **changes.pop("nodes", {})}, jobs=jobs
        ),
        **changes,
    }


def test_a_recovery_from_the_line_to_running_is_counted_once():
    bench = Bench(**gpu_cluster())
    told = JobReport(JobId(1), 0, progress=500)
    bench.fold(*(JobReported(at(s), told) for s in (-70, -40)))
    bench.fold(opened(), *moved(NODE, (2, "cordon_seen")), job_opened())
    assert bench.value("hpctl_recoveries_open", kind="job", phase="hit") == 1
    assert bench.value("hpctl_recoveries_opened_total", kind="node", **{"class": "xid"}) == 1
    step = StepStarted(at(3), JOB, StepKind.REQUEUE, 1, "1")
    bench.fold(*moved(JOB, (3, "stop_wanted"), (5, "queued")), step)
    assert bench.value("hpctl_steps_in_doubt") == 1
    end = [StepResolved(at(4), JOB, StepKind.REQUEUE, 1, Outcome.accepted())]
    for _ in range(2):
        bench.fold(
            *end, *(moved(JOB, (6, "started"), (9, "running_seen"), (12, "proved")) if end else ())
        )
        end = []
    assert bench.value("hpctl_steps_in_doubt") == 0
    assert bench.value("hpctl_steps_total", step="requeue", outcome="accepted") == 1
    assert bench.value("hpctl_recoveries_ended_total", kind="job", end="resumed") == 1
    assert bench.value("hpctl_recoveries_open", kind="job", phase="hit") == 0
    stages = {
        s: bench.value("hpctl_recovery_stage_seconds_sum", stage=s)
        for s in ("opened", "drained", "released", "running")
    }
    assert stages == {"opened": 10, "drained": 2, "released": 3, "running": 4}
    assert bench.value("hpctl_job_recovery_seconds_sum") == 19
    assert bench.value("hyperpod_training_operator_jobs_restarted_total") == 1
    assert bench.value("hyperpod_training_operator_jobs_restart_latency") == 19
    assert bench.value("hyperpod_training_operator_jobs_fault_detection_latency") == 10
    # 16 GPUs stood still for 19 s, and did again what they had done in the 60 s before.
    assert bench.value("hpctl_lost_gpu_seconds_total", **{"class": "xid"}) == 16 * (19 + 60)
    assert bench.value("hpctl_partition_lost_gpu_seconds_total", partition="all") == 16 * 79


@pytest.mark.parametrize(
    ("signals", "step", "found"),
    [
        (("jobs_gone", "nothing_to_remedy", "return_seen"), None, "healthy"),
        (("operator_took_over",), None, "healthy"),
        (("jobs_gone", "remedy_accepted", "new_generation_seen", "rejoined", "return_seen"),
         StepKind.REBOOT, "remedied"),
        (("needs_human",), None, "escalated"),
        (("operator_cancelled",), None, "cancelled"),
    ],
)  # fmt: skip
def test_what_a_drain_was_good_for(signals, step, found):
    bench = Bench()
    taken = [StepStarted(at(20), NODE, step, 1, "i-1")] if step else []
    after = [(100.0 + n, signal) for n, signal in enumerate(signals)]
    bench.fold(opened(), *moved(NODE, (10, "cordon_seen")), *taken, *moved(NODE, *after))
    seconds = 90 + len(signals) - 1
    assert bench.value("hpctl_drained_node_seconds_total", found=found) == seconds
    back = bench.value("hpctl_node_recovery_seconds_count")
    assert back == (1 if signals[-1] == "return_seen" else 0)


def test_labels_have_names_that_prometheus_takes_as_they_are():
    for registry in (DaemonMetrics().registry, intake_registry()):
        for series in set(registry._collector_to_names):
            assert [n for n in series._labelnames if not re.fullmatch(r"[a-z_]+", n)] == []


def test_what_had_happened_before_the_start_is_not_counted_again():
    bench = Bench()
    bench.state.fold(opened())
    bench.metrics.begin(bench.state)
    bench.fold()
    assert bench.value("hpctl_recoveries_opened_total", kind="node", **{"class": "xid"}) == 0
    assert bench.value("hpctl_recoveries_open", kind="node", phase="open") == 1
    bench.fold(*moved(NODE, (1, "needs_human")))
    assert bench.value("hpctl_recoveries_ended_total", kind="node", end="escalated") == 1


def test_a_run_that_went_wrong_without_a_fault_counts_by_what_went_wrong():
    bench = Bench(**gpu_cluster())
    trouble = Trouble(TroubleKind.HANG, at(-5), "no step")
    bench.fold(job_opened(cause=RecoveryId(""), trouble=trouble), *moved(JOB, (20, "deadline")))
    assert bench.value("hpctl_recoveries_opened_total", kind="job", **{"class": "hang"}) == 1
    assert bench.value("hpctl_lost_gpu_seconds_total", **{"class": "hang"}) == 16 * 25
    assert bench.value("hpctl_job_recovery_seconds_count") == 0


def test_nodes_jobs_and_agents_by_partition(monkeypatch):
    monkeypatch.setattr(metrics, "SAMPLE_S", 0.0)
    ticks = iter(range(0, 1000, 10))
    watch = Mock(spec_set=time, monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(metrics, "time", watch)
    down = {
        node_name(3): slurm_node(3, state="DOWN"),
        node_name(4): slurm_node(4, flags=frozenset({"DRAIN"})),
    }
    jobs = [
        slurm_job(partition="all"),
        slurm_job(2, state="PENDING", partition="all,dev", nodes=()),
    ]
    spares = {f"{RESERVATION}workers": (node_name(1),)}
    bench = Bench(**gpu_cluster(nodes=down, jobs=jobs, reservations=spares))
    health = {
        node_name(1): NodeHealth(generation(), at(0)),
        node_name(2): NodeHealth(generation(), at(0) - DAY),
    }
    bench.fold(health=health).fold(health=health)
    nodes = {
        s: bench.value("hpctl_nodes", partition="all", state=s)
        for s in ("in_service", "drained", "down")
    }
    assert nodes == {"in_service": 2, "drained": 1, "down": 1}
    assert bench.value("hpctl_gpus", partition="all") == 16
    assert [
        bench.value("hpctl_jobs", partition="all", state=s) for s in ("running", "pending")
    ] == [1, 1]
    assert bench.value("hpctl_job_gpu_seconds_total", partition="all") == 160, (
        "ten seconds of two nodes"
    )
    states = ("heard", "silent", "never", "out_of_service")
    agents = {s: bench.value("hpctl_agents", state=s) for s in states}
    assert agents == {"heard": 1, "silent": 1, "never": 0, "out_of_service": 2}
    assert bench.value("hpctl_spares", state="reserved") == 1
    bench.fold(opened(), job_opened(), *moved(JOB, (4, "deadline")), health=health)
    bench.fold(health=health)
    lost = 16 * 14
    held = bench.value("hpctl_job_gpu_seconds_total", partition="all")
    assert held is not None
    assert bench.value("hpctl_effective_training_time_ratio", partition="all") == held / (
        held + lost
    )


def test_the_training_operators_counters(monkeypatch):
    monkeypatch.setattr(metrics, "SAMPLE_S", 0.0)
    bench = Bench()

    def look(**states: str) -> tuple[float | None, ...]:
        jobs = [slurm_job(int(n[1:]), state=state) for n, state in states.items()]
        bench.fold(jobs=jobs, ruled={job.id: None for job in jobs})
        ends = ("created", "successful", "failed", "deleted")
        return tuple(bench.value(f"hyperpod_training_operator_jobs_{end}_total") for end in ends)

    assert look(j1="COMPLETED", j2="RUNNING") == (0, 0, 0, 0), "it was there before"
    assert look(j2="COMPLETED", j3="FAILED", j4="RUNNING") == (2, 0, 0, 0)
    assert look(j2="COMPLETED", j3="PENDING", j4="CANCELLED") == (2, 1, 0, 0), "requeued meanwhile"
    assert look(j2="COMPLETED", j3="TIMEOUT", j4="CANCELLED") == (2, 1, 0, 1)
    assert look(j2="COMPLETED", j3="TIMEOUT", j4="CANCELLED") == (2, 1, 1, 1)
    assert look(j2="COMPLETED", j3="TIMEOUT", j4="CANCELLED") == (2, 1, 1, 1)


def test_the_class_of_every_rule_is_one_of_the_table():
    assert {find_detection_rule_family(rule) for rule in SHIPPED} <= set(CLASSES)
    assert find_detection_rule_family(RuleId("alert-x")) == "site"
    assert find_detection_rule_family(RuleId("unheard-of")) == "other"
    assert find_detection_rule_family(RuleId("gpu-ecc-contained")) == "gpu"


HOSTILE = 'p"\n\\\x1b[31m\u202e{x="1"}\ud800'


def hostile_world() -> tuple[PlanningView, int]:
    """10,000 nodes in 130 partitions whose names nobody would choose; jobs of as many more."""
    world = World(10_000, 1250)
    nodes = {
        name: replace(node, partitions=(f"{HOSTILE}{n % 130}",), has=Tres(1, 1, (("gpu", 8),)))
        for n, (name, node) in enumerate(world.slurm.nodes.items())
    }
    jobs = {
        i: replace(j, partition=f"{HOSTILE}{i}", comment=HOSTILE, name=HOSTILE)
        for i, j in world.slurm.jobs.items()
    }
    state, base = EngineState(), world.slurm.as_of
    for n, name in enumerate([*nodes][:500]):
        rule = RuleId(f"{HOSTILE}{n}")
        state.fold(replace(opened(f"n-{n}", name, rule=rule), at=base))
        hold = {"target": name, "gate": f"{HOSTILE}{n}", "why": HOSTILE, "rule": rule}
        state.fold(GateBlocked(base, **hold))
    seen = replace(world.slurm, nodes=nodes, jobs=jobs)
    return PlanningView(seen, world.cloud, world.health(), {}, state), 101


def test_series_and_time_are_bounded_at_ten_thousand_nodes_with_hostile_names():
    made, (view, partitions) = (
        DaemonMetrics({("DescribeCluster", "ok"): 3, (HOSTILE, "ok"): 1}),
        hostile_world(),
    )
    made.cycle(0.1, view, RecoveryPolicy(), [ItemProcessingFailure(HOSTILE, "plan", HOSTILE, "")])
    assert made.registry.get_sample_value("hpctl_internal_errors_total", {"where": "metrics"}) == 0
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        text = generate_latest(made.registry)
        seconds.append(time.thread_time() - began)
    for sink in range(NAMED + 1):
        for outcome in ("sent", "failed"):
            made.notifications.labels(f"sink{sink}", outcome)
    text = generate_latest(made.registry)
    intake = intake_registry()
    refusing = [c for c in intake._collector_to_names if c._name.endswith("_refused")]
    assert len(refusing) == 5
    for refused in refusing:
        for code in range(MOST_CODES + 1):
            refused.labels(f"code{code}")
    series = re.findall(r"^[a-z].*$", text.decode() + generate_latest(intake).decode(), re.M)
    by_partition = [line for line in series if 'partition="' in line]
    assert len(by_partition) <= 12 * partitions
    assert len(series) - len(by_partition) <= 361
    assert min(seconds) < 0.1
    assert b"\x1b" not in text
    for each in (text, generate_latest(intake)):
        assert promtool("check", "metrics", input=each.decode()) == ""


def test_the_codes_of_what_is_refused_are_bounded():
    registry = CollectorRegistry()
    refused = RequestRefusalCounter("hpctl_x_refused", "x", registry)
    for code in range(100):
        refused.add(f"code{code}")
    refused.add("code0")
    assert registry.get_sample_value("hpctl_x_refused_total", {"code": "code0"}) == 2
    assert registry.get_sample_value("hpctl_x_refused_total", {"code": "other"}) == 100 - MOST_CODES


def test_calls_are_counted_that_are_made_after_the_start():
    calls = Counter[tuple[str, str]]()
    made = DaemonMetrics(calls)
    calls["DescribeCluster", "throttled"] += 2
    made.cycle(0.1, view_of(nodes=1), RecoveryPolicy())
    labels = {"operation": "DescribeCluster", "result": "throttled"}
    assert made.registry.get_sample_value("hpctl_api_calls_total", labels) == 2


def test_what_cannot_be_counted_never_ends_the_loop():
    made = DaemonMetrics()
    made.cycle(0.1, None, RecoveryPolicy())
    assert made.registry.get_sample_value("hpctl_internal_errors_total", {"where": "metrics"}) == 1
