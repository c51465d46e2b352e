"""Forty faults on twelve nodes under load, with one slot of remedies that is always taken.

Slurm tells in which second a job started. One that started in a second after that in which
slurmctld answered the drain, and before the node was given back, started on a proven fault. Those
of the seconds between the kernel line and the drain are counted apart.
"""

import time
from datetime import datetime

import pytest

from hpctl.engine.remedies import find_remedy_start
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(1500),
]
FAULTS, MOST_CLOSED = 40, 5
"""Of twelve nodes, six are the budget of drains, which stays out of this."""
CONFIG = {
    "budgets": {
        "open_min": 1, "open_fraction": 0.0, "partition_min": 1, "partition_fraction": 0.0,
    },
    "node": {"remedy_after_s": 3.0},
}  # fmt: skip
WORK = "#!/bin/sh\n#SBATCH --exclusive\nsleep $((SLURM_ARRAY_TASK_ID % 7 + 1))\n"

Start = tuple[int, int, datetime, str]
"""A job, which of its runs, when that started, and on which node."""


class Soak:
    """The faults, and the starts of jobs that were seen meanwhile."""

    def __init__(self, live: Chaos) -> None:
        self.live = live
        self.lines: list[tuple[str, datetime]] = []
        self.starts: set[Start] = set()
        self.full = 0
        self._order = list(live.sandbox.nodes)

    def run(self) -> None:
        """Break one node after the other, as fast as the budget of drains allows."""
        self._fill()
        while len(self.lines) < FAULTS:
            self._look()
            state = self.live.state()
            if len(state.open_nodes) >= MOST_CLOSED:
                continue
            recoveries = [state.nodes[rid] for rid in state.open_nodes.values()]
            self.full += any(find_remedy_start(rec) is not None for rec in recoveries)
            self._break_one(set(state.open_nodes))
        until(self._is_over, 300, "every node is back")

    def _is_over(self) -> bool:
        self._look()
        return not self.live.state().open_nodes

    def _fill(self) -> None:
        script = self.live.sandbox.state_dir / "work.sh"
        script.write_text(WORK)
        for option in ("--requeue", "--no-requeue"):
            args = ["sbatch", "--output=/dev/null", "--array=1-900", option, str(script)]
            self.live.sandbox.run(args)

    def _look(self) -> None:
        for job in self.live.scheduler.view().jobs.values():
            if job.start is None or not job.nodes:
                continue
            for node in job.nodes:
                self.starts.add((job.id, job.restarts, job.start, node))

    def _break_one(self, treated: set[str]) -> None:
        nodes = self.live.scheduler.view().nodes
        fit = [n for n in self._order if n not in treated and nodes[NodeName(n)].in_service]
        node = fit[0]
        # The longest whole one is broken next.
        self._order.remove(node)
        self._order.append(node)
        before = len(self._of(node))
        self.lines.append((node, datetime.now(UTC)))
        self.live.sandbox.inject(node, "xid", code=79)
        until(lambda: len(self._of(node)) > before, 60, f"a recovery of {node}")

    def _of(self, node: str) -> list[NodeRecovery]:
        return [rec for rec in self.live.node_recoveries() if rec.node == node]

    def count(self) -> tuple[list[Start], list[float]]:
        """The starts on proven faults, and the seconds after the line of those before the drain.

        One of the line's own second, which may have come before it, is among the latter.
        """
        after, early = [], []
        for rec in self.live.node_recoveries():
            line = max(at for node, at in self.lines if node == rec.node and at <= rec.opened)
            drain, back = (
                find_last_step_attempt(rec.steps, k) for k in (StepKind.DRAIN, StepKind.RETURN)
            )
            assert drain is not None, rec
            assert drain.resolved is not None, rec
            assert back is not None, rec
            for start in self.starts:
                _, _, at, node = start
                if node != rec.node or at >= back.started.replace(microsecond=0):
                    continue
                if at > drain.resolved:
                    after.append(start)
                elif at >= line.replace(microsecond=0):
                    early.append((at - line).total_seconds())
        return after, early


def test_no_job_starts_on_a_proven_fault_while_no_slot_is_free() -> None:
    with cluster(nodes=12, boot_time=3.0, config=CONFIG) as live:
        soak, begun = Soak(live), time.monotonic()
        soak.run()
        after, early = soak.count()
        drained = [rec.trail[0].at - rec.opened for rec in live.node_recoveries()]
        took = time.monotonic() - begun
        print(f"{len(soak.lines)} faults in {took:.0f} s, {soak.full} with the slot taken")
        print(f"{len(soak.starts)} starts of jobs, {len(after)} of them on a proven fault")
        print(f"{len(early)} between line and drain, so many seconds after the line: {early}")
        print(f"drained {max(drained).total_seconds():.2f} s after the decision at most")
        assert after == []
        assert soak.full >= FAULTS / 2
        live.settle()
