"""What `status` lists as out of service is what Slurm gives no work to, whatever the world is."""

import random
import re
import time
from typing import Any

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, GateBlocked, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.engine.out_of_service import OutOfServiceCause
from hpctl.engine.plan import find_node_recovery_candidates
from hpctl.engine.status_view import (
    ClusterStatusView,
    choose_cluster_status_exit_code,
    make_cluster_status_view,
)
from hpctl.engine.world import World
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.instance_join import InstanceNodeMapping
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.node_recovery import MAINTENANCE_BEGINS
from hpctl.vocabulary.reason import format_hpctl_node_reason, parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode, SlurmReservation
from tests.fakes.values import OWN, at, faulty, generation, node_name, opened, slurm_node

RULES = build_fault_rules()
NOW = at(100)
NODES = 8
BASES = ("IDLE", "IDLE", "ALLOCATED", "MIXED", "DOWN", "DOWN", "UNKNOWN", "ERROR")
FLAGS = (
    "DRAIN", "DRAIN", "DRAIN", "FAIL", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "COMPLETING",
    "INVALID_REG", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "CLOUD", "RESERVED", "PLANNED",
    "REBOOT_REQUESTED", "REBOOT_ISSUED", "DYNAMIC_NORM",
)  # fmt: skip
THEIRS = ("bad fan", "upgrade of the kernel", "NHC: disk full")
OF_SLURM = ("Not responding", "Prolog error", "Node unexpectedly rebooted", "ResumeTimeout reached")
MARKS = ("Action:Reboot", "Action:Replace", "Action:Replace : Not responding")
ENDINGS = (
    (), ("cordon_seen",), ("cordon_seen", "jobs_gone"), ("operator_cancelled",),
    ("cordon_seen", "operator_took_over"), ("cordon_seen", "needs_human"), ("node_gone",),
    ("cordon_seen", "jobs_gone", "deadline"), ("cordon_seen", "jobs_gone", "operator_cancelled"),
    ("cordon_seen", "jobs_gone", "nothing_to_remedy", "return_seen"), ("cordon_seen", "withdrawn"),
    ("cordon_seen", "jobs_gone", "remedy_accepted", "instance_gone"),
)  # fmt: skip


def gives_no_work(node: SlurmNode) -> bool:
    """What Slurm's own documentation says of these states, apart from hpctl's code."""
    if node.flags & {"DRAIN", "FAIL", "MAINT", "MAINTENANCE", "INVALID_REG"}:
        return True
    if node.state == "DOWN" and node.reason == "ResumeTimeout reached":
        return True
    if node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"}:
        return False
    return node.state in ("DOWN", "UNKNOWN", "ERROR") or "NOT_RESPONDING" in node.flags


