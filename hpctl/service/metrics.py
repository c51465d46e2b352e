"""What the daemon tells Prometheus, derived from the same state that `explain` reads.

The loop calls `cycle` after each cycle: new moves and steps of recoveries are counted, and every
SAMPLE_S seconds nodes and jobs. A scrape only prints what was counted, so it costs the same on a
cluster of ten thousand nodes and never waits for the loop. Counters begin at zero with the
process, as Prometheus expects. Series are bounded: every label has the values of a table of the
code, but `partition`, of which MOST_PARTITIONS have series of their own.
"""

import math
import pkgutil
import time
from collections import Counter as Counted
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, product, takewhile
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from hpctl import __version__
from hpctl.engine.job_losses import count_gpus_of_nodes
from hpctl.engine.journal.state import EngineState
from hpctl.engine.loop import RecoveryCycleResult
from hpctl.engine.plan import ESCALATED, GATE
from hpctl.engine.view import PlanningView, SlurmReadScope
from hpctl.faults.catalogue import SITE_RULE
from hpctl.faults.table import ROWS
from hpctl.service.alert_gauges import OTHER, AlertGauges
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary import change, job_recovery, node_recovery
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.identity import JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.pause import find_active_pauses
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryStepRecord, RecoveryTransitionRecord, StepKind
from hpctl.vocabulary.slurm_facts import ENDED, SlurmJob
from hpctl.vocabulary.spares_reservation import RESERVATION
from hpctl.vocabulary.trouble import TroubleKind
from hpctl.wire.heads import AGENT_METRICS_PORT

_STEPS: Final = {
    **{kind: str(kind) for kind in StepKind},
    **dict.fromkeys((StepKind.ADD, StepKind.REMOVE, StepKind.RESERVE), "capacity"),
    **dict.fromkeys((StepKind.MAINTAIN,), "maintenance"),
    **dict.fromkeys(
        (StepKind.ISOLATE, StepKind.RESUME, StepKind.END_TEST, StepKind.UNRESERVE), "test"
    ),
}
"""The label of a step: those of a node's test count as one, and those of a group's size."""
SAMPLE_S: Final = 10.0
"""How often nodes and jobs are counted."""
MOST_PARTITIONS: Final = 100
LONGEST: Final = timedelta(hours=1)
"""A fault's first line is no older than this: the clock of a node may say anything."""
MISSED_S: Final = 300.0
"""After a longer gap it is unknown for how long jobs held their nodes."""

_FAULTS: Final = ("xid", "sxid", "gpu", "kernel", "host", "efa", "rdma", "neuron", "hma", "peer")
_TROUBLES: Final = (
    *(
        TroubleKind.CRASH,
        TroubleKind.GPU_MEMORY,
        TroubleKind.HOST_MEMORY,
        TroubleKind.CUDA,
        TroubleKind.NETWORK,
        TroubleKind.HANG,
    ),
    *(TroubleKind.NAN, TroubleKind.STORAGE, TroubleKind.DISK_FULL, TroubleKind.CORRUPTION),
)
CLASSES: Final = (*_FAULTS, "slurm", "site", *map(str, _TROUBLES), OTHER)
"""Why something is recovered: the family of the rule that called the node faulty, or what went
wrong with the run."""
OPERATIONS: Final = (
    *("DescribeCluster", "ListClusterNodes", "DescribeClusterNode", "BatchRebootClusterNodes"),
    *("BatchReplaceClusterNodes", "BatchAddClusterNodes", "BatchDeleteClusterNodes"),
    "UpdateCluster",
)
RESULTS: Final = ("ok", "throttled", "error")
_NODE_PHASES: Final = tuple(
    phase
    for phase in node_recovery.NodeRecoveryPhase
    if phase is not node_recovery.NodeRecoveryPhase.REMOVED
)
"""A daemon deletes a node to make its group smaller, which counts as a change."""
_KINDS: Final[Mapping[str, tuple[tuple[StrEnum, ...], Container[str]]]] = {
    "node": (_NODE_PHASES, node_recovery.ENDS),
    "job": (tuple(job_recovery.JobRecoveryPhase), job_recovery.ENDS),
    "change": (tuple(change.ClusterChangePhase), change.ENDS),
}

