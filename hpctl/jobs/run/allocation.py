"""The job's allocation: what slurmctld says of it, what the supervisor knows, which nodes fit.

`show job ID` is answered for that job only, and names the nodes that are left after an excision.
`show node LIST` is asked only when a step is to be launched: Slurm's client fetches the whole node
table for it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.records import SlurmJobRecord
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.hostlist import sort_nodes_by_leaf_proximity
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode

NOT_NOW = frozenset({"FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "INVALID_REG"})


class NodeFitness(Struct, frozen=True):
    """The allocation's nodes, those that may run a step and those that may not, with why."""

    healthy: tuple[NodeName, ...]
    unfit: Mapping[NodeName, str]


def sort_nodes_by_fitness(
    allocated: Sequence[NodeName],
    states: Mapping[NodeName, SlurmNode],
    suspects: Mapping[NodeName, str],
) -> NodeFitness:
    """Sort the nodes. `suspects` are those of which the supervisor itself knows something.

    A node that slurmctld does not describe is not known to be healthy. One that an operator
    drains runs its jobs to their end, and this is one of them; one that hpctl drained is sick.
    """
    unfit: dict[NodeName, str] = {}
    for name in allocated:
        why = _explain_unfit_node(states.get(name)) or suspects.get(name)
        if why:
            unfit[name] = why
    return NodeFitness(tuple(name for name in allocated if name not in unfit), unfit)


def choose_step_nodes(  # noqa: PLR0913 -- pure: each preference is an argument with a default
    healthy: Sequence[NodeName],
    size: int,
    before: Collection[NodeName] = (),
    avoid: Iterable[NodeName] = (),
    exclude: Collection[NodeName] = (),
    leaves: Mapping[NodeName, str] | None = None,
) -> tuple[NodeName, ...]:
    """Return `size` nodes, or fewer where there are not so many; the allocation's order.

    Never one of `exclude`. Those of the step `before` come first: their page caches and local
    checkpoints are warm. Those to `avoid` come last: they have been in trouble with this job. Of
    the others those come first that are near the step `before`, by the `leaves` of the topology.
    """
    known, bad = set(before), set(avoid)
    near = sort_nodes_by_leaf_proximity(healthy, before, leaves or {})
    ranked = sorted(
        (name for name in healthy if name not in exclude),
        key=lambda name: (name in bad, name not in known, near.index(name)),
    )
    taken = set(ranked[:size])
    return tuple(name for name in healthy if name in taken)


def _explain_unfit_node(node: SlurmNode | None) -> str:
    if node is None:
        return "slurmctld does not know it"
    if node.down:
        return f"DOWN: {node.reason}" if node.reason else "DOWN"
    if not node.responding:
        return "not responding"
    if node.drained and parse_recovery_id_from_reason(node.reason) is not None:
        return f"drained: {node.reason}"
    flags = sorted(node.flags & NOT_NOW)
    return flags[0] if flags else ""


class NoSuchJobError(ServiceUnavailable):
    """slurmctld answered, and does not know our job."""


class AllocationQueries:
    """Asks. Every method raises Unavailable, and nothing else."""

    def __init__(self, job: JobId, runner: SlurmCommandRunner) -> None:
        self._id = job
        self._runner = runner
        self._reader = SlurmCommandReader(runner, lambda: datetime.now(UTC))

    def allocation(self) -> SlurmJobRecord:
        """Return our job. One RPC. Raise NoSuchJobError where slurmctld says that there is none."""
        record = self._reader.job(self._id)
        if record is None:
            raise NoSuchJobError(
                f"Slurm does not know job {self._id}, in which hpctl run was started",
                "check the environment variables SLURM_CONF and SLURM_JOB_ID: both must be those "
                "of this job",
            )
        return record

    def states(self, nodes: tuple[NodeName, ...]) -> Mapping[NodeName, SlurmNode]:
        """Return these nodes. One RPC for each 200 of them."""
        return self._reader.nodes(nodes)

    def leaves(self) -> Mapping[NodeName, str]:
        """Return the leaf switch or block of each node of the cluster. One RPC."""
        return self._reader.leaves()

    def idle(self, partition: str) -> int:
        """Return nodes of the partition that are idle. One RPC, which fetches the whole node
        table."""
        ran = self._runner.run("sinfo", "--noheader", "-t", "idle", "-o", "%D", "-p", partition)
        if not ran.ok:
            raise ServiceUnavailable(
                f"cannot list the idle nodes with sinfo: {ran.message}", "Check `scontrol ping`."
            )
        return sum(int(word) for word in ran.text.split() if word.isdecimal())


AWAY_S = 5.0
"""Between questions to a slurmctld that does not answer. The allocation stays ours meanwhile."""


