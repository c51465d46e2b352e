"""From a line in a node's kernel log to the node drained, and to its job running elsewhere.

A real Slurm, the real agents and the real daemon on loopback, eight nodes. Xid 79 is written to
a node's kernel log; slurmctld's own log says when the node was drained and when the job ran.

The job's rivals: `floor_s`, scancel and a fresh sbatch of the same job in the same sandbox, and
`plain_requeue_s`, what Slurm's own requeue takes after the node is set DOWN by hand, measured
meanwhile in a second sandbox without hpctl.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from datetime import datetime
from typing import Any

from msgspec import Struct

from benchmarks.lab import Lab, NotSeen, records
from benchmarks.table import Outcome, Row, median, p99
from hpctl.sandbox.api import Sandbox
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt

FAULTS = int(os.environ.get("BENCH_FAULTS", "30"))
JOB_FAULTS = int(os.environ.get("BENCH_JOB_FAULTS", "5"))
RECORDS = int(os.environ.get("BENCH_RECORDS", "8"))
"""Nodes that slurmctld knows; those that no slurmd stands behind are powered down."""
NODES = 8
DRAIN_MEDIAN_BAR_S, DRAIN_P99_BAR_S = 0.25, 1.0
ABOVE_FLOOR_BAR_S, SPEEDUP_BAR = 2.0, 40.0
EAGER = "SchedulerParameters=batch_sched_delay=0"
QUIET_S = 3.0
"""slurmctld looks for something to start once a second, and not sooner than batch_sched_delay (3 s)
after the last time: a fault or a restart begins in no particular phase of that."""
_phase = random.Random(79)
SITE: dict[str, Any] = {
    # Every fault of a run is on one of eight nodes: with the shipped budgets the second would
    # be held as a mass event and the rest by the hourly budget. What a fault costs is the same.
    "budgets": {
        "open_min": 8,
        "partition_min": 8,
        "per_hour": 1000,
        "offender_recoveries": 1000,
        "correlated_min": 1000,
        "launch_failures": 1000,
    },
    # The demo's site: replaced at first sight, and back in service in seconds.
    "catalogue": {"xid-79": {"ladder": ["replace"]}},
    "node": {"verify_healthy_s": 0.3, "remedy_after_s": 0.0},
    "job": {"prove_s": 1.0, "max_restarts": 1000},
    "cluster": {"busy_poll_s": 0.5},
}


BOOT_S = 5.0
"""Longer than a restart takes: a node that is back by then may have its job again."""


def run() -> Outcome:
    """Both sandboxes at once: plain Slurm waits two minutes while ours is measured."""
    tag = f"{time.time_ns() // 1_000_000 % 100_000_000:x}"
    plain = _Plain(f"bench-plain-{tag}")
    healing = Sandbox(
        f"bench-{tag}", nodes=NODES, mode="own", daemon=True, boot_time=BOOT_S, config=SITE,
        slurm_conf=records(NODES, RECORDS),
    )  # fmt: skip
    with plain.sandbox, healing:
        plain.start()
        lab = Lab(healing)
        try:
            outcome = _measure(lab, plain)
        except Exception:
            # The sandbox and its logs are about to go.
            print(lab.last_words(), file=sys.stderr)
            raise
    return outcome


def _measure(lab: Lab, plain: _Plain) -> Outcome:
    lab.until(lab.complete, 60, "every agent was heard once")
    idle = [_idle_fault(lab, number) for number in range(FAULTS)]
    stock = _restarts(lab)
    lab.configure(EAGER)
    eager = _restarts(lab)
    return _told(idle, stock, eager, plain.wait())


class _Restarts(Struct, frozen=True):
    """The restarts of one setting of slurmctld, and the floor beside them."""

    floors: list[float]
    jobs: list[dict[str, float]]

    @property
    def running(self) -> list[float]:
        return [job["running"] for job in self.jobs]


def _restarts(lab: Lab) -> _Restarts:
    """The floor and ours in turn."""
    found = _Restarts([], [])
    for _ in range(JOB_FAULTS):
        found.floors.append(_floor(lab))
        found.jobs.append(_job_fault(lab))
    return found


class _Plain:
    """Slurm alone: one node of a job is set DOWN, and Slurm runs the job again by itself."""

    def __init__(self, name: str) -> None:
        self.sandbox = Sandbox(name, nodes=4, agents=False)
        self._seconds: float | None = None
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="plain", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> float:
        """What it took, in seconds. Raises NotSeen."""
        self._thread.join(240)
        if self._seconds is None:
            raise NotSeen(f"plain Slurm did not run its job again: {self._trouble}")
        return self._seconds

    def _run(self) -> None:
        try:
            lab = Lab(self.sandbox)
            log = lab.log()
            job = lab.submit()
            lab.started(log, job, 30)
            node = str(lab.job(job).nodes[-1])
            begun = time.time()
            self.sandbox.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=GPU lost")
            self._seconds = lab.started(log, job, 220) - begun
        # Whatever it was, it belongs in the message of the thread that waits.
        except Exception as error:  # noqa: BLE001
            self._trouble = error


def _idle_fault(lab: Lab, number: int) -> dict[str, float]:
    """One fault on an idle node: seconds from the line to each thing that follows it."""
    node = lab.sandbox.nodes[number % len(lab.sandbox.nodes)]
    log = lab.log()
    line = lab.break_gpu(node)
    drained = log.wait(rf"node {node} state set to DRAIN", 20) - line
    heard = lab.health(node).last_heard.timestamp() - line
    log.close()
    rec = _recovery_of(lab, node, line)
    drain = find_last_step_attempt(rec.steps, StepKind.DRAIN)
    if drain is None or not lab.view().nodes[rec.node].drained:
        raise NotSeen(f"{node} is not drained by {rec.id}")
    lab.until(lab.healed, 60, f"{node} is back")
    return {
        "drained": drained,
        "report stored": heard,
        "recovery opened": _after(rec.opened, line),
        "drain step written down": _after(drain.started, line),
    }


def _job_fault(lab: Lab) -> dict[str, float]:
    """One fault under a job of two nodes, with six spares."""
    log = lab.log()
    job = lab.submit()
    lab.started(log, job, 30)
    _settle()
    node = str(lab.job(job).nodes[-1])
    line = lab.break_gpu(node)
    running = lab.started(log, job, 100) - line
    log.close()
    rec = _recovery_of(lab, node, line)
    if node in lab.job(job).nodes:
        raise NotSeen(f"job {job} runs on {node} again")
    lab.until(lab.healed, 60, f"{node} is back and job {job} has proved itself")
    (mine,) = (r for r in lab.state().jobs.values() if r.attempt.job == job)
    lab.cancel(job)
    lab.until(lambda: not lab.job(job).completing, 30, "the job is gone")
    return {"running": running, **_stages(lab.state().nodes[rec.id], mine, line)}


def _stages(node: NodeRecovery, job: JobRecovery, line: float) -> dict[str, float]:
    """The way of a job recovery by the journal's own clock."""
    down = find_last_step_attempt(node.steps, StepKind.DOWN)
    start = find_last_step_attempt(job.steps, StepKind.START_NOW)
    if down is None or down.resolved is None or start is None or start.resolved is None:
        raise NotSeen(f"{job.id} went another way: {[t.signal for t in job.trail]}")
    at = {trail.phase: _after(trail.at, line) for trail in job.trail}
    return {
        "node opened": _after(node.opened, line),
        "cordon seen": at["stopping"],
        "DOWN sent": _after(down.started, line),
        "DOWN answered": _after(down.resolved, line),
        "COMPLETING over": at["released"],
        "start-now sent": _after(start.started, line),
        "start-now answered": _after(start.resolved, line),
        "running seen": at["proving"],
        "start-now sent, times": float(start.attempt),
    }