_FAMILY: Final = {"node": "slurm", "kernel.xid": "xid", "kernel.sxid": "sxid"}

Recovery = NodeRecovery | JobRecovery | ClusterChange


def find_detection_rule_family(rule: RuleId) -> str:
    """Return the family of a rule, one of CLASSES."""
    row = ROWS.get(rule)
    if row is None:
        return "site" if SITE_RULE.match(rule) else OTHER
    family = _FAMILY.get(row.check, row.check.partition(".")[0])
    return family if family in CLASSES else OTHER


class _MetricDefinition(Struct, frozen=True):
    """What a series means, and the names of its labels."""

    text: str
    labels: tuple[str, ...]


def _load_metric_definitions() -> dict[str, _MetricDefinition]:
    """Return every series, by the table of metrics.md."""
    table = (pkgutil.get_data(__package__, "metrics.md") or b"").decode()
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| h")]
    return {
        name.strip(): _MetricDefinition(text.strip(), tuple(labels.split()))
        for name, labels, text in rows
    }


_SERIES: Final = _load_metric_definitions()


def _initialize_metric_label_values(
    series: Counter | Gauge | Histogram, *values: Iterable[str]
) -> None:
    """Create what a series has for each combination of the values of its labels."""
    for labels in product(*values):
        series.labels(*labels)


class _DaemonMetricSet:
    """All series, with the values that their labels can have: each exists from the start, so that
    a missing one means a dead daemon."""

    def __init__(self, registry: CollectorRegistry, gauge: Callable[[str], Gauge]) -> None:
        def make_counter(name: str) -> Counter:
            series = _SERIES[name]
            return Counter(name, series.text, series.labels, registry=registry)

        def make_histogram(name: str, *buckets: float) -> Histogram:
            series = _SERIES[name]
            return Histogram(name, series.text, series.labels, registry=registry, buckets=buckets)

        self.build, self.leader = gauge("hpctl_build_info"), gauge("hpctl_leader")
        self.cycles = make_histogram("hpctl_cycle_seconds", 0.03, 0.1, 0.3, 1.0, 10.0)
        self.readings = make_counter("hpctl_slurm_readings")
        self.failed = make_counter("hpctl_cycles_failed")
        self.journal = make_histogram("hpctl_journal_append_seconds", 0.003, 0.01, 0.1, 1.0)
        self.flaws = make_counter("hpctl_internal_errors")
        self.pauses = gauge("hpctl_pause_end_seconds")
        self.quarantined = gauge("hpctl_quarantined")
        self.opened = make_counter("hpctl_recoveries_opened")
        self.open = gauge("hpctl_recoveries_open")
        self.ended = make_counter("hpctl_recoveries_ended")
        self.steps = make_counter("hpctl_steps")
        self.doubt = gauge("hpctl_steps_in_doubt")
        self.api = make_counter("hpctl_api_calls")
        self.stage = make_histogram("hpctl_recovery_stage_seconds", 1.0, 5.0, 20.0, 120.0)
        self.recovery = make_histogram("hpctl_job_recovery_seconds", 1.0, 5.0, 20.0, 120.0)
        self.repair = make_histogram(
            "hpctl_node_recovery_seconds", 300, 900, 1800, 3600, 14400, 86400
        )
        self.drained = make_counter("hpctl_drained_node_seconds")
        self.lost = make_counter("hpctl_lost_gpu_seconds")
        self.missed = make_counter("hpctl_partition_lost_gpu_seconds")
        self.held = make_counter("hpctl_job_gpu_seconds")
        self.ratio = gauge("hpctl_effective_training_time_ratio")
        self.spares = gauge("hpctl_spares")
        self.agents = gauge("hpctl_agents")
        self.notifications = make_counter("hpctl_notifications")
        self.nodes = gauge("hpctl_nodes")
        self.gpus = gauge("hpctl_gpus")
        self.jobs = gauge("hpctl_jobs")
        # The training operator's own names, so that dashboards made for it work.
        operator = "hyperpod_training_operator_jobs"
        self.created, self.deleted = (
            make_counter(f"{operator}_created"),
            make_counter(f"{operator}_deleted"),
        )
        self.successful = make_counter(f"{operator}_successful")
        self.broken = make_counter(f"{operator}_failed")
        self.restarted = make_counter(f"{operator}_restarted")
        self.restart = gauge(f"{operator}_restart_latency")
        self.detection = gauge(f"{operator}_fault_detection_latency")
        self.partitions: dict[str, str] = {OTHER: OTHER}
        self._initialize_all_metric_labels()

    def _initialize_all_metric_labels(self) -> None:
        walls = ("parse", "assess", "policy", "plan", "advance", "execute", "fold", "metrics")
        _initialize_metric_label_values(self.flaws, walls)
        _initialize_metric_label_values(self.readings, [str(reading) for reading in SlurmReadScope])
        _initialize_metric_label_values(self.quarantined, ("no", "yes"))
        _initialize_metric_label_values(self.lost, CLASSES)
        _initialize_metric_label_values(self.opened, ["node"], [*_FAULTS, "slurm", "site", OTHER])
        _initialize_metric_label_values(
            self.opened, ["job"], [str(name) for name in (TroubleKind.NODE, *_TROUBLES, OTHER)]
        )
        for kind, (phases, ends) in _KINDS.items():
            _initialize_metric_label_values(
                self.ended, [kind], [str(phase) for phase in phases if phase in ends]
            )
            _initialize_metric_label_values(
                self.open, [kind], [str(phase) for phase in phases if phase not in ends]
            )
        _initialize_metric_label_values(
            self.steps, set(_STEPS.values()), [str(outcome) for outcome in OutcomeKind]
        )
        _initialize_metric_label_values(self.api, OPERATIONS, RESULTS)
        _initialize_metric_label_values(self.stage, ("opened", "drained", "released", "running"))
        _initialize_metric_label_values(
            self.drained, ("healthy", "remedied", "escalated", "cancelled")
        )
        _initialize_metric_label_values(self.spares, ("configured", "reserved"))
        _initialize_metric_label_values(self.agents, ("heard", "silent", "never", "out_of_service"))

    def partition(self, name: str, *, new: bool = False) -> str:
        """Return the label's value for a partition; OTHER for one too many, and for one that no
        node belongs to: a user may write anything for a job's. With `new`, a node belongs to it."""
        if name not in self.partitions and new:
            room = len(self.partitions) < MOST_PARTITIONS
            self.partitions[name] = make_printable(name)[:64] if room else OTHER
        return self.partitions.get(name, OTHER)

    def update_effective_training_time_ratio(self, partition: str) -> None:
        """What of the GPU time of a partition's jobs was not lost."""
        held = self.held.labels(partition)._value.get()
        lost = self.missed.labels(partition)._value.get()
        self.ratio.labels(partition).set(held / (held + lost) if held else 1.0)


