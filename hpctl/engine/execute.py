"""The only code that changes the world: write it down, do it, write down what came back.

Equal steps go out in one call, one resolution per target. Calls to the cloud run on a thread of
their own, so that a slow API never delays a drain; until their answer is collected the journal
shows them started and not resolved, which is the truth. They go out one at a time, and none is
begun before the one under way was answered: in a queue it would wait where neither a pause nor the
end of its recovery could reach it.
"""

import logging
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from hpctl.engine.journal.events import StepResolved, StepStarted
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.toolkit.threads import start_thread_pool
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import InstanceId, JobId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import NOT_LEADING, Outcome, OutcomeKind
from hpctl.vocabulary.ports import Clock, CloudProvider, NodeAgents, Scheduler
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import CONVERGENT, StepKind, StepStartDecision
from hpctl.vocabulary.reset_order import GpuResetOrder
from hpctl.vocabulary.spares_reservation import RESERVATION
from hpctl.wire import munge

log = logging.getLogger(__name__)

MAX_INSTANCES = 25
"""BatchReplaceClusterNodes and BatchRebootClusterNodes take at most this many (AWS's API)."""

UNAVAILABLE = "unavailable"
"""The code of an order that was not sent, because its check before sending failed."""

_AGENTS = (StepKind.EVIDENCE, StepKind.RESET)
_CLOUD = (StepKind.REBOOT, StepKind.REPLACE, StepKind.REMOVE)
_NODE = (StepKind.DRAIN, StepKind.DOWN, StepKind.RETURN, StepKind.RESUME)
_RESERVATIONS = (StepKind.MAINTAIN, StepKind.RESERVE)
_TEST = (StepKind.ISOLATE, StepKind.TEST, StepKind.END_TEST, StepKind.UNRESERVE)
# A reservation comes before the order that opens its nodes to jobs: a node is reserved as a spare
# before it is returned, and a spare is released before the job starts that it is released to.
_SLURM = (
    StepKind.MAINTAIN,
    StepKind.DRAIN,
    StepKind.DOWN,
    StepKind.RESERVE,
    StepKind.RETURN,
    StepKind.RESUME,
    *_TEST,
    StepKind.SIGNAL,
    StepKind.REQUEUE,
    StepKind.START_NOW,
    StepKind.HOLD,
    StepKind.CANCEL,
    StepKind.LIFT,
    StepKind.NOTE,
)


class JobStackReader(Protocol):
    """Who reads stacks for the executor, without keeping it waiting."""

    def begin(self, due: DueRecoveryStep) -> None:
        """Read the stacks of the ranks of a step's job."""

    def done(self) -> list[tuple[DueRecoveryStep, Outcome]]:
        """Return the outcomes since the last time; each step that was begun has one in a minute."""


class StepExecutorPorts(Struct, frozen=True):
    """Where steps are carried out."""

    scheduler: Scheduler
    provider: CloudProvider
    agents: NodeAgents | None = None
    """None: no GPU is reset."""
    stacks: JobStackReader | None = None
    """Reads the stacks of a job's ranks beside everything else. None: none are read."""


