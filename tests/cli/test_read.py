"""Exit codes and awkward days of the read commands."""

import json

import pytest
from msgspec.structs import replace
from rich.table import Table

from hpctl.cli.explain import resolve_target_node_name
from hpctl.detection.budget import CheckLoadShedder, ProcessResourceUsage
from hpctl.engine.explain_view import build_explain_view
from hpctl.engine.journal.events import GateBlocked, JobReported
from hpctl.engine.status_view import choose_cluster_status_exit_code, make_cluster_status_view
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit import view_drawing
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.cli import worlds
from tests.cli.worlds import healed, troubled, world

pytestmark = pytest.mark.integration


def test_all_is_well_after_a_healed_fault():
    view = make_cluster_status_view(world(healed()))
    assert (view.problems, view.unknowns, choose_cluster_status_exit_code(view)) == (
        (),
        (),
        ExitCode.FINE,
    )


def test_a_fault_that_is_not_treated_yet_is_a_problem(head):
    """Between the first evidence and the daemon's decision, and for good where it is dead."""
    head.write(healed())
    result = head.run("status", "--json")
    assert result.exit_code == ExitCode.PROBLEM
    line, other, left = json.loads(result.stdout)["problems"]
    assert line.startswith("ip-10-1-0-4: Xid 79 on 0000:18:00")
    assert other.endswith("not treated yet: hpctl explain ip-10-1-0-5")
    assert left.startswith("ip-10-1-0-6 is out of service (IDLE+DRAIN): left closed by n-66666666")


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({}, True),
        ({"at": worlds.at(20)}, False),  # long ago
        ({"restarts": 0}, False),  # of another run
        ({"action": RunAction.NONE}, False),
        ({"trouble": None}, False),  # a sign of life came after it
    ],
)
def test_a_job_that_its_own_supervisor_restarts_is_a_problem_for_a_minute(told, problem):
    trouble = Trouble(
        TroubleKind.HANG, worlds.at(70), "rank 3 makes no progress in step 1200", "hang"
    )
    how = {"restarts": 1, "trouble": trouble, "action": RunAction.STEP, "at": worlds.at(71), **told}
    report = JobReport(4242, how["restarts"], how["trouble"], how["action"])
    view = make_cluster_status_view(world(healed(), [JobReported(how["at"], report, 1001)]))
    line = (
        "Job 4242: rank 3 makes no progress in step 1200; its own supervisor restarts it:"
        " hpctl explain 4242"
    )
    assert view.problems == (line,) * problem


def test_what_is_past_is_explained_and_listed_as_ever(history):
    """A healed fault and its job, once they are long over."""
    lines = [("explain", "n-11111111"), ("explain", "j-22222222"), ("explain", "4242")]
    asked = [*lines, ("recoveries", "--all"), ("jobs", "--all"), ("recoveries", "--since", "99d")]
    before = [history.run(*words).stdout for words in asked]
    over = {"n-11111111", "j-22222222"}
    store = history.store()
    assert store.retire(lambda e: worlds.T0 if getattr(e, "recovery", "") in over else None)
    store.close()
    assert [history.run(*words).stdout for words in asked] == before
    assert all("11111111" in text or "22222222" in text for text in before)
    # Nobody has to read it who does not ask for it.
    assert "11111111" not in history.run("recoveries", "--since", "89d").stdout


@pytest.mark.parametrize("name", ["i-00000000000000005", "worker-group-1-4"])
def test_a_node_is_explained_by_the_ids_of_its_instance(history, name):
    by_node = json.loads(history.run("explain", "ip-10-1-0-5", "--json").stdout)
    by_name = json.loads(history.run("explain", name, "--json").stdout)
    assert by_node["target"] == by_name["target"] == "ip-10-1-0-5"
    assert by_node["headline"] == by_name["headline"]


