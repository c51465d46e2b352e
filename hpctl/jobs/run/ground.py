"""The ground that steps stand on: what the supervisor knows of its allocation's nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from hpctl.core.model import Attempt, NodeName, SlurmNode, reason_owner
from hpctl.errors import Unavailable
from hpctl.jobs.run.allocation import Allocation, NoSuchJob, Questions
from hpctl.jobs.run.choose import Fitness, fitness

AWAY_S = 5.0
"""Between questions to a slurmctld that does not answer. The allocation stays ours meanwhile."""


class Ground:
    """The latest look, and what the supervisor found out about nodes by itself."""

    def __init__(
        self,
        questions: Questions,
        say: Callable[[str], None],
        restart: int = 0,
        stopped: Callable[[], object] = lambda: False,
    ) -> None:
        """`restart` is this run's SLURM_RESTART_COUNT. `stopped`: whether a signal asked to end,
        which no wait for slurmctld holds up."""
        self._stopped = stopped
        self._questions, self._say, self._restart = questions, say, restart
        self._ours: Attempt | None = None
        self.allocation: Allocation | None = None
        self.addresses: Mapping[NodeName, str] = {}
        self.suspects: dict[NodeName, str] = {}
        self._closed: set[NodeName] = set()
        self.healed: set[NodeName] = set()
        """Nodes that hpctl closed and gave back since: verified, whatever was known of them."""
        self._fit: Fitness | None = None
        self._looked = 0.0

    def look(self, max_age_s: float = 0.0) -> Fitness:
        """The nodes now, or as they were seen so many seconds ago.

        Waits while slurmctld does not answer: nothing can be launched then. Where a signal ends
        that wait, the answer is the last look, or that there are no nodes. Raises NoSuchJob where
        slurmctld does not know the job, and never did.
        """
        if self._fit is not None and time.monotonic() - self._looked < max_age_s:
            return self._fit
        told = False
        while True:
            try:
                self.allocation = self._asked()
                nodes = self.allocation.nodes
                states = self._questions.states(nodes)
            except Unavailable as error:
                if isinstance(error, NoSuchJob) and self.allocation is None:
                    raise
                if not told:
                    self._say(f"waiting for slurmctld: {error}")
                told = True
                if self._interrupted():
                    return self._fit or fitness((), {}, {})
            else:
                self._returned(states)
                self.addresses = {name: state.address for name, state in states.items()}
                self._fit, self._looked = fitness(nodes, states, self.suspects), time.monotonic()
                return self._fit

    def _returned(self, states: Mapping[NodeName, SlurmNode]) -> None:
        """Forget what was held against nodes that hpctl has had in treatment, and no longer has."""
        for name, state in states.items():
            if state.drained and reason_owner(state.reason) is not None:
                self._closed.add(name)
                self.healed.discard(name)
            elif name in self._closed and state.responding and state.in_service:
                self._closed.discard(name)
                self.healed.add(name)
                self.suspects.pop(name, None)

    def _interrupted(self) -> bool:
        """Wait before the next question; whether a signal asked to end by then."""
        limit = time.monotonic() + AWAY_S
        # In short sleeps: one that a signal's handler has interrupted is slept to its end.
        while not self._stopped() and time.monotonic() < limit:
            time.sleep(0.1)
        return bool(self._stopped())

    def glance(self) -> bool:
        """One cheap question about the job alone; whether it was answered."""
        try:
            self.allocation = self._asked()
        except Unavailable:
            return False
        return True

    def _asked(self) -> Allocation:
        """Our job now. The first answer that is this run's own says which run that is."""
        found = self._questions.allocation()
        if self._ours is None and found.job.restarts == self._restart:
            self._ours = found.job.attempt
        return found

    @property
    def other(self) -> str:
        """Which other run has our job's id by now; empty while the job is this run.

        A batch script outlives its run where its node was lost: Slurm starts the job again
        elsewhere, and the supervisor that is left must not launch steps in that run.
        """
        job = self.allocation.job if self.allocation else None
        if job is None or job.attempt == self._ours:
            return ""
        if job.restarts != self._restart:
            return (
                f"job {job.id} is at restart {job.restarts} by now and this supervisor belongs"
                f" to restart {self._restart}, so it ends and starts nothing"
                " (where that is wrong: SLURM_RESTART_COUNT)"
            )
        return (
            f"job {job.id} was submitted at {job.submit:%Y-%m-%dT%H:%M:%SZ} and is not the one"
            " that this supervisor was started in, so it ends and starts nothing"
        )

    def idle_outside(self) -> int:
        """Idle nodes of the job's partition; 0 where nobody says."""
        if self.allocation is None:
            return 0
        try:
            return self._questions.idle(self.allocation.job.partition)
        except Unavailable:
            return 0

    @property
    def alive(self) -> bool:
        """Whether steps can still be launched, by the latest look."""
        return self.allocation is not None and self.allocation.lives and not self.other

    @property
    def over(self) -> str:
        """Why not, where they cannot."""
        return self.other or "Slurm ended the job"

    @property
    def recoverable(self) -> bool:
        """Whether Slurm would take the job back."""
        return self.allocation is not None and self.allocation.job.recoverable

    def left_s(self, now: datetime) -> float | None:
        """Seconds until the job's time limit; None where it has none or nobody knows."""
        return self.allocation.left_s(now) if self.allocation else None

    @property
    def whole_s(self) -> float | None:
        """Seconds that the job's time limit allows altogether; None where it has none."""
        job = self.allocation.job if self.allocation else None
        if job is None or job.start is None or job.end is None:
            return None
        return (job.end - job.start).total_seconds()

    def gone(self, nodes: Sequence[NodeName]) -> list[NodeName]:
        """Those that the job has no more."""
        have = self.allocation.nodes if self.allocation else nodes
        return [node for node in nodes if node not in have]

    def lost(self, nodes: Sequence[NodeName], fit: Fitness) -> dict[NodeName, str]:
        """Those that Slurm took out of the job, or that are unfit by now, with why."""
        gone = dict.fromkeys(self.gone(nodes), "Slurm took it out of the job")
        return gone | {node: fit.unfit[node] for node in nodes if node in fit.unfit}

    def suspect(self, nodes: Mapping[NodeName, str]) -> None:
        """Nodes that showed to be bad, whatever slurmctld still says of them."""
        self.suspects |= nodes

    def hosts(self, nodes: Sequence[NodeName]) -> dict[str, NodeName]:
        """The addresses of these nodes, as slurmctld has them."""
        return {self.addresses.get(node) or str(node): node for node in nodes}
