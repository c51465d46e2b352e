"""An order for nodes that a command carries out: the daemon's loop, in the command's process.

Each node is a recovery of the one table (`hpctl.vocabulary.node_recovery`), opened by a request and
executed by the one Executor. What differs is who reads and acts: Slurm under the operator's own
Reason (`order_slurm`), the service with the operator's own credentials (`order_cloud`), and no
agent reports: the start time of the slurmd takes its place (`make_node_order_view`). The journal
lasts as long as the command: what outlives it is the Reason in Slurm, from which `node_order_plan`
finds what an earlier command has ordered.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.clusters.node_order_plan import NodeOrderPlan, NodeOrderTarget, choose_recovery_node_name
from hpctl.clusters.order_cloud import NodeOrderCloudProvider
from hpctl.clusters.order_failures import InstanceFailureExplainer
from hpctl.clusters.order_lateness import NodeOrderLatenessTracker
from hpctl.clusters.order_ports import NodeOrderPorts
from hpctl.clusters.order_progress import (
    NodeOrderFacts,
    NodeOrderProgress,
    describe_node_order_progress,
    describe_unaccepted_node_order,
)
from hpctl.clusters.order_slurm import NodeOrderScheduler
from hpctl.clusters.order_terms import DOUBT_S, NodeAction, NodeOrderOptions
from hpctl.clusters.order_view import NodeOrderObserver
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.events import (
    Event,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.in_process import InProcessJournal
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.kinds import OperatorOrder
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.node_history import ORDERS as STEPS
from hpctl.engine.requests import NOW, ORDERS
from hpctl.engine.view import PlanningView, Request
from hpctl.faults.catalogue import build_fault_rules as make_rules
from hpctl.nodes.kind import make_node_recovery_kind
from hpctl.toolkit.bounds import EARLIEST, MAX_SECONDS
from hpctl.toolkit.errors import ServiceCallRefused
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.identity import (
    BootId,
    InstanceId,
    NodeGeneration,
    NodeName,
    RecoveryId,
    RuleId,
)
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.policy import (
    NodeRecoveryPolicy,
    OperatingMode,
    RecoveryPolicy,
    UnrecoverableJobAction,
)
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt, make_recovery_id
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

CYCLES: Final = 12
"""The most cycles at one look: a recovery has fewer steps that follow at once."""

REMEDIES: Final = {
    NodeAction.REPLACE: Remedy.REPLACE,
    NodeAction.REBOOT: Remedy.REBOOT,
    NodeAction.DELETE: Remedy.DELETE,
}


class NodeOrderRequests:
    """The order as requests to the loop: one for each node, once."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = list(requests)

    def pending(self) -> Sequence[Request]:
        """Return the requests; the loop takes all of them at once."""
        pending, self._requests = self._requests, []
        return pending


def is_job_stop_allowed(job: SlurmJob, view: PlanningView) -> bool:  # noqa: ARG001
    """Return False: a command recovers no jobs, so it leaves those that run."""
    return False