@pytest.mark.parametrize("name", ["i-00000000000000005", "worker-group-1-4", "10.1.0.5"])
def test_each_name_of_a_node_is_known(name):
    slurm = worlds.slurm()
    node = replace(slurm.nodes["ip-10-1-0-5"], address="10.1.0.5")
    w = world(healed(), slurm=replace(slurm, nodes={**slurm.nodes, node.name: node}))
    assert resolve_target_node_name(w, name) == "ip-10-1-0-5"
    assert resolve_target_node_name(w, "i-00000000000000099") == "i-00000000000000099"


def test_what_waits_for_a_person_is_a_problem_until_one_takes_it_up():
    view = make_cluster_status_view(world(healed(), troubled()))
    assert [r.id for r in view.waiting_for_a_person] == ["n-66666666"]
    assert choose_cluster_status_exit_code(view) is ExitCode.PROBLEM
    slurm = worlds.slurm()
    taken = {**slurm.nodes, "ip-10-1-0-6": worlds.slurm_node(6)}
    view = make_cluster_status_view(world(troubled(), slurm=replace(slurm, nodes=taken)))
    assert view.waiting_for_a_person == ()


def test_a_silent_daemon_is_not_alive_and_nothing_is_sure():
    view = make_cluster_status_view(
        world(healed(), daemon=replace(worlds.DAEMON, until=worlds.at(80)))
    )
    assert not view.daemon.alive
    assert choose_cluster_status_exit_code(view) is ExitCode.CANNOT_TELL
    assert "silent" in view.unknowns[0]


def test_checks_that_were_shed_are_no_evidence(head):
    """The agent's own saving is told as that, and not as seen on the node, nor of a recovery."""
    (answer,) = _shed().observations(["dcgm"])
    shed = Finding(
        "agent.checks", answer.verdict, worlds.at(1), worlds.at(80), code=answer.code,
        detail=answer.detail,
    )  # fmt: skip
    sick = NodeHealth(worlds.gen(5), worlds.at(88.5), (worlds.XID79, shed))
    judged = assess_health(sick, build_fault_rules(), worlds.NOW)
    opened = worlds.node_opened("n-99999999", worlds.gen(5), 60, findings=judged.findings)
    head.write(healed())
    store = head.store()
    store.record([sick, NodeHealth(worlds.gen(3), worlds.at(88), (shed,))])
    for target, seen in (
        ("ip-10-1-0-5", ["kernel.xid"]), ("ip-10-1-0-3", []), ("n-99999999", ["kernel.xid"])
    ):  # fmt: skip
        if target.startswith("n-"):
            store.append([opened])
        shown = json.loads(head.run("explain", target, "--json").stdout)
        assert [e["check"] for e in shown["evidence"]] == seen
        assert ("leaves checks out: not run to save" in shown["headline"]) is (target[0] == "i")
    store.close()


def _shed() -> CheckLoadShedder:
    """A budget that was exceeded for long enough."""
    used = iter(ProcessResourceUsage(10.0 * n, 1.0) for n in range(9))
    budget = CheckLoadShedder([1], measure=lambda: next(used))
    for minute in range(5):
        budget.look(61.0 * minute)
    return budget


def test_a_node_that_was_removed_is_not_missed(history):
    """Nobody lists ip-10-1-0-9 any more: its agent is silent because there is none."""
    gone = NodeHealth(worlds.gen(9), worlds.at(-600))
    odd = NodeHealth(worlds.gen(8), worlds.at(89))
    store = history.store()
    before = json.loads(history.run("status", "--json").stdout)["facts"]
    store.record([gone, odd])
    store.close()
    facts = json.loads(history.run("status", "--json").stdout)["facts"]
    assert facts["agents"] == before["agents"] + 1
    assert facts["agents_silent"] == before["agents_silent"]
    assert facts["oldest_report"] == before["oldest_report"]
    names = [node["name"] for node in json.loads(history.run("nodes", "--json").stdout)["nodes"]]
    assert "ip-10-1-0-9" not in names
    assert "ip-10-1-0-8" in names
    history.slurm = None
    assert "ip-10-1-0-9" in history.run("nodes", "--json").stdout


