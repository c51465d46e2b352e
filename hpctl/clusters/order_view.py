"""What the loop of an order sees: Slurm, the service, and of each slurmd when it began."""

from collections.abc import Mapping, Sequence

from hpctl.clusters.node_order_plan import NodeOrderTarget, format_slurmd_start
from hpctl.clusters.order_cloud import NodeOrderCloudProvider
from hpctl.clusters.order_slurm import NodeOrderScheduler
from hpctl.clusters.order_terms import NodeOrderOptions
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView, group_jobs_by_node
from hpctl.faults.catalogue import FaultRules
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob


def list_ids_of_unfinished_jobs(jobs: Sequence[SlurmJob]) -> tuple[int, ...]:
    """Return the ids of the jobs that still hold a node, in their order."""
    return tuple(sorted(int(job.id) for job in jobs if job.running or job.completing))


class NodeOrderObserver:
    """What the loop of an order sees: Slurm, the service, and of each slurmd when it began."""

    def __init__(
        self,
        targets: Mapping[NodeName, NodeOrderTarget],
        scheduler: NodeOrderScheduler,
        provider: NodeOrderCloudProvider,
        options: NodeOrderOptions,
    ) -> None:
        """Read the service once. Raises as reads do."""
        self._targets = targets
        self._scheduler, self._provider, self._options = scheduler, provider, options
        self._slurm: SchedulerView | None = None
        self._cloud = provider.view()
        self.interrupted = False
        self.slurm_trouble = ""
        self.cloud_trouble = ""
        self.jobs: Mapping[NodeName, Sequence[int]] = {}
        """The jobs that hold each node."""

    def look(
        self, state: EngineState, rules: FaultRules, acts: bool = True, *, quiet: bool = False
    ) -> PlanningView:
        """Return the world now; Slurm and the service as they were where they do not answer.

        Raises Unavailable where Slurm was never read.
        """
        slurm = self._read_scheduler_view(state)
        running = group_jobs_by_node(list(self._targets), slurm.jobs)
        self.jobs = {name: list_ids_of_unfinished_jobs(here) for name, here in running.items()}
        if self._needs_cloud_read(state):
            self._read_cloud()
        return PlanningView(
            scheduler=slurm,
            provider=self._cloud,
            health=self._derive_node_health(state, slurm),
            assessments={},
            state=state,
            instances=self._provider.find_instances(),
            current=not self.slurm_trouble,
            withdrawn=self._find_withdrawn_orders(state),
        )

    def _read_scheduler_view(self, state: EngineState) -> SchedulerView:
        try:
            self._slurm = self._scheduler.show(state.open_nodes)
            self.slurm_trouble = ""
        except ServiceUnavailable as error:
            if self._slurm is None:
                raise
            self.slurm_trouble = str(error)
        return self._slurm

    def _needs_cloud_read(self, state: EngineState) -> bool:
        """Return whether a node is ordered, or is about to be: the service is not asked before."""
        recoveries = [state.nodes[rid] for rid in state.open_nodes.values()]
        return any(rec.remedied or self._is_node_ready_for_order(rec.node) for rec in recoveries)

    def _is_node_ready_for_order(self, name: NodeName) -> bool:
        return self._options.now or not self.jobs.get(name)

    def _read_cloud(self) -> None:
        try:
            self._cloud = self._provider.view()
            self.cloud_trouble = ""
        except ServiceUnavailable as error:
            self.cloud_trouble = str(error)

    def _derive_node_health(
        self, state: EngineState, slurm: SchedulerView
    ) -> dict[NodeName, NodeHealth]:
        """Return a slurmd that answers speaks for its node: when it began tells one boot from
        another."""
        heard: dict[NodeName, NodeHealth] = {}
        for name, target in self._targets.items():
            row = self._provider.rows.get(name)
            node = slurm.nodes.get(name)
            instance = self._provider.find_instance_id(row) if row else InstanceId(target.instance)
            boot = target.slurmd
            if name in state.open_nodes:
                if row is None or node is None or not node.responding:
                    continue
                boot = format_slurmd_start(node) if self._scheduler.tracks(name) else ""
            # Where Slurm does not tell when its slurmd began, another instance is another boot.
            boot = boot or f"of {instance}"
            heard[name] = NodeHealth(NodeGeneration(name, instance, BootId(boot)), slurm.as_of)
        return heard

    def _find_withdrawn_orders(self, state: EngineState) -> dict[NodeName, str]:
        waiting = [
            name
            for name in self._targets
            if (rec := state.node_recovery(name)) is not None and not rec.remedied
        ]
        if self.interrupted:
            return dict.fromkeys(waiting, "nothing was ordered for it")
        if self.cloud_trouble:
            return {}
        return self._find_nodes_breaking_group_minimum(
            [name for name in waiting if self._is_node_ready_for_order(name)]
        )

    def _find_nodes_breaking_group_minimum(self, ready: Sequence[NodeName]) -> dict[NodeName, str]:
        """Return the nodes that would bring a group below its floor."""
        counts = self._provider.targets_of_groups
        room = {group: counts.get(group, 0) - keep for group, keep in self._options.floor.items()}
        kept: dict[NodeName, str] = {}
        for name in ready:
            group = self._targets[name].row.group
            if room.get(group, 1) <= 0:
                kept[name] = f"others have brought {group} down to {counts.get(group, 0)}"
            if group in room:
                room[group] -= 1
        return kept
