"""A simulated cluster with two head nodes, scraped once a minute.

Real: the loop with all it decides, and the metrics of each daemon. Simulated: time, machines, Slurm
and cloud (`tests.engine.machine`), and who leads. Prometheus' own series are what a scrape finds.
"""

import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

from msgspec import Struct, field

from hpctl.service import alert_gauges, metrics
from hpctl.service.metrics import DaemonMetrics
from hpctl.vocabulary.policy import RecoveryPolicy
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.scenario import RULES
from tests.engine.machine.world import T0, World
from tests.service.metrics.rule_bench import Series, list_used, parse, read

STEP_S = 60.0


class Head(Struct):
    """One head node. `made`: its daemon's metrics; None while that is down."""

    name: str
    made: DaemonMetrics | None = None
    leads: bool = False
    hangs: bool = False
    """Its loop ends no cycle."""
    troubles: dict[str, str] = field(default_factory=dict)


class Cluster:
    """Eight nodes and two head nodes; `minute` is the time."""

    def __init__(self, monkeypatch, policy: RecoveryPolicy, rules=RULES, size: int = 8) -> None:
        self.world = World(size)
        self.daemon = Daemon(self.world, policy, rules)
        self.minute = 0
        self.free = {"a": 0.5, "b": 0.5}
        """What is free of each head node's disk."""
        clock = Mock(
            spec_set=time,
            monotonic=self.world.clock.monotonic,
            time=lambda: self.world.clock.now().timestamp(),
        )
        monkeypatch.setattr(metrics, "time", clock)
        monkeypatch.setattr(alert_gauges, "time", clock)
        monkeypatch.setattr(alert_gauges, "read_free_disk_ratio", lambda path: self.free[path.name])
        self._used = list_used()
        self._plans: list[tuple[int, Callable[[], object]]] = []
        self.heads = [Head("a"), Head("b")]
        self.series: dict[Series, list[float | str | None]] = {}
        self.start(0)
        self.start(1)
        self.lead(0)

    def at(self, minute: int, act: Callable[..., object], *given, **named) -> None:
        """Have something happen at a minute."""
        self._plans.append((minute, lambda: act(*given, **named)))

    def start(self, number: int) -> None:
        """A daemon starts, as a standby."""
        head = self.heads[number]
        head.leads, head.hangs = False, False
        head.made = DaemonMetrics(leader=lambda: head.leads, state_dir=Path(head.name))

    def stop(self, number: int) -> None:
        """A daemon ends."""
        self.heads[number].made, self.heads[number].leads = None, False

    def lead(self, number: int) -> None:
        """A daemon takes over."""
        for head in self.heads:
            head.leads = False
        head = self.heads[number]
        assert head.made is not None
        head.leads = True
        self.daemon.start()
        head.made.begin(self.daemon.loop.state)

    def follow(self) -> None:
        """No daemon leads any more: the database is away."""
        for head in self.heads:
            head.leads = False

    def restart(self, number: int) -> None:
        """The daemon of a head node that has no standby starts again, and leads."""
        self.start(number)
        self.lead(number)

    def play(self, minutes: int) -> None:
        """Let time pass until this minute."""
        while self.minute < minutes:
            for due, act in self._plans:
                if due == self.minute:
                    act()
            self._cycle()
            self._scrape()
            self.world.passes(STEP_S)
            self.minute += 1
        self._end()

    def _cycle(self) -> None:
        leader = next((head for head in self.heads if head.leads and head.made), None)
        if leader is None or leader.hangs:
            return
        self.daemon.run()
        last = self.daemon.loop.last
        assert last is not None
        assert leader.made is not None
        leader.made.record_cycle_result(0.1, last)
        leader.made.take_troubles(leader.troubles)

    def _scrape(self) -> None:
        found: dict[Series, float] = {}
        for head in self.heads:
            up = parse(f'up{{job="hpctl",instance="{head.name}"}}')
            found[up] = float(head.made is not None)
            if head.made is not None:
                found |= read(head.made.registry, self._used, instance=head.name)
        for name, values in self.series.items():
            if name not in found:
                values.append("stale" if isinstance(values[-1], float) else None)
        for name, value in found.items():
            self.series.setdefault(name, [None] * self.minute).append(self._on_scale(name, value))

    def _on_scale(self, name: Series, value: float) -> float:
        """promtool's time begins at 0."""
        of_time = name.metric.endswith("_timestamp_seconds") or name.metric == "hpctl_time_seconds"
        return value - T0.timestamp() if of_time and value > 0 else value

    def _end(self) -> None:
        flaws = self.daemon.loop.flaws
        assert not flaws, flaws