def test_status_and_previews_know_of_the_kill_switch(history):
    (history.dir / "STOP").touch()
    shown = json.loads(history.run("status", "--json").stdout)
    assert "STOP exists" in shown["stopped"]
    preview = history.run("reboot", "ip-10-1-0-3", "--dry-run")
    assert preview.exit_code == 1
    assert "held by kill_switch" in preview.stdout


def test_heartbeats_that_were_not_stored_yet_make_no_node_unknown(history):
    """The daemon stores them every quarter of its lease: 25 s old is not silent for 20 s."""
    store = history.store()
    aged = [replace(h, last_heard=worlds.at(65)) for h in worlds.health().values()]
    store.record([h for h in aged if not h.findings])
    store.close()
    shown = json.loads(history.run("status", "--json").stdout)
    assert shown["nodes"]["by_condition"] == {"faulty": 2, "healthy": 5, "unknown": 1}


def test_a_table_of_many_nodes_says_the_same(history, monkeypatch):
    few = history.run("nodes").stdout
    monkeypatch.setattr(view_drawing, "MANY", 0)
    monkeypatch.setattr(Table, "add_row", None)  # rich takes seconds for 10,000 rows
    many = history.run("nodes").stdout
    assert [line.split() for line in many.splitlines()] == [x.split() for x in few.splitlines()]
    assert len(many.splitlines()) > 5


def test_without_slurm_or_cloud_states_are_unknown_not_absent(history):
    history.slurm = history.cloud = None
    status = history.run("status", "--json")
    shown = json.loads(status.stdout)
    assert shown["nodes"]["slurm_total"] is None
    assert "it does not answer" in shown["unknowns"][0]
    assert status.exit_code == 1  # a known problem outweighs what is not known
    nodes = history.run("nodes", "--json")
    rows = json.loads(nodes.stdout)["nodes"]
    assert {(n["slurm_state"], n["instance_status"]) for n in rows} == {("UNKNOWN", "UNKNOWN")}
    assert nodes.exit_code == ExitCode.CANNOT_TELL


def test_open_wins_over_held_wins_over_ended():
    hold = GateBlocked(worlds.at(80), "ip-10-1-0-2", "offender", "again", "xid-79", True)
    held = build_explain_view(world(healed(), [hold]), worlds.RULES, "ip-10-1-0-2")
    assert (held.kind, held.related) == ("hold", ("n-11111111",))
    ended = build_explain_view(world(healed()), worlds.RULES, "ip-10-1-0-2")
    assert ended.kind == "node_recovery"


def test_a_waived_gate_is_shown_with_who_waived_it():
    opened = worlds.node_opened(
        "n-77777777", worlds.gen(7), 1, passed=("paused", "budget (waived by carol)"), by="carol"
    )
    view = build_explain_view(world([opened]), worlds.RULES, "n-77777777")
    assert [(g.name, g.result, g.why) for g in view.gates] == [
        ("paused", "passed", ""),
        ("budget", "waived", "waived by carol"),
    ]
    assert "requested by carol" in view.story[0].text


@pytest.mark.parametrize(("began", "kind"), [(60.0, "node"), (30.0, "node_recovery")])
def test_what_began_after_a_nodes_last_recovery_is_reported_first(began, kind):
    name, device = "ip-10-1-0-2", "rdmap79s0"
    down = Finding(
        "efa.link", DeviceVerdict.FAIL, worlds.at(began), worlds.at(89), device, "down",
        "port is DOWN, link Disabled", clears=ClearCondition.GONE,
    )  # fmt: skip
    text = replace(worlds.health()[name], findings=(down,))
    facts = {**worlds.health(), name: text}
    judged = {n: assess_health(h, build_fault_rules(), worlds.NOW) for n, h in facts.items()}
    view = build_explain_view(
        world(healed(), health=facts, assessments=judged), build_fault_rules(), name
    )
    assert view.kind == kind
    if kind == "node":
        assert "last treated by n-11111111" in view.headline
        assert "[efa-link-down]" in view.headline
        assert [e.check for e in view.evidence] == ["efa.link"]
        assert view.related == ("n-11111111",)