class AllocationState:
    """The latest look, and what the supervisor found out about nodes."""

    def __init__(
        self,
        questions: AllocationQueries,
        say: Callable[[str], None],
        restart: int = 0,
        stopped: Callable[[], object] = lambda: False,
    ) -> None:
        """`restart` is this run's SLURM_RESTART_COUNT. `stopped`: whether a signal asked to end,
        which no wait for slurmctld holds up."""
        self._stopped = stopped
        self._questions, self._say, self._restart = questions, say, restart
        self._ours: JobAttempt | None = None
        self.allocation: SlurmJobRecord | None = None
        self.addresses: Mapping[NodeName, str] = {}
        self.gpus = 0
        """The most GPUs that Slurm counts on a node of the job; 0 where it counts none."""
        self.suspects: dict[NodeName, str] = {}
        self._closed: set[NodeName] = set()
        self.healed: set[NodeName] = set()
        """Nodes that hpctl closed and gave back since: verified, whatever was known of them."""
        self._fit: NodeFitness | None = None
        self._looked = 0.0

    def look(self, max_age_s: float = 0.0) -> NodeFitness:
        """Return the nodes now, or as they were seen so many seconds ago.

        Waits while slurmctld does not answer: nothing can be launched then. Where a signal ends
        that wait, the answer is the last look, or that there are no nodes. Raises NoSuchJobError
        where slurmctld does not know the job, and never did.
        """
        if self._fit is not None and time.monotonic() - self._looked < max_age_s:
            return self._fit
        reported = False
        while True:
            try:
                self.allocation = self._query_job_record()
                nodes = self.allocation.job.nodes
                states = self._questions.states(nodes)
            except ServiceUnavailable as error:
                if isinstance(error, NoSuchJobError) and self.allocation is None:
                    raise
                if not reported:
                    self._say(f"waiting for slurmctld: {error}")
                reported = True
                if self._wait_for_retry_or_end_signal():
                    return self._fit or sort_nodes_by_fitness((), {}, {})
            else:
                self._clear_recovered_suspect_nodes(states)
                self.addresses = {name: state.address for name, state in states.items()}
                has = [dict(state.has.gres).get("gpu", 0) for state in states.values()]
                self.gpus = max(has, default=0)
                self._fit, self._looked = (
                    sort_nodes_by_fitness(nodes, states, self.suspects),
                    time.monotonic(),
                )
                return self._fit

    def _clear_recovered_suspect_nodes(self, states: Mapping[NodeName, SlurmNode]) -> None:
        """Forget what was held against nodes that hpctl has had in treatment, and no longer has."""
        for name, state in states.items():
            if state.drained and parse_recovery_id_from_reason(state.reason) is not None:
                self._closed.add(name)
                self.healed.discard(name)
            elif name in self._closed and state.responding and state.in_service:
                self._closed.discard(name)
                self.healed.add(name)
                self.suspects.pop(name, None)

    def _wait_for_retry_or_end_signal(self) -> bool:
        """Wait before the next question; whether a signal asked to end by then."""
        limit = time.monotonic() + AWAY_S
        # In short sleeps: one that a signal's handler has interrupted is slept to its end.
        while not self._stopped() and time.monotonic() < limit:
            time.sleep(0.1)
        return bool(self._stopped())

    def poll_job_state(self) -> bool:
        """Ask one cheap question about the job only; return whether it was answered."""
        try:
            self.allocation = self._query_job_record()
        except ServiceUnavailable:
            return False
        return True

    def _query_job_record(self) -> SlurmJobRecord:
        """Return our job now. The first answer that is this run's own says which run that is."""
        found = self._questions.allocation()
        if self._ours is None and found.job.restarts == self._restart:
            self._ours = found.job.attempt
        return found

    @property
    def other(self) -> str:
        """Return which other run has our job's id by now; empty while the job is this run.

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

    def leaves(self) -> Mapping[NodeName, str]:
        """Return the leaf switch or block of each node; empty if unknown."""
        with suppress(ServiceUnavailable):
            return self._questions.leaves()
        return {}

    def count_idle_nodes(self) -> int:
        """Return the number of idle nodes of the job's partition; 0 if unknown."""
        if self.allocation is None:
            return 0
        try:
            return self._questions.idle(self.allocation.job.partition)
        except ServiceUnavailable:
            return 0

    @property
    def alive(self) -> bool:
        """Return whether steps can still be launched, by the latest look."""
        job = self.allocation.job if self.allocation else None
        return job is not None and job.running and not job.completing and not self.other

    @property
    def over(self) -> str:
        """Return why no step can be launched any longer, where none can."""
        return self.other or "Slurm ended the job"

    @property
    def recoverable(self) -> bool:
        """Return whether Slurm would take the job back."""
        return self.allocation is not None and self.allocation.job.recoverable

    def left_s(self, now: datetime) -> float | None:
        """Return the seconds until the job's time limit; None where it has none or it is
        unknown."""
        end = self.allocation.job.end if self.allocation else None
        return (end - now).total_seconds() if end else None

    @property
    def total_time_limit_s(self) -> float | None:
        """Return seconds that the job's time limit allows altogether; None where it has none."""
        job = self.allocation.job if self.allocation else None
        if job is None or job.start is None or job.end is None:
            return None
        return (job.end - job.start).total_seconds()

    def list_nodes_removed_from_job(self, nodes: Sequence[NodeName]) -> list[NodeName]:
        """Return the nodes that the job no longer has."""
        have = self.allocation.job.nodes if self.allocation else nodes
        return [node for node in nodes if node not in have]

    def lost(self, nodes: Sequence[NodeName], fit: NodeFitness) -> dict[NodeName, str]:
        """Return those that Slurm took out of the job, or that are unfit by now, with why."""
        gone = dict.fromkeys(
            self.list_nodes_removed_from_job(nodes), "Slurm took it out of the job"
        )
        return gone | {node: fit.unfit[node] for node in nodes if node in fit.unfit}

    def suspect(self, nodes: Mapping[NodeName, str]) -> None:
        """Record nodes that proved bad, whatever slurmctld still reports of them."""
        self.suspects |= nodes

    def hosts(self, nodes: Sequence[NodeName]) -> dict[str, NodeName]:
        """Return the addresses of these nodes, as slurmctld has them."""
        return {self.addresses.get(node) or str(node): node for node in nodes}
