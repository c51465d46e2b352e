"""Gauges of what is so now, and since when: what alerts rest on.

A rule on the growth of a counter falls silent while the thing that it tells of still is so, and a
`for` begins again with each restart. So each of these is a state, and where the journal knows when
that began, the gauge is that time: a restart or a takeover changes no alert. Bounded: one series
for each value of a table of the code, and MOST_NAMED each for nodes and jobs by name.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from prometheus_client import Gauge

from hpctl.engine.gates import GATES
from hpctl.engine.journal.state import EngineState
from hpctl.engine.plan import GATE
from hpctl.engine.remedies import REMEDY_GATES
from hpctl.engine.view import PlanningView
from hpctl.engine.waiting import find_jobs_awaiting_operator, find_nodes_awaiting_operator
from hpctl.toolkit.bounds import add_seconds_within_bounds, make_printable
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.pause import find_active_cluster_pause

LOOK_S: Final = 10.0
"""How often nodes and jobs that wait are looked for."""
MOST_NAMED: Final = 50
"""Nodes, and jobs, with a series of their own: those that have waited longest."""
OTHER: Final = "other"
"""The label's value for what has no separate series."""
GATE_NAMES: Final = (*(row.name for row in GATES), *(row.name for row in REMEDY_GATES), GATE)
PARTS: Final = ("slurm", "cloud", "configuration", "cycle", "jobs", "lock", "notify", "page")
"""What of the daemon can be in trouble."""
PAUSED_BY: Final = ("operator", "kill_switch")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Named = Mapping[tuple[str, str], float]


def make_gate_label(gate: str) -> str:
    """Return the label's value for a gate."""
    return gate if gate in GATE_NAMES else OTHER


class AlertGauges:
    """Sets the gauges, after each cycle and at each scrape. `gauge` makes one by its name."""

    def __init__(
        self,
        gauge: Callable[[str], Gauge],
        leads: Callable[[], bool] | None = None,
        state_dir: Path | None = None,
    ) -> None:
        """`leads` is asked at each scrape whether this daemon leads. `state_dir`: whose file system
        is watched; None: none is."""
        self._leads = leads
        self._cycle_ended = time.monotonic()
        self._looked = -math.inf
        self._named: _Named = {}
        self._stopped_since = 0.0
        self._waiting = gauge("hpctl_waiting")
        self._waiting_since = gauge("hpctl_waiting_since_timestamp_seconds")
        self._holds = gauge("hpctl_holds")
        self._holds_since = gauge("hpctl_holds_since_timestamp_seconds")
        self._paused = gauge("hpctl_paused")
        self._paused_at = gauge("hpctl_paused_since_timestamp_seconds")
        self._trouble = gauge("hpctl_trouble")
        gauge("hpctl_cycle_age_seconds").set_function(self._measure_cycle_age_s)
        gauge("hpctl_time_seconds").set_function(time.time)
        free = gauge("hpctl_state_dir_free_ratio")
        if state_dir is not None:
            free.set_function(lambda: read_free_disk_ratio(state_dir))
        for kind in ("node", "job"):
            self._waiting.labels(kind)
        for gate in (*GATE_NAMES, OTHER):
            self._holds.labels(gate)
            self._holds_since.labels(gate)
        for by in PAUSED_BY:
            self._paused_at.labels(by)
        for part in PARTS:
            self._trouble.labels(part)

    def begin(self) -> None:
        """This daemon leads from now on: the age of its cycles counts from here."""
        self._cycle_ended = time.monotonic()

    def record_cycle_end(self) -> None:
        """A cycle has ended well."""
        self._cycle_ended = time.monotonic()

    def look(self, view: PlanningView) -> None:
        """Take in what a cycle saw."""
        self._update_hold_gauges(view.state)
        self._update_pause_gauge(view)
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._update_awaiting_operator_gauges(view)

    def record_read_errors(self, slurm_trouble: str, cloud_trouble: str) -> None:
        """Take why Slurm or the cloud could not be read; empty where they were."""
        self.take_troubles({"slurm": slurm_trouble, "cloud": cloud_trouble})

    def take_troubles(self, troubles: Mapping[str, str]) -> None:
        """Take what parts of the daemon report; empty: no trouble."""
        for part, text in troubles.items():
            if part in PARTS:
                self._trouble.labels(part).set(bool(text))

    def _measure_cycle_age_s(self) -> float:
        """Return seconds since a cycle of the leader ended; 0 on a standby."""
        if self._leads is not None and not self._leads():
            return 0.0
        return max(0.0, time.monotonic() - self._cycle_ended)

    def _update_hold_gauges(self, state: EngineState) -> None:
        counts = dict.fromkeys((*GATE_NAMES, OTHER), 0)
        oldest = dict.fromkeys((*GATE_NAMES, OTHER), math.inf)
        for hold in state.holds.values():
            gate = make_gate_label(hold.gate)
            counts[gate] += 1
            oldest[gate] = min(oldest[gate], hold.at.timestamp())
        for gate, count in counts.items():
            self._holds.labels(gate).set(count)
            self._holds_since.labels(gate).set(oldest[gate] if count else 0.0)

    def _update_pause_gauge(self, view: PlanningView) -> None:
        pause = find_active_cluster_pause(view.state.pauses, view.scheduler.valid_at)
        self._paused.set(pause is not None)
        # A pause with an end is a plan: it ends without a command, and raises no alert.
        endless = pause is not None and pause.until is None
        self._paused_at.labels("operator").set(pause.at.timestamp() if pause and endless else 0.0)
        if not view.stopped:
            self._stopped_since = 0.0
        elif not self._stopped_since:
            self._stopped_since = time.time()
        self._paused_at.labels("kill_switch").set(self._stopped_since)

    def _update_awaiting_operator_gauges(self, view: PlanningView) -> None:
        now = add_seconds_within_bounds(EPOCH, time.time())
        nodes = find_nodes_awaiting_operator(view.state, view.scheduler.nodes)
        jobs = find_jobs_awaiting_operator(view.state, view.scheduler.jobs, now)
        found = {
            "node": [(make_printable(rec.node)[:64], rec.since) for rec in nodes],
            "job": [(str(one.job), one.since) for one in jobs],
        }
        named: dict[tuple[str, str], float] = {}
        for kind, waiting in found.items():
            self._waiting.labels(kind).set(len(waiting))
            named.update(_label_longest_waiting(kind, waiting))
        for labels in self._named.keys() - named.keys():
            with contextlib.suppress(KeyError):
                self._waiting_since.remove(*labels)
        for labels, since in named.items():
            self._waiting_since.labels(*labels).set(since)
        self._named = named


def _label_longest_waiting(
    kind: str, waiting: Sequence[tuple[str, datetime]]
) -> dict[tuple[str, str], float]:
    """Return the series of those that have waited longest; the others share one."""
    named = {(kind, name): since.timestamp() for name, since in waiting[:MOST_NAMED]}
    rest = [since.timestamp() for _, since in waiting[MOST_NAMED:]]
    if rest:
        named[kind, OTHER] = min(rest)
    return named


def read_free_disk_ratio(directory: Path) -> float:
    """Return the share of a file system that is free to its ordinary users; NaN where it cannot be
    read."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return math.nan
    return found.f_bavail / found.f_blocks if found.f_blocks else math.nan