class DaemonMetrics:
    """One registry, which the intake prints at /metrics beside its own counters. For the loop."""

    def __init__(
        self,
        calls: Mapping[tuple[str, str], int] | None = None,
        agent_port: int = AGENT_METRICS_PORT,
        leader: Callable[[], bool] | None = None,
        state_dir: Path | None = None,
    ) -> None:
        """`calls`: how often each operation of the API was called, with which result. `leader` is
        asked at each scrape whether this daemon leads. `state_dir`: of the daemon, whose file
        system is watched."""
        self._view: PlanningView | None = None
        self._agent_port = agent_port
        # They would be a second series for each counter, which has no reader.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()

        def make_gauge(name: str) -> Gauge:
            series = _SERIES[name]
            return Gauge(name, series.text, series.labels, registry=self.registry)

        self._counts = _DaemonMetricSet(self.registry, make_gauge)
        self._gauges = AlertGauges(make_gauge, leader, state_dir)
        self.failed, self.journal = self._counts.failed, self._counts.journal
        self.notifications = self._counts.notifications
        if leader is not None:
            self._counts.leader.set_function(lambda: float(leader()))
        self._recoveries = _RecoveryMetricsCounter(self._counts)
        self._sampler = _ClusterStateSampler(self._counts)
        # Empty at first, and the same mapping as it fills.
        self._api_calls = {} if calls is None else calls
        self._api_counted = Counted[tuple[str, str]]()
        self._built: tuple[str, ...] = ()

    def begin(self, state: EngineState) -> None:
        """Count what happens from now on."""
        self._recoveries.begin(state)
        self._gauges.begin()

    def targets(self) -> list[dict[str, Any]]:
        """Return the agents that were ever heard, for Prometheus' HTTP service discovery. Any
        thread."""
        view = self._view
        if view is None:
            return []
        found = []
        for name, node in view.scheduler.nodes.items():
            if name not in view.health or not node.address:
                continue
            host = f"[{node.address}]" if ":" in node.address else node.address
            instance = view.instance(name)
            group = view.provider.groups.get(instance.group) if instance else None
            labels = {
                "instance": name,
                "instance_group": instance.group if instance else "",
                "instance_type": group.instance_type if group else "",
                "partition": ",".join(sorted(node.partitions)),
            }
            labels = {key: make_printable(text)[:128] for key, text in labels.items() if text}
            found.append({"targets": [f"{host}:{self._agent_port}"], "labels": labels})
        return found

    def cycle(
        self,
        seconds: float,
        view: PlanningView,
        policy: RecoveryPolicy,
        flaws: Iterable[ItemProcessingFailure] = (),
    ) -> None:
        """Take one cycle in. Never raises: what cannot be counted is counted as a flaw."""
        self._view = view
        self._gauges.record_cycle_end()
        self._counts.cycles.observe(seconds)
        for flaw in flaws:
            self._counts.flaws.labels(flaw.where).inc()
        if (
            call_and_capture_failure(
                "metrics", "metrics", self._record_planning_view_metrics, (view, policy), shown=""
            )
            is not None
        ):
            self._counts.flaws.labels("metrics").inc()

    def record_cycle_result(self, seconds: float, result: RecoveryCycleResult) -> None:
        """Take in what a cycle of the loop saw, which lasted so long. Never raises."""
        self.cycle(seconds, result.view, result.policy, result.flaws)
        self._gauges.record_read_errors(result.slurm_trouble, result.cloud_trouble)

    def take_troubles(self, troubles: Mapping[str, str]) -> None:
        """Take what each part of the daemon reports; empty: no trouble."""
        self._gauges.take_troubles(troubles)

    def _count_pauses(self, state: EngineState, now: datetime) -> None:
        self._counts.pauses.clear()
        for pause in find_active_pauses(state.pauses, now):
            labels = (pause.scope, pause.by, pause.why)
            ends = pause.until.timestamp() if pause.until is not None else 0
            self._counts.pauses.labels(*labels).set(ends)

    def _record_planning_view_metrics(self, seen: tuple[PlanningView, RecoveryPolicy]) -> None:
        view, policy = seen
        self._counts.readings.labels(str(view.reading)).inc()
        state = view.state
        if self._built != (built := (__version__, str(policy.mode))):
            self._counts.build.clear()
            self._counts.build.labels(*built).set(1)
            self._built = built
        self._count_pauses(state, view.scheduler.valid_at)
        rules = [hold.rule for hold in state.holds.values() if hold.gate == GATE]
        self._counts.quarantined.labels("no").set(len(rules) - rules.count(ESCALATED))
        self._counts.quarantined.labels("yes").set(rules.count(ESCALATED))
        self._gauges.look(view)
        for key, made in list(self._api_calls.items()):
            if made > self._api_counted[key] and key[0] in OPERATIONS:
                self._counts.api.labels(*key).inc(made - self._api_counted[key])
                self._api_counted[key] = made
        self._recoveries.look(view)
        self._sampler.look(view, policy)