def _floor(lab: Lab) -> float:
    """scancel and a fresh sbatch of the same job: nothing that restarts can be faster."""
    log = lab.log()
    job = lab.submit()
    lab.started(log, job, 30)
    _settle()
    begun = time.time()
    lab.cancel(job)
    fresh = lab.submit()
    taken = lab.started(log, fresh, 60) - begun
    log.close()
    lab.cancel(fresh)
    lab.until(lambda: not any(j.completing for j in lab.view().jobs.values()), 30, "both gone")
    return taken


def _settle() -> None:
    """A job that runs as jobs do: its processes are there, and its start is long forgotten."""
    time.sleep(QUIET_S + _phase.random() * QUIET_S)


def _recovery_of(lab: Lab, node: str, line: float) -> NodeRecovery:
    """The recovery that the fault opened, once its drain has been written down as done."""

    def found() -> list[NodeRecovery]:
        recoveries = lab.state().nodes.values()
        return [r for r in recoveries if r.node == node and r.opened.timestamp() >= line]

    lab.until(lambda: bool(found()), 10, f"a recovery of {node}")
    return found()[0]


def _after(at: datetime, line: float) -> float:
    return at.timestamp() - line


def _told(
    idle: list[dict[str, float]], stock: _Restarts, eager: _Restarts, plain_s: float
) -> Outcome:
    drained = [one["drained"] for one in idle]
    plain, line = "plain_requeue_s (Slurm alone)", "kernel line to node drained"
    worst = "max" if len(drained) < 100 else "p99"
    rows = [
        Row(f"{line}, median", median(drained), "s", plain, plain_s, DRAIN_MEDIAN_BAR_S),
        Row(f"{line}, {worst}", p99(drained), "s", plain, plain_s, DRAIN_P99_BAR_S),
        *_job_rows("stock", stock, plain_s),
        *_job_rows(EAGER.partition("=")[2], eager, plain_s),
    ]
    notes = [
        f"{len(idle)} faults on idle nodes; for each setting of slurmctld {len(stock.jobs)} under"
        " a job of two nodes with six spares, and as many floors; plain requeue once",
        f"drained: {_list(drained)}",
        f"idle, medians from the line: {_way(idle)}",
    ]
    for name, restarts in (("stock", stock), ("eager", eager)):
        floors = _list(restarts.floors)
        notes.append(f"{name}, running: {_list(restarts.running)}; floor: {floors}")
        notes.append(f"{name}, medians from the line: {_way(restarts.jobs)}")
    return Outcome("heal", rows, notes)


def _job_rows(name: str, restarts: _Restarts, plain_s: float) -> list[Row]:
    floor, ours = median(restarts.floors), median(restarts.running)
    what, rival = f"line to job running, {name}", "floor_s (scancel + sbatch)"
    times = Row(
        f"plain / ours, {name}",
        plain_s / ours,
        "x",
        "plain_requeue_s / floor_s",
        plain_s / floor,
        SPEEDUP_BAR,
        least=True,
    )
    return [
        Row(f"{what}, median", ours, "s", rival, floor, floor + ABOVE_FLOOR_BAR_S),
        Row(f"{what}, worst", max(restarts.running), "s", rival, floor),
        times,
    ]


def _list(values: list[float]) -> str:
    return " ".join(f"{v:.3f}" for v in values)


def _way(runs: list[dict[str, float]]) -> str:
    medians = {name: median([run[name] for run in runs]) for name in runs[0]}
    return ", ".join(f"{n} {v:.3f}" for n, v in sorted(medians.items(), key=lambda item: item[1]))