class StepExecutor:
    """Carries steps out, each in three parts: StepStarted, one port call, StepResolved."""

    def __init__(
        self,
        effectors: StepExecutorPorts,
        journal: JournaledState,
        clock: Clock,
        *,
        poke: Callable[[], None] | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """With `poke`, cloud calls run in the background and poke when answered; without it
        they run here and now (tests that must be deterministic). `may_act` is asked before each
        call, after it was written down: a daemon that is not the leader does nothing."""
        self._scheduler = effectors.scheduler
        self._provider = effectors.provider
        self._agents = effectors.agents
        self._stacks = effectors.stacks
        self._journal = journal
        self._clock = clock
        self._poke = poke
        self._may_act = may_act
        self._pool = start_thread_pool(1, "cloud-call") if poke else None
        self._answers: queue.SimpleQueue[tuple[list[DueRecoveryStep], Mapping[str, Outcome]]]
        self._answers = queue.SimpleQueue()
        self._calling = False
        self._flaws: queue.SimpleQueue[ItemProcessingFailure] = queue.SimpleQueue()

    def flaws(self) -> list[ItemProcessingFailure]:
        """Return the calls that raised since the last time, by their first target."""
        return [self._flaws.get() for _ in range(self._flaws.qsize())]

    def collect(self) -> None:
        """Write down what background calls have answered since the last time."""
        while not self._answers.empty():
            batch, outcomes = self._answers.get()
            self._calling = False
            self._journal_outcomes(batch, outcomes)
        for due, outcome in self._stacks.done() if self._stacks else ():
            self._journal_outcomes([due], {due.do.target: outcome})

    def run(self, due: Sequence[DueRecoveryStep]) -> bool:
        """Carry out the steps of one cycle: Slurm's first, for a job waits on them.

        Answers whether any was begun. What is not is wanted again: the rest of Slurm's where
        slurmctld did not answer, which for each may take as long again; those for the cloud while
        a call is under way, whose answer wakes the loop.
        """
        begun = self._read_stacks([d for d in due if d.do.kind is StepKind.STACKS])
        for batch in _batch_slurm_steps(due):
            begun = True
            if _has_unknown_step_outcome(self.run_step(batch, self._run_slurm_steps)):
                break
        for kind in _AGENTS:
            batch = [d for d in due if d.do.kind is kind]
            if batch:
                begun = True
                self.run_step(batch, self._run_agent_steps)
        for kind in _CLOUD:
            batch = [d for d in due if d.do.kind is kind]
            for i in range(0, len(batch), MAX_INSTANCES):
                begun |= self._start_cloud_call(batch[i : i + MAX_INSTANCES])
        for one in due:
            if one.do.kind is StepKind.ADD:
                begun |= self._start_cloud_call([one])
        return begun

    def _read_stacks(self, due: list[DueRecoveryStep]) -> bool:
        for one in due:
            self._journal_step_starts([one])
            if self._stacks is not None and self._may_act():
                self._stacks.begin(one)
            else:
                none = Outcome.rejected("unavailable", "this daemon asks no agents")
                self._journal_outcomes([one], {one.do.target: none})
        return bool(due)

    def settle(self, within_s: float) -> bool:
        """Wait for the call under way, and write its answer down; false where it lasts longer."""
        if self._calling:
            try:
                batch, outcomes = self._answers.get(timeout=within_s)
            except queue.Empty:
                return False
            self._calling = False
            self._journal_outcomes(batch, outcomes)
        return True

    def close(self) -> None:
        """Let a call under way end; its answer is found in doubt at the next start."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def run_step(
        self,
        batch: list[DueRecoveryStep],
        call: Callable[[list[DueRecoveryStep]], Mapping[str, Outcome]],
    ) -> Mapping[str, Outcome]:
        """Journal a batch, call a port for it, and journal what it answered."""
        self._journal_step_starts(batch)
        outcomes = self._call_step_batch_port(batch, call)
        self._journal_outcomes(batch, outcomes)
        return outcomes

    def _call_step_batch_port(
        self,
        batch: list[DueRecoveryStep],
        call: Callable[[list[DueRecoveryStep]], Mapping[str, Outcome]],
    ) -> Mapping[str, Outcome]:
        """Return what the port answers. Where it raises, what was done is in doubt: states are
        asked for again one by one, so that one target costs no other its step."""
        if not self._may_act():
            return dict.fromkeys((d.do.target for d in batch), NOT_LEADING)
        outcomes = call_and_capture_failure("execute", batch[0].do.target, call, batch)
        if not isinstance(outcomes, ItemProcessingFailure):
            return outcomes
        if len(batch) > 1 and batch[0].do.kind in CONVERGENT:
            found: dict[str, Outcome] = {}
            for one in batch:
                found |= self._call_step_batch_port([one], call)
            return found
        log.error("flaw=%s", outcomes)
        self._flaws.put(outcomes)
        return {d.do.target: Outcome.ambiguous("internal_error", outcomes.error) for d in batch}

    def _journal_step_starts(self, batch: list[DueRecoveryStep]) -> None:
        now = self._clock.now()
        started = []
        for due in batch:
            do = due.do
            step = _describe_step_details(do)
            started.append(StepStarted(now, due.recovery, do.kind, do.attempt, do.target, step))
        self._journal.append(started)

    def _journal_outcomes(
        self, batch: list[DueRecoveryStep], outcomes: Mapping[str, Outcome]
    ) -> None:
        now = self._clock.now()
        silent = Outcome.ambiguous("no_answer", "the port answered nothing for this target")
        resolved = []
        for due in batch:
            do = due.do
            outcome = outcomes.get(do.target, silent)
            resolved.append(StepResolved(now, due.recovery, do.kind, do.attempt, outcome))
        self._journal.append(resolved)

    def _start_cloud_call(self, batch: list[DueRecoveryStep]) -> bool:
        """Send one call; false where another is under way and this one was not begun."""
        if self._pool is None:
            self.run_step(batch, self.send_instance_orders)
            return True
        if self._calling:
            return False
        self._journal_step_starts(batch)
        self._pool.submit(self._queue_cloud_answer, batch)
        # Not before: where it raises, no call is under way. Only this thread collects answers.
        self._calling = True
        return True

    def _queue_cloud_answer(self, batch: list[DueRecoveryStep]) -> None:
        self._answers.put((batch, self._call_step_batch_port(batch, self.send_instance_orders)))
        if self._poke:
            self._poke()

    def send_instance_orders(self, batch: list[DueRecoveryStep]) -> Mapping[str, Outcome]:
        """Return the cloud's answers to one batch of orders, by what each is for."""
        kind, ids = batch[0].do.kind, [InstanceId(d.do.target) for d in batch]
        if kind is StepKind.ADD:
            do = batch[0].do
            token = f"hpctl-{batch[0].recovery}"
            return {do.target: self._provider.add(do.target, do.count, do.size, token)}
        order = {
            StepKind.REPLACE: self._provider.replace,
            StepKind.REBOOT: self._provider.reboot,
            StepKind.REMOVE: self._provider.remove,
        }[kind]
        answers = order(ids)
        return {str(i): o for i, o in answers.items()}

    def _run_agent_steps(self, batch: list[DueRecoveryStep]) -> Mapping[str, Outcome]:
        if self._agents is None:
            return {d.do.target: Outcome.rejected("no_agents") for d in batch}
        if batch[0].do.kind is StepKind.EVIDENCE:
            wanted = [d.do.evidence for d in batch if d.do.evidence is not None]
            answers = self._agents.request_evidence(wanted)
        else:
            answers = self._agents.reset([d.do.order for d in batch if d.do.order is not None])
        return {str(n): o for n, o in answers.items()}

    def _run_slurm_steps(self, batch: list[DueRecoveryStep]) -> Mapping[str, Outcome]:
        if batch[0].do.kind in _NODE:
            return self._run_node_steps(batch)
        return {d.do.target: self._run_job_step(d) for d in batch}

    def _run_node_steps(self, batch: list[DueRecoveryStep]) -> Mapping[str, Outcome]:
        kind = batch[0].do.kind
        if kind in (StepKind.RETURN, StepKind.RESUME):
            answers = self._scheduler.resume_nodes(
                {NodeName(d.do.target): d.recovery for d in batch}
            )
        else:
            reasons = {
                NodeName(d.do.target): d.do.reason or format_hpctl_node_reason(d.recovery, d.do.why)
                for d in batch
            }
            if kind is StepKind.DOWN:
                answers = self._scheduler.down(reasons)
            else:
                answers = self._scheduler.drain(reasons, spare_marks=batch[0].do.spare_mark)
        return {str(n): o for n, o in answers.items()}

    def _run_job_step(self, due: DueRecoveryStep) -> Outcome:
        do, attempt = due.do, due.attempt
        if do.kind in _RESERVATIONS:
            return self._run_reservation_step(do)
        if do.kind in _TEST:
            return self._run_node_test_step(do)
        if attempt is None:
            raise ValueError(f"{do.kind} of {due.recovery} has no job")
        job = JobId(attempt.job)
        if do.kind is StepKind.SIGNAL:
            return self._scheduler.signal(attempt, do.target)
        if do.kind is StepKind.REQUEUE:
            return self._scheduler.requeue(attempt)
        if do.kind is StepKind.HOLD:
            return self._scheduler.hold(job, do.why)
        if do.kind is StepKind.LIFT:
            return self._scheduler.lift(job, do.nodes)
        if do.kind is StepKind.NOTE:
            return self._scheduler.note(attempt, do.why)
        if do.kind is StepKind.CANCEL:
            return self._scheduler.cancel_attempt(attempt, f"hpctl: {do.why}")
        return self._scheduler.start_pending_job(
            job, do.exclude, do.forgive, do.after_s, do.elastic
        )

    def _run_reservation_step(self, do: StepStartDecision) -> Outcome:
        if do.kind is StepKind.RESERVE:
            return self._scheduler.reserve(RESERVATION + do.target, do.nodes)
        if do.start is None or do.end is None:
            raise ValueError(f"{do.kind} of {do.target} has no times")
        return self._scheduler.maintain(do.target, do.nodes, do.start, do.end)

    def _run_node_test_step(self, do: StepStartDecision) -> Outcome:
        slurm = self._scheduler
        if do.kind is StepKind.TEST:
            test = NodeTestJobSpec(
                name=do.target,
                node=do.nodes[0],
                partition=do.partition,
                command=do.command,
                limit_s=do.limit_s,
                idle=do.idle,
                qos=do.qos,
            )
            return slurm.test(test)
        if do.kind is StepKind.END_TEST:
            return slurm.cancel_node_test(do.target)
        return slurm.reserve(do.target, do.nodes if do.kind is StepKind.ISOLATE else (), own=True)


class PendingAgentOrders:
    """Orders that wait for their agents: each goes out in the answers to its node's reports.

    Kept in memory alone: one that is lost with the daemon is in doubt, and never given again.
    """

    def __init__(self, munge_socket: Path | None, clock: Clock) -> None:
        self._munge_socket, self._clock = munge_socket, clock
        self._offers: dict[NodeName, tuple[float, str]] = {}

    def reset(self, wanted: Sequence[GpuResetOrder]) -> Mapping[NodeName, Outcome]:
        """See Agents."""
        return self._sign_agent_orders(wanted)

    def request_evidence(
        self, orders: Sequence[EvidenceCollectionOrder]
    ) -> Mapping[NodeName, Outcome]:
        """See Agents."""
        return self._sign_agent_orders(orders)

    def _sign_agent_orders(
        self, wanted: Sequence[GpuResetOrder | EvidenceCollectionOrder]
    ) -> Mapping[NodeName, Outcome]:
        found: dict[NodeName, Outcome] = {}
        for order in wanted:
            node = order.generation.node
            try:
                self._offers[node] = (
                    order.until,
                    munge.encode_order_credential(order, self._munge_socket),
                )
                found[node] = Outcome.accepted("offered to its agent")
            except munge.MungeUnavailable as error:
                found[node] = Outcome.rejected(UNAVAILABLE, str(error), transient=True)
        return found

    def list_valid_order_credentials(self) -> dict[NodeName, str]:
        """Return the credentials that are still good, by node."""
        now = self._clock.now().timestamp()
        self._offers = {n: offer for n, offer in self._offers.items() if now < offer[0]}
        return {node: credential for node, (_, credential) in self._offers.items()}


def _batch_slurm_steps(due: Sequence[DueRecoveryStep]) -> Iterator[list[DueRecoveryStep]]:
    """Yield the steps of one order each, in the order in which they are taken."""
    for kind in _SLURM:
        mine = [d for d in due if d.do.kind is kind]
        if kind not in _NODE:
            yield from ([d] for d in mine)
            continue
        for spare in (False, True):
            batch = [d for d in mine if d.do.spare_mark is spare]
            if batch:
                yield batch


def _has_unknown_step_outcome(outcomes: Mapping[str, Outcome]) -> bool:
    return any(o.kind is OutcomeKind.AMBIGUOUS or o.code == UNAVAILABLE for o in outcomes.values())


def _describe_step_details(do: StepStartDecision) -> str:
    """Return what else a step says, for people: why, the nodes it leaves, how long it waits."""
    wait = [f"+{do.after_s:.0f}s"] if do.after_s > 0 else []
    gpus = do.order.devices if do.order else ()
    return " ".join([do.why, *(f"-{n}" for n in do.exclude), *gpus, *wait]).strip()