class RandomWorld:
    """Some nodes, each in any state with any history, whether that is likely or not."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.log: list[Event] = []
        self.nodes: dict[str, SlurmNode] = {}
        self.judged: dict[str, NodeAssessment] = {}
        self.instances: dict[str, Instance] = {}
        self._reserved: list[str] = []
        for number in range(1, NODES + 1):
            self._add(number)

    def _add(self, number: int) -> None:
        dice, name = self._dice, node_name(number)
        known = self._add_history(name)
        reason = dice.choice(self._list_reasons(known, name))
        flags = frozenset(dice.sample(FLAGS, dice.choice((0, 0, 1, 1, 2, 3))))
        user = dice.choice(("", "", "alice"))
        self.nodes[name] = slurm_node(
            number, state=dice.choice(BASES), flags=flags, reason=reason, reason_by=user
        )
        if dice.random() < 0.4:
            self.judged[name] = self._judge(name)
        if dice.random() < 0.2:
            self._reserved.append(name)
        if dice.random() < 0.5:
            instance = generation(name).instance
            status = dice.choice(list(InstanceStatus))
            self.instances[name] = Instance(instance, status, "workers", name)

    def _add_history(self, name: str) -> list[str]:
        """Write down the recoveries of a node; return their ids."""
        ids = []
        for number in range(self._dice.choice((0, 1, 1, 2))):
            rid = f"r-{name}-{number}"
            ending = self._dice.choice(ENDINGS[3:] if number == 0 else ENDINGS)
            ladder = (Remedy.DELETE,) if "instance_gone" in ending else (Remedy.REPLACE,)
            changes: dict[str, Any] = {"ladder": ladder}
            kind = self._dice.random()
            if kind < 0.15:
                changes["group"] = "workers"
            elif kind < 0.3:
                changes["rule"] = MAINTENANCE_BEGINS
            self.log.append(opened(rid, name, 10 * number, **changes))
            for step, signal in enumerate(ending):
                moved = at(10 * number + step + 1)
                self.log.append(SignalSeen(moved, rid, signal, f"{signal} was seen"))
            ids.append(rid)
        if self._dice.random() < 0.15:
            self.log.append(
                GateBlocked(at(90), name, "drain_budget", "4 nodes are closed", "xid-79")
            )
        return ids

    def _list_reasons(self, known: list[str], name: str) -> list[str]:
        own = [format_hpctl_node_reason(rid, "Xid 79") for rid in (*known, f"r-{name}-lost")]
        return ["", *own, *own, self._dice.choice(THEIRS), *OF_SLURM, self._dice.choice(MARKS)]

    def _judge(self, name: str) -> NodeAssessment:
        if self._dice.random() < 0.6:
            return faulty(name, seconds=self._dice.choice((-10.0, 50.0)))
        condition = self._dice.choice(
            (NodeCondition.HEALTHY, NodeCondition.SUSPECT, NodeCondition.UNKNOWN)
        )
        return NodeAssessment(generation(name), condition, at(0))

    def build(self) -> World:
        """The world as `status` has it: of a daemon that decided, or of one that cannot act."""
        reserved = {"window": SlurmReservation("window", tuple(self._reserved), maintenance=True)}
        asked = self._dice.random() < 0.5
        slurm = SchedulerView(NOW, self.nodes, reservations=reserved if asked else None)
        world = World(
            NOW,
            OWN,
            replay_events(self.log),
            slurm=slurm,
            assessments=self.judged,
            health={n: NodeHealth(a.generation, NOW) for n, a in self.judged.items()},
            joined=InstanceNodeMapping(instances=self.instances),
        )
        if self._dice.random() < 0.3:
            return world
        return replace(
            world, candidates=tuple(find_node_recovery_candidates(world.view(), RULES, NOW)[0])
        )


def named_in(view: ClusterStatusView) -> set[str]:
    """The nodes that the lines of problems name."""
    return set(re.findall(r"(?<![\w-])n\d+(?![\w-])", "\n".join(view.problems)))


def check_accounts(seed: int) -> None:
    made = RandomWorld(seed)
    world = made.build()
    view = make_cluster_status_view(world)
    listed = [name for row in view.out_of_service for name in row.nodes]
    closed = {name for name, node in made.nodes.items() if gives_no_work(node)}
    assert sorted(listed) == sorted(closed), set(listed) ^ closed
    told = named_in(view)
    by = {name: row for row in view.out_of_service for name in row.nodes}
    assert {name for name, row in by.items() if row.problem} <= told
    for name, row in by.items():
        node = made.nodes[name]
        assert row.why, row
        owner = parse_recovery_id_from_reason(node.reason)
        removal = owner in world.state.nodes and world.state.nodes[owner].phase == "removed"
        removal |= owner in world.state.nodes and world.state.nodes[owner].is_for_capacity_change
        if owner is not None and (node.drained or node.down) and not removal:
            in_maintenance = name in world.maintenance or node.flags & {"MAINT", "MAINTENANCE"}
            at_work = world.state.node_recovery(name)
            planned = at_work and (at_work.is_for_capacity_change or at_work.is_for_maintenance)
            assert row.problem or in_maintenance or planned, row
        if row.by == "administrator":
            theirs = node.reason and owner is None
            reserved = name in world.maintenance or node.flags & {"MAINT", "MAINTENANCE"}
            assert theirs or reserved or node.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED"}, row
    for name, rid in world.state.last_of_node.items():
        latched = world.assessments.get(name)
        removed = (
            world.state.nodes[rid].phase == "removed"
            or world.state.nodes[rid].is_for_capacity_change
        )
        if latched is not None and latched.condition is NodeCondition.FAULTY and not removed:
            assert name in told, (name, latched)
    if told:
        assert choose_cluster_status_exit_code(view) is ExitCode.PROBLEM


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_status_accounts_for_every_node_out_of_service(seed: int) -> None:
    for one in range(seed, seed + 50):
        check_accounts(one)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_status_accounts_for_every_node_out_of_service_in_ten_thousand_worlds() -> None:
    for seed in range(1000, 11000):
        check_accounts(seed)


def test_each_account_is_reached_by_some_world() -> None:
    """The worlds are not of one kind."""
    views = [make_cluster_status_view(RandomWorld(seed).build()) for seed in range(100)]
    found = {row.by for view in views for row in view.out_of_service}
    assert found == {one.value for one in OutOfServiceCause}


def test_ten_thousand_held_nodes_are_accounted_for_in_one_pass() -> None:
    """Each hold has the reason of the last cycle, which is looked up and not searched for."""
    log: list[Event] = []
    nodes = {}
    for number in range(1, 10_001):
        name = node_name(number)
        log.append(GateBlocked(at(90), name, "correlated", "2 nodes at once", "xid-79"))
        nodes[name] = slurm_node(number, state="DOWN", reason="Not responding")
    newest = tuple(
        GateBlocked(at(95), name, "correlated", "all at once", "xid-79") for name in nodes
    )
    world = World(NOW, OWN, replay_events(log), slurm=SchedulerView(NOW, nodes), holds=newest)
    begun = time.process_time()
    (row,) = make_cluster_status_view(world).out_of_service
    assert (row.by, row.why) == ("gate", "gate correlated: all at once")
    assert len(row.nodes) == len(nodes)
    # A search for each of them takes a minute.
    assert time.process_time() - begun < 15


def test_a_reason_adds_no_command_to_what_a_person_is_to_run() -> None:
    node = slurm_node(1, state="IDLE", flags=frozenset({"INVALID_REG"}), reason="`rm -rf /`")
    world = World(NOW, OWN, replay_events([]), slurm=SchedulerView(NOW, {node.name: node}))
    (task,) = make_cluster_status_view(world).person_tasks
    assert task.commands == (f"scontrol show node {node.name}",)


def test_a_planned_window_is_no_problem_and_a_fault_in_it_is_one() -> None:
    """A window holds n1, closed by hpctl's own recovery, which waits at the gate `maintenance`."""
    window = SlurmReservation("window", ("n1",), maintenance=True)
    closed = slurm_node(
        1, flags=frozenset({"DRAIN", "MAINTENANCE"}), reason=format_hpctl_node_reason("r-1", "w")
    )
    log = [
        opened("r-1", "n1", 0, rule=MAINTENANCE_BEGINS),
        SignalSeen(at(1), "r-1", "cordon_seen", ""),
        GateBlocked(at(2), "n1", "maintenance", "the window holds the node", MAINTENANCE_BEGINS),
    ]
    healthy = World(
        NOW,
        OWN,
        replay_events(log),
        slurm=SchedulerView(NOW, {"n1": closed}, reservations={"window": window}),
        assessments={"n1": NodeAssessment(generation("n1"), NodeCondition.HEALTHY, at(0))},
        health={"n1": NodeHealth(generation("n1"), NOW)},
    )
    view = make_cluster_status_view(healthy)
    assert view.problems == ()
    assert [(row.nodes, row.problem) for row in view.out_of_service] == [(("n1",), False)]
    assert (
        choose_cluster_status_exit_code(replace(view, unknowns=())) is ExitCode.FINE
    )  # no daemon is known
    sick = replace(healthy, assessments={"n1": faulty("n1")})
    assert "n1" in named_in(make_cluster_status_view(sick))
