"""An order that the daemon carries out, followed in its world."""

from collections.abc import Callable, Iterator, Mapping

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
    describe_unreadable_node_order,
)
from hpctl.clusters.order_terms import NodeOrderOptions
from hpctl.clusters.order_view import list_ids_of_unfinished_jobs
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import group_jobs_by_node
from hpctl.engine.world import World
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.node_recovery import NodeRecovery


class DaemonNodeOrderFollower:
    """Looks at the daemon's recoveries until each has ended. Changes nothing."""

    def __init__(
        self,
        plan: NodeOrderPlan,
        refusals: Mapping[NodeName, str],
        read_world: Callable[[], World],
        ports: NodeOrderPorts,
        options: NodeOrderOptions,
    ) -> None:
        """`refusals`: the nodes whose order the daemon refused, and why. Of Slurm `read_world`
        tells, and `ports.slurm` is not asked."""
        self._plan, self._refusals = plan, refusals
        self._read_world, self._sleep, self._options = read_world, ports.sleep, options
        self._targets = {choose_recovery_node_name(target): target for target in plan.targets}
        self._provider = NodeOrderCloudProvider(plan, self._targets, ports.aws, ports.clock.now)
        self._failures = InstanceFailureExplainer(ports.aws, plan.arn, plan.cluster)
        self._recoveries: dict[NodeName, RecoveryId] = {}
        self._state = EngineState()
        self._trouble = ""
        self._jobs: Mapping[NodeName, tuple[int, ...]] = {}
        self._lateness = NodeOrderLatenessTracker(plan.verb, options, ports.clock)
        self._interrupted = False
        self.on_interrupt = "the daemon continues"
        self.progress: dict[str, NodeOrderProgress] = {}
        """The newest of each node, by the instance that the order is for."""

    def iter_progress(self) -> Iterator[tuple[NodeOrderProgress, ...]]:
        """Yield the nodes after every look, `every_s` apart, until each has ended."""
        while True:
            self._read_daemon_state()
            self._update_node_progress()
            yield tuple(self.progress.values())
            if all(one.has_ended for one in self.progress.values()):
                return
            self._sleep(self._options.every_s)

    def let_go(self) -> tuple[NodeOrderProgress, ...]:
        """Stop following. The daemon continues."""
        self._interrupted = True
        self._update_node_progress()
        return tuple(self.progress.values())

    def _read_daemon_state(self) -> None:
        try:
            world = self._read_world()
            self._state, self._trouble = world.state, ""
            if world.slurm is None:
                self._trouble = world.slurm_error
            else:
                running = group_jobs_by_node(list(self._targets), world.slurm.jobs)
                self._jobs = {
                    name: list_ids_of_unfinished_jobs(here) for name, here in running.items()
                }
            self._provider.view()
        except ServiceUnavailable as error:
            self._trouble = str(error)
        for name in self._targets:
            rid = self._state.last_of_node.get(name)
            if rid is not None:
                self._recoveries.setdefault(name, rid)

    def _update_node_progress(self) -> None:
        for name, target in self._targets.items():
            rid = self._recoveries.get(name)
            if name in self._refusals:
                one = describe_unaccepted_node_order(target, self._refusals[name])
            elif rid is None:
                # The daemon has answered, and its next world shows the recovery.
                one = describe_unreadable_node_order(
                    target, self._trouble or "its recovery is not seen yet"
                )
            else:
                rec = self._state.nodes[rid]
                one = describe_node_order_progress(
                    target, rec, self._make_node_order_facts(name, target, rec)
                )
            self.progress[target.instance] = one

    def _make_node_order_facts(
        self, name: NodeName, target: NodeOrderTarget, rec: NodeRecovery
    ) -> NodeOrderFacts:
        row = self._provider.rows.get(name)
        failure, fix = self._failures.explain(target, row)
        return NodeOrderFacts(
            verb=self._plan.verb,
            row=row,
            old=self._provider.listed.get(target.instance),
            jobs=() if self._options.now else self._jobs.get(name, ()),
            trouble=self._trouble,
            late=self._lateness.find(rec),
            interrupted=self._interrupted,
            failure=failure,
            failure_fix=fix,
            by_daemon=True,
        )
