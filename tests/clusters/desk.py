"""An operator at a head node, without the command line."""

import itertools
import time
from collections.abc import Callable

from hpctl.clusters.fleet_joining import with_slurm
from hpctl.clusters.fleet_reading import node_rows, read_fleet
from hpctl.clusters.node_lookup import resolve_all
from hpctl.clusters.node_order_plan import Plan, plan
from hpctl.clusters.order_terms import Verb
from hpctl.clusters.order_walk import Walk
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.paper_slurm import PaperSlurm


class Desk:
    """An operator at a head node."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed = bed
        rows = node_rows(bed.aws, CLUSTER, details=False)
        self.workers = [row.node for row in rows if row.role == "compute"]
        self.controller = next(row.node for row in rows if row.role == "controller")
        self.slurm = PaperSlurm(self.workers)
        self.slept = 0.0

    def plan(self, verb: Verb, *names: str, daemon: bool = False) -> Plan:
        fleet = read_fleet(self.bed.aws, CLUSTER, details=False)
        view = self.slurm.view()
        rows = resolve_all(with_slurm(fleet.rows, view), names)
        return plan(verb, fleet.description, rows, view, by="ana", daemon=daemon)

    def walk(self, order: Plan, *, now: bool = False, wait: bool = True, **more: float) -> Walk:
        return Walk(
            order, self.bed.aws, self.slurm, time.monotonic, self.sleep, now, wait, 0.02, **more
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        time.sleep(min(seconds, 0.02))

    def carry_out(self, order, *, now=False, wait=True, **more):
        walk = self.walk(order, now=now, wait=wait, **more)
        looks = [*itertools.islice(walk.looks(), 500)]
        assert all(one.ended for one in looks[-1]), looks[-1]
        return list(looks[-1])

    def rejoin(self, *names: str) -> Callable[[], None]:
        """As soon as the new instances run, their slurmds register."""

        def registers() -> None:
            for name in names:
                self.slurm.registers(name)

        return registers

    def later(self, *deeds: Callable[[], object]) -> None:
        self.slurm.at_look += [*deeds]
