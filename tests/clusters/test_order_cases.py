"""What an order by hand does to Slurm and to the service, call by call, in the cases that matter.

Each case is a whole order over HTTP against the emulator: its mutating calls in sequence, with
nodes by number, and what became of each node.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hpctl.clusters.fleet_reading import read_fleet
from hpctl.clusters.node_lookup import resolve_nodes_by_names
from hpctl.clusters.node_order_plan import NodeOrderPlan, build_node_order_plan
from hpctl.clusters.order_terms import NodeAction
from tests.clusters.bed import CLUSTER, AwsBed
from tests.clusters.desk import Desk
from tests.sagemaker.contract.beds import group
from tests.tables import beside

pytestmark = pytest.mark.integration

CASES = beside(__file__, "order_cases.yaml")
GROUPS = [
    group("controller", "Controller", 1),
    group("workers", "Compute", 3),
    group("others", "Compute", 2),
]


class OrderCase:
    """One case: a desk, what others do at each look, and the calls that change something."""

    def __init__(self, desk: Desk, case: dict[str, Any]) -> None:
        self.desk, self.case = desk, case
        self.calls: list[str] = []
        self.views = 0
        self.ids = {name: self.instance(name) for name in desk.workers}
        self._registered: set[str] = set()
        self._seen_view = desk.slurm.view
        desk.slurm.view = self.view  # type: ignore[method-assign]
        handle = desk.bed.emulator.handlers
        for operation in ("Replace", "Reboot", "Delete"):
            name = f"Batch{operation}ClusterNodes"
            handle[name] = self._record(operation.lower(), handle[name])

    def _record(self, verb: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        numbers = {i: n for n, i in enumerate(self.ids.values())}

        def recorded(body: Any) -> Any:
            sent = [numbers.get(i, "new") for i in body.get("NodeIds", ())]
            self.calls.append(f"{verb} {' '.join(map(str, sent))}")
            return handler(body)

        return recorded

    def number(self, name: str) -> int:
        return self.desk.workers.index(name)

    def instance(self, name: str) -> str:
        world = self.desk.bed.emulator.world
        with world.lock:
            nodes = world.cluster(CLUSTER).nodes.values()
            return next((str(n.state.instance_id) for n in nodes if n.node == name), "")

    def update(self, state: str, names: Any) -> None:
        if state != "RESUME" or any(self.desk.slurm.nodes[n].closed for n in names):
            self.calls.append(f"{state} {' '.join(str(self.number(n)) for n in names)}")

    def view(self) -> Any:
        """One look at Slurm: first what the case says, then new slurmds register."""
        self.views += 1
        for at, deed in self.case.get("at", {}).items():
            if self.views == at:
                self.do(deed)
        sent = {call.partition(" ")[0] for call in self.calls}
        for name in self.desk.workers:
            fresh = self.instance(name) not in ("", self.ids[name])
            booted = "reboot" in sent or "earlier reboot" in self.case
            if (fresh or (booted and self.views > 6)) and name not in self._registered:
                self._registered.add(name)
                self.desk.slurm.registers(name)
        return self._seen_view()

    def do(self, deed: str) -> None:
        verb, _, at = deed.partition(" ")
        name = self.desk.workers[int(at)] if at else ""
        slurm = self.desk.slurm
        if verb == "end":
            slurm.jobs.clear()
        elif verb == "resume":
            slurm.change(name, "IDLE")
        elif verb == "mark":
            slurm.change(name, slurm.nodes[name].state, "Action:Replace", "FAIL")
        elif verb == "seize":
            slurm.change(name, slurm.nodes[name].state, "bob: bad cable", "DRAIN")


def play(bed: AwsBed, case: dict[str, Any]) -> tuple[list[str], list[str]]:
    desk = Desk(bed)
    played = OrderCase(desk, case)
    for name, fields in case.get("nodes", {}).items():
        worker = desk.workers[name]
        reason = fields["reason"].replace("$id", played.ids[worker])
        desk.slurm.change(worker, fields.get("state", "IDLE"), reason, *fields["flags"])
    for job, at in case.get("jobs", {}).items():
        desk.slurm.run(job, *(desk.workers[n] for n in at))
    for fault in case.get("faults", []):
        nodes = [played.ids[desk.workers[n]] for n in fault.get("nodes", ())]
        bed.emulator.faults.add(**fault | ({"nodes": nodes} if nodes else {}))
    desk.slurm.denied = case.get("denied", False)
    verb, *at = case["order"]
    order = make_plan(desk, NodeAction(verb), [desk.workers[n] for n in at], case)
    for replaced in case.get("replaced meanwhile", []):
        bed.emulator.start_unrequested_recovery(played.ids[desk.workers[replaced]])
        bed.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    watch(desk, played)
    run = begin(desk, order, case)
    last: Any = ()
    error = ""
    try:
        for looks, last in enumerate(itertools.islice(run.iter_progress(), 450), 1):
            if interrupts(case, looks, last):
                break
        if not all(one.has_ended for one in last):
            last = run.let_go()
    except Exception as raised:  # noqa: BLE001 -- what a case raises is its result
        error = str(raised)
    found = [
        f"{played.number(one.node)}: {one.phase.value}"
        + (f" {one.code}" if one.code else "")
        + (" drained" if one.left_drained else "")
        for one in last
    ]
    return played.calls, [error] if error else found


def interrupts(case: dict[str, Any], looks: int, last: Any) -> bool:
    """Whether an operator presses Ctrl-C: after so many looks, or when only jobs are waited for."""
    wanted = case.get("interrupt", 0)
    if wanted == "jobs":
        return all(one.has_ended or one.jobs for one in last)
    return looks == wanted


def compare(calls: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The calls in sequence, and those about each node: in which order two nodes come back
    depends on the machine."""
    by_node: dict[str, list[str]] = {}
    for call in calls:
        verb, *nodes = call.split()
        for node in nodes:
            by_node.setdefault(node, []).append(verb)
    return [call for call in calls if not call.startswith("RESUME")], by_node


def make_plan(
    desk: Desk, verb: NodeAction, names: list[str], case: dict[str, Any]
) -> NodeOrderPlan:
    if not case.get("laptop"):
        return desk.plan(verb, *names)
    fleet = read_fleet(desk.bed.aws, CLUSTER, details=False)
    return build_node_order_plan(
        verb, fleet.description, resolve_nodes_by_names(fleet.rows, names), None, by="ana"
    )


def watch(desk: Desk, played: OrderCase) -> None:
    """Write down what is asked of Slurm."""
    update = desk.slurm.update

    def updated(nodes: Any, state: str, rule: Any) -> Any:
        played.update(state, nodes)
        return update(nodes, state, rule)

    desk.slurm.update = updated  # type: ignore[method-assign]


def begin(desk: Desk, order: Any, case: dict[str, Any]) -> Any:
    options = {"now": case.get("now", False), "floor": case.get("floor", {})}
    if case.get("laptop"):
        desk.slurm = None  # type: ignore[assignment]
    return desk.begin(order, **options)


@pytest.fixture(scope="module")
def shared_bed():
    made = AwsBed(workers=3, InstanceGroups=GROUPS)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_order_is_carried_out_call_by_call(shared_bed, case):
    shared_bed.reset()
    handlers = dict(shared_bed.emulator.handlers)
    try:
        calls, ends = play(shared_bed, case)
    finally:
        shared_bed.emulator.handlers = handlers
        shared_bed.emulator.faults.clear()
    assert compare(calls) == compare(case["calls"])
    assert ends == case["ends"]
