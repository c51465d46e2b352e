"""Findings of the head node's own: nodes that differ from their peers, and nodes with a history.

They are kept apart from the agents' findings and added to them when the loop reads the nodes'
health and when that health is stored for `hpctl explain`.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.engine.journal.state import EngineState
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver
from hpctl.engine.view import is_timestamp_fresh
from hpctl.insight.forecast.decide import CHECK
from hpctl.insight.forecast.history import forecast_node_failures, make_failure_forecast_finding
from hpctl.insight.grey import decide
from hpctl.insight.grey.decide import GAUGES, WINDOW, group_peers
from hpctl.vocabulary.identity import InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.isolation import call_and_capture_failure
from hpctl.vocabulary.model import Finding, NodeHealth
from hpctl.vocabulary.ports import Clock

_PLACE = {gauge: n for n, gauge in enumerate(GAUGES)}
_WIDTH = len(_PLACE)


class PeerGaugeWindows:
    """Gauges in, findings out. `take` runs on the intake's threads, `judge` on one other.

    In memory only. Of each node there are the sums of the window that is open and, where something
    stood out lately, its tracks (`grey.decide`): a few hundred bytes a node, whatever is sent.
    """

    def __init__(self) -> None:
        """Begin without samples: after a restart a fault is found again within its windows."""
        self._lock = threading.Lock()
        self._open: dict[NodeName, tuple[NodeGeneration, list[float], list[int]]] = {}
        self._memory: decide.Memory = {}
        self._generations: dict[NodeName, NodeGeneration] = {}

    def take(self, generation: NodeGeneration, gauges: Mapping[str, float]) -> None:
        """Add what an agent sent to its node's window. Names that are not compared are ignored."""
        if not gauges:
            return
        with self._lock:
            known = self._open.get(generation.node)
            if known is None or known[0] != generation:
                known = (generation, [0.0] * _WIDTH, [0] * _WIDTH)
                self._open[generation.node] = known
            _, sums, counts = known
            for gauge, value in gauges.items():
                place = _PLACE.get(gauge)
                if place is not None:
                    sums[place] += value
                    counts[place] += 1

    def judge(
        self, groups: Iterable[decide.PeerGroup], now: datetime
    ) -> dict[NodeName, tuple[Finding, ...]]:
        """Close the window and answer everything that is found at present, by node."""
        with self._lock:
            closed, self._open = self._open, {}
        renewed = {
            node
            for node, (generation, _, _) in closed.items()
            if self._has_node_generation_changed(node, generation)
        }
        self._generations.update((node, known[0]) for node, known in closed.items())
        memory = {key: t for key, t in self._memory.items() if key[0] not in renewed}
        self._memory = decide.update_outlier_histories(
            groups, _compute_gauge_means(closed), memory, now
        )
        return decide.make_peer_findings(self._memory)

    def of(self, generation: NodeGeneration, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Return `found` where that generation was judged; else nothing."""
        return found if self._generations.get(generation.node) == generation else ()

    def _has_node_generation_changed(self, node: NodeName, generation: NodeGeneration) -> bool:
        """Return whether it is another boot or instance: what the former one did is no evidence
        against it."""
        return self._generations.get(node, generation) != generation


def _compute_gauge_means(
    closed: dict[NodeName, tuple[NodeGeneration, list[float], list[int]]],
) -> dict[NodeName, dict[str, float]]:
    means = {}
    for node, (_, sums, counts) in closed.items():
        measured = zip(GAUGES, sums, counts, strict=True)
        means[node] = {gauge: total / count for gauge, total, count in measured if count}
    return means


log = logging.getLogger(__name__)

OWN_CHECKS = ("peer.", CHECK)
HISTORY_EVERY_S = 300.0
"""A chance moves by hours; a new recovery is looked at as soon."""


class GreyFailureFindings:
    """What was found last: set by GreyFailureDetector, added to the nodes' health by
    NodeHealthStore."""

    checks: tuple[str, ...] = OWN_CHECKS

    def __init__(self) -> None:
        self.peers = PeerGaugeWindows()
        self.by_peers: Mapping[NodeName, tuple[Finding, ...]] = {}
        self.by_history: Mapping[InstanceId, Finding] = {}

    def set_peer_findings(self, found: Mapping[NodeName, tuple[Finding, ...]]) -> None:
        """Take the findings of the window that was judged last."""
        self.by_peers = found

    def set_forecast_findings(self, found: Mapping[InstanceId, Finding]) -> None:
        """Take the findings of the last look at history."""
        self.by_history = found

    def add_findings(self, health: dict[NodeName, NodeHealth]) -> None:
        """Add what the comparison found to the agents' findings, in place."""
        concerned = set(self.by_peers)
        if self.by_history:
            instances = self.by_history
            concerned |= {n for n, h in health.items() if h.generation.instance in instances}
        for node in concerned & health.keys():
            health[node] = self._add_node_grey_failure_findings(health[node])

    def _add_node_grey_failure_findings(self, health: NodeHealth) -> NodeHealth:
        generation = health.generation
        own = list(self.peers.of(generation, self.by_peers.get(generation.node, ())))
        again = self.by_history.get(generation.instance)
        if again is not None:
            own.append(again)
        agents = [f for f in health.findings if not f.check.startswith(OWN_CHECKS)]
        if not own and len(agents) == len(health.findings):
            return health
        return replace(health, findings=(*agents, *own))


class GreyFailureDetector:
    """The comparison of peers, each window in a separate thread; `update_forecasts` runs in the
    loop."""

    def __init__(
        self,
        found: GreyFailureFindings,
        health: NodeHealthStore,
        observer: ClusterObserver,
        clock: Clock,
        view_age_s: float = 60.0,
    ) -> None:
        """Compare nothing before `start`, nor with a view of Slurm older than `view_age_s`."""
        self._found, self._peers = found, found.peers
        self._health, self._observer, self._clock = health, observer, clock
        self._view_age_s = view_age_s
        self._history_due = 0.0
        self._history_of = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._compare_peers_in_each_window, name="peers", daemon=True
        )

    def hear(self, generation: NodeGeneration, gauges: Mapping[str, float]) -> None:
        """Take the gauges of an authenticated report or heartbeat in. From the intake's threads."""
        self._peers.take(generation, gauges)

    def start(self) -> None:
        """Begin to compare."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()

    def _compare_peers_in_each_window(self) -> None:
        while not self._stop.wait(WINDOW.total_seconds()):
            # Advice must not end the daemon, nor end for good by one bad window.
            flaw = call_and_capture_failure("peers", "peers", lambda _: self.compare(), None)
            if flaw is not None:
                log.error("peers were not compared: %s", flaw)

    def compare(self) -> None:
        """Close the window and judge it. Wakes the loop where a node is new or gone."""
        now = self._clock.now()
        scheduler, provider = self._observer.slurm, self._observer.provider
        kinds = {i.node: i.group for i in provider.instances.values() if i.node is not None}
        known = is_timestamp_fresh(scheduler.valid_at, self._view_age_s, now)
        groups = group_peers(scheduler, kinds, now) if known else ()
        before, found = self._found.by_peers, self._peers.judge(groups, now)
        self._found.set_peer_findings(found)
        changed = self._list_node_check_pairs(before) ^ self._list_node_check_pairs(found)
        if changed:
            for node, check in sorted(changed):
                log.info("node=%s check=%s found=%s", node, check, node in found)
            self._health.touch({node for node, _ in changed}, wake=True)

    @staticmethod
    def _list_node_check_pairs(
        found: Mapping[NodeName, Sequence[Finding]],
    ) -> set[tuple[NodeName, str]]:
        names: set[tuple[NodeName, str]] = set()
        for node, findings in found.items():
            names |= {(node, finding.check) for finding in findings}
        return names

    def update_forecasts(self, state: EngineState) -> None:
        """Forecast again where history has grown or time has passed. Runs in the loop, which owns
        the state."""
        now = self._clock.monotonic()
        if len(state.nodes) == self._history_of and now < self._history_due:
            return
        self._history_of, self._history_due = len(state.nodes), now + HISTORY_EVERY_S
        before = self._found.by_history
        known = self._health.copy_agent_health()
        counts = Counter(rec.node for rec in state.nodes.values() if not rec.is_for_capacity_change)
        often = [node for node, number in counts.items() if number > 2]
        nodes = {*self._observer.slurm.nodes, *known, *state.last_of_node}
        found = forecast_node_failures(state, nodes, known, self._clock.now(), of=often)
        repeated = {
            f.instance: again
            for f in found
            if f.again and (again := make_failure_forecast_finding(f))
        }
        self._found.set_forecast_findings(repeated)
        changed = before.keys() ^ repeated.keys()
        if changed:
            theirs = {n for n, h in known.items() if h.generation.instance in changed}
            self._health.touch(theirs, wake=False)
