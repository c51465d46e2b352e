"""What the daemon tells Prometheus, derived from the same journal that `explain` reads."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hpctl.core.journal import State
from hpctl.core.plan import ESCALATED, GATE
from hpctl.core.walls import Flaw


class Metrics:
    """One registry, which the intake prints at /metrics beside its own counters."""

    def __init__(self) -> None:
        """Every series exists from the start, so that a missing one means a dead daemon."""
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._seconds = Histogram(
            "hpctl_cycle_seconds",
            "One cycle of the loop, reading Slurm included.",
            registry=registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        )
        self._open = gauge("hpctl_recoveries_open", "Open recoveries and changes.", "kind")
        ended = "Ended recoveries and changes, of the last 90 days or what budgets look back on."
        self._ended = gauge("hpctl_recoveries_ended", ended, "kind", "end")
        self._holds = gauge("hpctl_holds", "Candidates held by a gate.")
        self.leader = gauge("hpctl_leader", "1 while this daemon leads, 0 while it stands by.")
        self._paused = gauge("hpctl_paused", "1 while paused.")
        left_alone = "Nodes and jobs left alone because of an internal error; "
        left_alone += "lasting: for over 10 minutes."
        self._quarantined = gauge("hpctl_quarantined", left_alone, "lasting")
        raised = "Nodes, jobs, requests and calls that raised, each inside its wall, once a cycle."
        self._flaws = Counter("hpctl_internal_errors", raised, ["where"], registry=registry)
        failed = "Cycles that failed as a whole and were tried again from the facts."
        self.failed = Counter("hpctl_cycles_failed", failed, registry=registry)
        told = "Messages to each sink: sent, and tries that failed."
        labels = ["sink", "outcome"]
        self.notifications = Counter("hpctl_notifications", told, labels, registry=registry)
        for where in ("parse", "assess", "policy", "plan", "advance", "execute", "fold"):
            self._flaws.labels(where)
        self._events = -1
        self._ends: tuple[tuple[str, str], ...] = ()

    def cycle(self, seconds: float, state: State, flaws: Iterable[Flaw] = ()) -> None:
        """Take one cycle in; recount only when the journal has grown."""
        self._seconds.observe(seconds)
        for flaw in flaws:
            self._flaws.labels(flaw.where).inc()
        if state.events == self._events:
            return
        self._events = state.events
        self._open.labels("node").set(len(state.open_nodes))
        self._open.labels("job").set(len(state.open_jobs))
        self._open.labels("change").set(len(state.open_changes))
        self._holds.set(len(state.holds))
        rules = [hold.rule for hold in state.holds.values() if hold.gate == GATE]
        self._quarantined.labels("no").set(len(rules) - rules.count(ESCALATED))
        self._quarantined.labels("yes").set(rules.count(ESCALATED))
        self._paused.set(bool(state.paused_by))
        # What is past is counted no more, and the last of an end with it.
        ends = dict.fromkeys(self._ends, 0)
        ended = [("node", str(r.phase)) for r in state.nodes.values() if r.ended]
        ended += [("job", str(j.phase)) for j in state.jobs.values() if j.ended]
        ended += [("change", str(c.phase)) for c in state.changes.values() if c.ended]
        for kind, phase in ended:
            ends[kind, phase] = ends.get((kind, phase), 0) + 1
        self._ends = tuple(ends)
        for (kind, end), count in ends.items():
            self._ended.labels(kind, end).set(count)
