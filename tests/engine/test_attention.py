"""What needs a person: each thing once, with the command to run, before all else."""

from msgspec.structs import replace

from hpctl.engine.attention import PERSONS_GATES, PersonTask
from hpctl.engine.gates import GATES
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.status_view import ClusterStatusView, make_cluster_status_view
from hpctl.vocabulary.identity import NodeName
from tests.cli import worlds


def tasks(*events, **change) -> tuple[PersonTask, ...]:
    return make_cluster_status_view(worlds.world(*events, **change)).person_tasks


def blocked(gate: str, nodes: range, rule: str = "xid-79") -> list[GateBlocked]:
    why = f"{len(nodes)} nodes have {rule}"
    return [GateBlocked(worlds.at(30 + n), f"ip-10-1-0-{n}", gate, why, rule, True) for n in nodes]


def test_an_escalated_node_is_named_by_its_fault_with_the_commands() -> None:
    (task,) = tasks(worlds.healed(), worlds.troubled())
    assert task.title == "ip-10-1-0-6: GSP RPC timeout"
    assert task.commands == ("hpctl undrain ip-10-1-0-6", "hpctl replace ip-10-1-0-6")
    assert (task.explain, task.since) == ("n-66666666", worlds.at(44))


def test_holds_lifted_by_one_command_are_one_task_and_come_first() -> None:
    found = tasks(worlds.troubled(), blocked("correlated", range(100, 141)))
    assert found[0].title == "41 nodes (ip-10-1-0-[100-140]): xid-79"
    assert found[0].commands == ("hpctl approve --rule xid-79",)
    assert len(found[0].targets) == 41
    assert [task.explain for task in found[1:]] == ["n-66666666"]


def test_one_blocked_node_is_approved_by_its_name() -> None:
    (task,) = tasks(blocked("offender", range(5, 6)))
    assert task.title == "ip-10-1-0-5: GPU fell off the bus"
    assert task.commands[0] == "hpctl approve ip-10-1-0-5"


def test_transient_gate_needs_no_person() -> None:
    assert tasks(blocked("budget", range(5, 6))) == ()
    assert tasks(blocked("drain_budget", range(5, 6))) == ()
    by_themselves = {"stale_facts", "wrong_instance", "provider_acts", "maintenance"}
    by_themselves |= {"power_saving", "foreign_drain", "drain_budget", "observing"}
    assert {row.name for row in GATES} - PERSONS_GATES == by_themselves


def test_a_node_that_slurm_closed_says_the_command_with_its_name() -> None:
    slurm = worlds.slurm()
    name = NodeName("ip-10-1-0-7")
    bad = replace(slurm.nodes[name], reason="Prolog error")
    found = tasks(slurm=replace(slurm, nodes={**slurm.nodes, name: bad}))
    task = next(task for task in found if task.explain == name)
    assert task.title == "ip-10-1-0-7: a Prolog failed on the node"
    assert task.commands == ("scontrol update NodeName=ip-10-1-0-7 State=RESUME",)


def test_a_node_that_a_lost_recovery_has_closed_needs_a_person() -> None:
    """The journal does not know the recoveries that two nodes bear in their Reason."""
    found = {task.explain: task for task in tasks(slurm=worlds.slurm())}
    task = found["ip-10-1-0-4"]
    assert "is not in the journal" in task.ask
    assert task.commands == ("hpctl undrain ip-10-1-0-4", "hpctl replace ip-10-1-0-4")


def test_drain_of_another_user_and_quiet_cluster_need_no_person() -> None:
    assert tasks() == ()
    assert tasks(worlds.healed()) == ()


def test_no_problem_is_listed_twice_and_none_is_left_out() -> None:
    view: ClusterStatusView = make_cluster_status_view(
        worlds.world(worlds.healed(), worlds.troubled())
    )
    assert view.problems
    assert view.other_problems == []
    without = replace(view, person_tasks=())
    assert without.other_problems == ["ip-10-1-0-6 waits for a person: hpctl explain n-66666666"]