class _RecoveryMetricsCounter:
    """Counts what recoveries and changes did since the last look.

    What had happened when the daemon started is not counted again.
    """

    def __init__(self, counts: _DaemonMetricSet) -> None:
        self._counts = counts
        self._events = -1
        self._known: set[RecoveryId] = set()
        self._before: dict[RecoveryId, Recovery] = {}
        self._gpus: dict[RecoveryId, int] = {}

    def begin(self, state: EngineState) -> None:
        """What is in it has happened already."""
        self._before.clear()
        for recs, open_now in _list_recoveries_with_open_ids(state):
            self._known.update(recs)
            self._before |= {rid: recs[rid] for rid in open_now}

    def look(self, view: PlanningView) -> None:
        """Look where the journal has grown: at what is new, and at what was open."""
        if view.state.events == self._events:
            return
        self._events = view.state.events
        before, self._before = self._before, {}
        open_phases = Counted[tuple[str, str]]()
        for recs, open_now in _list_recoveries_with_open_ids(view.state):
            new = [*takewhile(lambda rid: rid not in self._known, reversed(recs))]
            self._known.update(new)
            for rid in (*(rid for rid in before if rid in recs), *reversed(new)):
                self._count_recovery_transitions(before.get(rid), recs[rid], view)
            open_phases.update(_make_recovery_metric_labels(recs[rid]) for rid in open_now)
            self._before |= {rid: recs[rid] for rid in open_now}
        for kind, (phases, ends) in _KINDS.items():
            for phase in phases:
                if phase not in ends:
                    self._counts.open.labels(kind, str(phase)).set(open_phases[kind, str(phase)])
        self._gpus = {rid: n for rid, n in self._gpus.items() if rid in self._before}
        steps = chain.from_iterable(rec.steps for rec in self._before.values())
        self._counts.doubt.set(sum(step.in_doubt for step in steps))

    def _count_recovery_transitions(
        self, before: Recovery | None, rec: Recovery, view: PlanningView
    ) -> None:
        kind, phase = _make_recovery_metric_labels(rec)
        old: tuple[RecoveryStepRecord, ...] = before.steps if before is not None else ()
        for number, step in enumerate(rec.steps):
            news = number >= len(old) or old[number].outcome is None
            if news and step.outcome is not None:
                self._counts.steps.labels(_STEPS[step.kind], str(step.outcome.kind)).inc()
        if isinstance(rec, JobRecovery) and rec.is_without_fault:
            return
        if before is None and not isinstance(rec, ClusterChange) and kind != "change":
            self._counts.opened.labels(kind, _find_recovery_fault_class(rec)).inc()
        if isinstance(rec, JobRecovery):
            job = view.scheduler.jobs.get(rec.attempt.job)
            gpus = count_gpus_of_nodes(
                (job.nodes if job else ()) or rec.ran_on, view.scheduler.nodes
            )
            self._gpus[rec.id] = max(gpus, self._gpus.get(rec.id, 0))
        if not rec.ended or (before is not None and before.ended):
            return
        self._counts.ended.labels(kind, phase).inc()
        if isinstance(rec, NodeRecovery) and not (
            rec.is_for_capacity_change or rec.is_for_maintenance
        ):
            self._count_ended_node_recovery(rec)
        elif isinstance(rec, JobRecovery):
            self._count_ended_job_recovery(rec, view.state)

    def _count_ended_node_recovery(self, rec: NodeRecovery) -> None:
        drained = _find_recovery_signal_time(
            rec.trail, node_recovery.NodeRecoverySignal.CORDON_SEEN
        )
        returned = rec.phase is node_recovery.NodeRecoveryPhase.RETURNED
        if returned:
            self._counts.repair.observe(_compute_seconds_between(rec.opened, rec.since))
        if drained is not None:
            given_back = rec.trail[-1].signal in _GIVEN_BACK
            found = "healthy" if given_back and not rec.remedied else "remedied"
            if not returned and not given_back:
                found = str(rec.phase)
            self._counts.drained.labels(found).inc(_compute_seconds_between(drained, rec.since))

    def _count_ended_job_recovery(self, rec: JobRecovery, state: EngineState) -> None:
        """Its stages, where it ran again, and what it lost, until then or to its end."""
        cause = state.nodes.get(rec.cause)
        opened = cause.opened if cause is not None else rec.opened
        line = rec.trouble.at if rec.trouble is not None else opened
        if cause is not None and cause.findings:
            line = max(finding.first for finding in cause.findings)
        line = line if timedelta() <= opened - line <= LONGEST else opened
        running = max((move.at for move in rec.trail if move.signal in _RUNS_AGAIN), default=None)
        stages = {
            "opened": opened,
            "drained": _find_recovery_signal_time(
                cause.trail, node_recovery.NodeRecoverySignal.CORDON_SEEN
            )
            if cause
            else None,
            "released": next(
                (m.at for m in rec.trail if m.phase == job_recovery.JobRecoveryPhase.RELEASED), None
            ),
            "running": running,
        }
        if running is not None:
            last = line
            for stage, at in stages.items():
                if at is not None:
                    self._counts.stage.labels(stage).observe(_compute_seconds_between(last, at))
                    last = max(last, at)
            self._counts.recovery.observe(_compute_seconds_between(line, running))
            self._counts.restarted.inc()
            self._counts.restart.set(_compute_seconds_between(line, running))
            self._counts.detection.set(_compute_seconds_between(line, opened))
        lost = _compute_seconds_between(line, running or rec.since) + _compute_redone_work_seconds(
            rec, line, state
        )
        gpu_seconds = lost * self._gpus.get(rec.id, 0)
        why = (
            find_detection_rule_family(cause.rule)
            if cause is not None
            else _find_recovery_fault_class(rec)
        )
        self._counts.lost.labels(why if why in CLASSES else OTHER).inc(gpu_seconds)
        self._counts.missed.labels(self._counts.partition(rec.partition)).inc(gpu_seconds)


