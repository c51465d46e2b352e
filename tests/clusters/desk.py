"""An operator at a head node, without the command line."""

import itertools
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from hpctl.clusters.fleet_joining import add_slurm_states_to_node_rows
from hpctl.clusters.fleet_reading import read_fleet, read_node_rows
from hpctl.clusters.node_lookup import resolve_nodes_by_names
from hpctl.clusters.node_order_plan import NodeOrderPlan, build_node_order_plan
from hpctl.clusters.order_loop import NodeOrderExecution
from hpctl.clusters.order_ports import NodeOrderPorts
from hpctl.clusters.order_terms import NodeAction, NodeOrderOptions
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.paper_slurm import BEGUN, PaperSlurm


class Desk:
    """An operator at a head node."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed = bed
        rows = read_node_rows(bed.aws, CLUSTER, details=False)
        self.workers = [row.node for row in rows if row.role == "compute"]
        self.controller = next(row.node for row in rows if row.role == "controller")
        self.slurm = PaperSlurm(self.workers)
        self.slept = 0.0

    def plan(self, verb: NodeAction, *names: str, daemon: bool = False) -> NodeOrderPlan:
        fleet = read_fleet(self.bed.aws, CLUSTER, details=False)
        view = self.slurm.view()
        rows = resolve_nodes_by_names(add_slurm_states_to_node_rows(fleet.rows, view), names)
        return build_node_order_plan(verb, fleet.description, rows, view, by="ana", daemon=daemon)

    def begin(self, order: NodeOrderPlan, **how: Any) -> NodeOrderExecution:
        options = NodeOrderOptions(every_s=2.0, **how)
        return NodeOrderExecution(order, self.ports(), options)

    def ports(self) -> NodeOrderPorts:
        return NodeOrderPorts(self.bed.aws, self.slurm, self, self.sleep)

    def now(self) -> datetime:
        """The desk's own clock, which goes on while it sleeps."""
        return BEGUN + timedelta(seconds=self.slept)

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        time.sleep(min(seconds, 0.02))

    def carry_out(self, order, **how):
        looks = [*itertools.islice(self.begin(order, **how).iter_progress(), 500)]
        assert all(one.has_ended for one in looks[-1]), looks[-1]
        return list(looks[-1])

    def rejoin(self, *names: str) -> Callable[[], None]:
        """As soon as the new instances run, their slurmds register."""

        def registers() -> None:
            for name in names:
                self.slurm.registers(name)

        return registers

    def later(self, *deeds: Callable[[], object]) -> None:
        self.slurm.at_look += [*deeds]