class NodeOrderExecution:
    """One order on its way. Iterate over `looks`; on a Ctrl-C call `let_go`."""

    def __init__(
        self, plan: NodeOrderPlan, ports: NodeOrderPorts, options: NodeOrderOptions
    ) -> None:
        """Read the service once. Raises as reads do."""
        clock = ports.clock
        self._plan, self._clock, self._sleep = plan, clock, ports.sleep
        self._options = options
        self._targets = {choose_recovery_node_name(target): target for target in plan.targets}
        self._scheduler = NodeOrderScheduler(self._targets, ports.slurm, clock.now)
        self._provider = NodeOrderCloudProvider(plan, self._targets, ports.aws, clock.now)
        self._provider.view()
        self._replaced = self._provider.find_replaced_targets()
        self._observer = NodeOrderObserver(self._targets, self._scheduler, self._provider, options)
        self._journal = InProcessJournal()
        self._memory = JournaledState(self._journal)
        executor = StepExecutor(
            StepExecutorPorts(self._scheduler, self._provider), self._memory, clock
        )
        self._policy, self._rules = make_node_order_recovery_policy(options), make_rules()
        self._loop = RecoveryLoop(
            self._memory,
            executor,
            self._observer,
            NodeOrderRequests(self._requests()),
            clock,
            (replace(make_node_recovery_kind(may_stop=is_job_stop_allowed), orders=DELETIONS),),
        )
        self._lateness = NodeOrderLatenessTracker(plan.verb, options, clock)
        self._failures = InstanceFailureExplainer(ports.aws, plan.arn, plan.cluster)
        self.on_interrupt = "giving back what was not ordered"
        self.progress: dict[str, NodeOrderProgress] = {}
        """The newest of each node, by the instance that the order is for."""

    def iter_progress(self) -> Iterator[tuple[NodeOrderProgress, ...]]:
        """Yield the nodes after every look, `every_s` apart, until each has ended.

        Raises Refused where a node cannot be drained: nothing was ordered then, and what was
        drained for it is given back. Raises as reads do where the very first fails.
        """
        self._memory.append(self._make_events_of_orders_under_way())
        self._loop.cycle(self._policy, self._rules)
        self._require_drains_accepted_by_slurm()
        while True:
            self._run_recovery_cycles()
            self._update_node_progress()
            yield tuple(self.progress.values())
            if all(one.has_ended for one in self.progress.values()):
                return
            self._sleep(self._options.every_s)

    def let_go(self) -> tuple[NodeOrderProgress, ...]:
        """Stop waiting: give back what is surely not ordered, and report what continues."""
        self._withdraw_unsent_node_orders()
        self._update_node_progress()
        return tuple(self.progress.values())

    def _requests(self) -> list[Request]:
        verb = str(self._plan.verb) + (NOW if self._options.now else "")
        names = [
            name
            for name, target in self._targets.items()
            if not target.under_way and name not in self._replaced
        ]
        by, proof = self._plan.by, "the operator's own command"
        return [
            Request(number, self._clock.now(), verb, name, by, proof)
            for number, name in enumerate(names, 1)
        ]

    def _make_events_of_orders_under_way(self) -> list[Event]:
        """Return what an earlier command has done, as the events that its journal had."""
        fault = ORDERS.get(self._plan.verb, _DELETION).fault
        found: list[Event] = []
        for name, target in self._targets.items():
            if not target.under_way:
                continue
            generation = NodeGeneration(name, InstanceId(target.instance), BootId(target.slurmd))
            rid = make_recovery_id("n", name, generation, fault.rule)
            found += _make_earlier_order_events(
                rid, generation, fault, self._clock.now(), self._plan.by
            )
        return found

    def _run_recovery_cycles(self) -> None:
        """Cycle as long as steps follow each other at once."""
        for _ in range(CYCLES):
            if not self._loop.cycle(self._policy, self._rules).acted:
                return

    def _withdraw_unsent_node_orders(self) -> None:
        """Give back every node that is not ordered, as far as Slurm lets us."""
        self._observer.interrupted = True
        for _ in range(CYCLES):
            if not any(not rec.remedied for rec in self._list_open_recoveries()):
                return
            if not self._loop.cycle(self._policy, self._rules).acted:
                return

    def _list_open_recoveries(self) -> list[NodeRecovery]:
        state = self._memory.state
        return [state.nodes[rid] for rid in state.open_nodes.values()]

    def _require_drains_accepted_by_slurm(self) -> None:
        """Order nothing where one of the nodes cannot be drained. Raises Refused."""
        for rec in self._list_open_recoveries():
            drain = find_last_step_attempt(rec.steps, StepKind.DRAIN)
            outcome = drain.outcome if drain is not None else None
            if outcome is not None and outcome.kind is OutcomeKind.REJECTED:
                self._withdraw_unsent_node_orders()
                raise ServiceCallRefused(
                    f"Slurm could not drain node {rec.node}: {outcome.detail or outcome.code};"
                    " nothing was requested from SageMaker",
                    "run the command as root, SlurmUser or an administrator of Slurm",
                    code=outcome.code,
                )

    def _update_node_progress(self) -> None:
        for name, target in self._targets.items():
            rid = self._memory.state.last_of_node.get(name)
            if rid is None:
                one = describe_unaccepted_node_order(target, self._find_node_refusal_reason(name))
            else:
                rec = self._memory.state.nodes[rid]
                one = describe_node_order_progress(
                    target, rec, self._make_node_order_facts(name, target, rec)
                )
            self.progress[target.instance] = one

    def _find_node_refusal_reason(self, name: NodeName) -> str:
        """Return why nothing was requested for a node, or why the loop refused the request."""
        if name in self._replaced:
            return f"{self._replaced[name]} is in its place by now: look at it, and order again"
        answers = [
            event.answer
            for event in self._journal.events()
            if isinstance(event, RequestTaken) and event.target == name
        ]
        return answers[-1] if answers else ""

    def _make_node_order_facts(
        self, name: NodeName, target: NodeOrderTarget, rec: NodeRecovery
    ) -> NodeOrderFacts:
        observer, row = self._observer, self._provider.rows.get(name)
        failure, fix = self._failures.explain(target, row)
        return NodeOrderFacts(
            verb=self._plan.verb,
            row=row,
            old=self._provider.listed.get(target.instance),
            jobs=() if self._options.now else observer.jobs.get(name, ()),
            tracked=self._scheduler.tracks(name),
            closed_by=self._scheduler.closed_by_others.get(name, ""),
            trouble=self._find_node_progress_blocker(name),
            late=self._lateness.find(rec),
            waits=self._options.wait,
            interrupted=observer.interrupted,
            failure=failure,
            failure_fix=fix,
        )

    def _find_node_progress_blocker(self, name: NodeName) -> str:
        """Return why a node does not go on: Slurm or the service was not read, or hpctl itself
        failed."""
        for flaw in self._loop.flaws:
            if flaw.target == name:
                return f"internal error: {flaw.error}"
        return self._observer.slurm_trouble or self._observer.cloud_trouble