def _list_recoveries_with_open_ids(
    state: EngineState,
) -> Iterator[tuple[dict[RecoveryId, Any], Collection[RecoveryId]]]:
    """Yield the recoveries and changes, and the ids of those that are open."""
    yield state.nodes, state.open_nodes.values()
    yield state.jobs, state.open_jobs.values()
    yield state.changes, state.open_changes.values()


def _make_recovery_metric_labels(rec: Recovery) -> tuple[str, str]:
    """Return the kind and the phase of a recovery or change. A removal is a change of capacity."""
    if isinstance(rec, ClusterChange):
        return "change", str(rec.phase)
    if isinstance(rec, JobRecovery):
        return "job", str(rec.phase)
    return (
        ("change", str(change.find_node_removal_phase(rec)))
        if rec.is_for_capacity_change
        else ("node", str(rec.phase))
    )


_GIVEN_BACK: Final = (
    node_recovery.NodeRecoverySignal.RETURN_SEEN,
    node_recovery.NodeRecoverySignal.WITHDRAWN,
    node_recovery.NodeRecoverySignal.OPERATOR_TOOK_OVER,
)
_RUNS_AGAIN: Final = (
    job_recovery.JobRecoverySignal.RUNNING_SEEN,
    job_recovery.JobRecoverySignal.WENT_ON,
)


def _find_recovery_fault_class(rec: NodeRecovery | JobRecovery) -> str:
    if isinstance(rec, NodeRecovery):
        return find_detection_rule_family(rec.rule)
    if rec.trouble is None:
        return str(TroubleKind.NODE)
    return str(rec.trouble.kind) if rec.trouble.kind in _TROUBLES else OTHER


def _compute_seconds_between(begin: datetime, end: datetime) -> float:
    """Seconds; none where a clock was set back."""
    return max(0.0, (end - begin).total_seconds())


def _find_recovery_signal_time(
    trail: Iterable[RecoveryTransitionRecord], signal: str
) -> datetime | None:
    return next((move.at for move in trail if move.signal == signal), None)


def _compute_redone_work_seconds(rec: JobRecovery, line: datetime, state: EngineState) -> float:
    """Return seconds of work after the last complete checkpoint that its supervisor reported; 0
    where it reported none."""
    reports = [
        (e.at, e.report.progress)
        for e in state.reports.get(rec.attempt.job, ())
        if e.at <= line
        and e.report.progress is not None
        and e.report.restarts == rec.attempt.restarts
    ]
    if not reports:
        return 0.0
    return _compute_seconds_between(
        min(at for at, progress in reports if progress == reports[-1][1]), line
    )


class _ClusterStateSampler:
    """Counts nodes and jobs, every SAMPLE_S seconds."""

    def __init__(self, counts: _DaemonMetricSet) -> None:
        self._counts = counts
        self._last = -math.inf
        self._jobs: dict[tuple[JobId, datetime], bool | None] | None = None
        """Of each registered job: None while it is not over, False where it was over when it was
        counted last, True once that is counted."""

    def look(self, view: PlanningView, policy: RecoveryPolicy) -> None:
        """Count where it is due."""
        now = time.monotonic()
        passed_s, slurm = now - self._last, view.scheduler
        if passed_s < SAMPLE_S or not slurm.nodes:
            return
        self._last = now
        spares = sum(len(v) for k, v in view.reservations.items() if k.startswith(RESERVATION))
        self._counts.spares.labels("reserved").set(spares)
        self._counts.spares.labels("configured").set(sum(policy.spares.values()))
        self._update_agent_gauges(view, slurm.valid_at, policy.ages.silent_s)
        gpus = self._update_node_gauges(view)
        self._update_job_metrics(view, gpus, passed_s if passed_s <= MISSED_S else 0.0)
        self._count_training_jobs(view)

    def _update_agent_gauges(self, view: PlanningView, now: datetime, silent_s: float) -> None:
        expected = [n for n in view.scheduler.nodes.values() if not n.is_powered_down]
        awaited = [
            n.name for n in expected if n.in_service and not view.state.is_node_in_recovery(n.name)
        ]
        heard = [view.health[name].last_heard for name in awaited if name in view.health]
        silent = sum(_compute_seconds_between(at, now) > silent_s for at in heard)
        self._counts.agents.labels("heard").set(len(heard) - silent)
        self._counts.agents.labels("silent").set(silent)
        self._counts.agents.labels("never").set(len(awaited) - len(heard))
        self._counts.agents.labels("out_of_service").set(len(expected) - len(awaited))

    def _update_node_gauges(self, view: PlanningView) -> dict[NodeName, int]:
        """Return nodes and GPUs by partition; answers the GPUs of each node."""
        found, gpus, each = Counted[tuple[str, str]](), Counted[str](), dict[NodeName, int]()
        for name, node in view.scheduler.nodes.items():
            each[name] = next((n for kind, n in node.has.gres if kind == "gpu"), 0)
            state = "in_service" if node.in_service else "down" if node.down else "drained"
            state = "recovering" if view.state.is_node_in_recovery(name) else state
            for partition in node.partitions:
                label = self._counts.partition(partition, new=True)
                found[label, state] += 1
                gpus[label] += each[name]
        for label in self._counts.partitions.values():
            for state in ("in_service", "recovering", "drained", "down"):
                self._counts.nodes.labels(label, state).set(found[label, state])
            self._counts.gpus.labels(label).set(gpus[label])
        return each

    def _update_job_metrics(
        self, view: PlanningView, gpus: Mapping[NodeName, int], passed_s: float
    ) -> None:
        found, held = Counted[tuple[str, str]](), Counted[str]()
        for job in view.scheduler.jobs.values():
            label = self._counts.partition(job.partition.partition(",")[0])
            if job.running:
                found[label, "running"] += 1
                held[label] += sum(gpus.get(name, 0) for name in job.nodes)
            found[label, "pending"] += job.state == "PENDING"
            found[label, "recovering"] += job.id in view.state.open_jobs
        for label in self._counts.partitions.values():
            for state in ("running", "pending", "recovering"):
                self._counts.jobs.labels(label, state).set(found[label, state])
            self._counts.held.labels(label).inc(held[label] * passed_s)
            self._counts.update_effective_training_time_ratio(label)

    def _count_training_jobs(self, view: PlanningView) -> None:
        """The training operator's counters. A job that is over may be started again by hpctl at
        once: it is counted when it is found over twice."""
        first, before = self._jobs is None, self._jobs or {}
        self._jobs = {}
        for number in view.ruled:
            job = view.scheduler.jobs[number]
            key, over = (number, job.submit), job.state in ENDED
            if key not in before and not first:
                self._counts.created.inc()
            counted = before.get(key, first or None) if over else None
            if over and number not in view.state.open_jobs:
                if counted is False:
                    self._count_finished_training_job(job)
                counted = counted is not None
            self._jobs[key] = counted

    def _count_finished_training_job(self, job: SlurmJob) -> None:
        if job.state == "COMPLETED":
            self._counts.successful.inc()
        elif job.state == "CANCELLED":
            self._counts.deleted.inc()
        else:
            self._counts.broken.inc()