def make_node_order_recovery_policy(options: NodeOrderOptions) -> RecoveryPolicy:
    """Return the numbers by which a command carries an order out.

    Nothing has a deadline but the command's own, and nothing waits for other nodes' faults.
    """
    node = NodeRecoveryPolicy(
        cordon_deadline_s=MAX_SECONDS,
        disturb_after_s=0.0,
        vacate_deadline_s=MAX_SECONDS,
        vacate_after_jobs_deadline_s=MAX_SECONDS,
        remedy_after_s=0.0,
        reboot_deadline_s=MAX_SECONDS,
        replace_deadline_s=MAX_SECONDS,
        rejoin_deadline_s=MAX_SECONDS,
        verify_deadline_s=MAX_SECONDS,
        verify_healthy_s=0.0,
        unrecoverable_jobs=UnrecoverableJobAction.KILL,
        step_retry_s=max(options.every_s, 0.01),
        step_attempts=1_000_000,
        doubt_window_s=DOUBT_S,
    )
    return RecoveryPolicy(mode=OperatingMode.OWN, node=node, attended=True)


def _make_earlier_order_events(
    rid: RecoveryId, generation: NodeGeneration, fault: FaultClass, now: datetime, by: str
) -> list[Event]:
    """Return a recovery whose order was accepted at a time that is not known."""
    step, target = STEPS[fault.ladder[0]], generation.instance
    why = "an earlier command did it"
    return [
        NodeRecoveryOpened(
            now, rid, generation, fault.rule, fault.meaning, fault.urgency, fault.ladder, why,
            OperatingMode.OWN, by=by,
        ),
        SignalSeen(now, rid, NodeRecoverySignal.CORDON_SEEN, why),
        SignalSeen(now, rid, NodeRecoverySignal.JOBS_GONE, why),
        StepStarted(EARLIEST, rid, step, 1, target),
        StepResolved(EARLIEST, rid, step, 1, Outcome.accepted(why)),
    ]  # fmt: skip


def _return_empty_refusal_reason(node: SlurmNode, view: PlanningView) -> str:  # noqa: ARG001
    return ""


_DELETION: Final = OperatorOrder(
    FaultClass(
        RuleId("operator-delete"),
        "an operator asked for its deletion",
        Urgency.AFTER_JOBS,
        (Remedy.DELETE,),
        source="an operator",
    ),
    _return_empty_refusal_reason,
)

DELETIONS: Final = {
    "delete": _DELETION,
    f"delete{NOW}": OperatorOrder(
        replace(_DELETION.fault, urgency=Urgency.NOW), _return_empty_refusal_reason
    ),
}
"""Orders that a command alone carries out: a daemon deletes no node by request."""
