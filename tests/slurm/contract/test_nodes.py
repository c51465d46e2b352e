"""What every Scheduler promises about nodes: drain, down, give_back."""

import time
from datetime import timedelta

import pytest

from hpctl.faults.hma_marks import is_hma_mark_fulfilled
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from tests.slurm.contract.beds import Bed, RealBed, cli, job_of, node_of

pytestmark = [pytest.mark.integration, pytest.mark.contract]

ODD = [
    'xid 79 on "GPU 3" (it\'s gone)', "State=IDLE Reason=none NodeName=n9 x=y=z",
    "# not a comment; $HOME `id` \\ %s [root@2026-01-01T00:00:00]",
    "Grafikkarte fällt aus: ノード故障 é", "x" * 170, " : Not responding",
]  # fmt: skip


def later(bed: Bed) -> None:
    """Let whole seconds pass, in which slurmctld and slurmd tell when a mark and a boot were."""
    ready = time.monotonic() + 2.0
    if bed.real:
        bed.until("seconds have passed", lambda: time.monotonic() > ready)
    else:
        looks = iter(range(10))
        bed.until("seconds have passed", lambda: next(looks) == 9)


def mine(n: int, why: str = "xid 79") -> str:
    """The Reason of recovery rN."""
    return format_hpctl_node_reason(f"r{n}", why)


def codes(outcomes: dict[str, Outcome]) -> list[str]:
    """What became of each: the code of a rejection, or `accepted`."""
    return [o.code or str(o.kind) for o in outcomes.values()]


@pytest.mark.parametrize("why", ODD, ids=range(len(ODD)))
def test_a_drain_keeps_its_reason_to_the_letter_and_resume_ends_it(bed, why):
    node, other = bed.nodes[:2]
    reason = mine(1, why)
    assert codes(dict(bed.scheduler.drain({node: reason}))) == ["accepted"]
    seen = node_of(bed, node)
    assert seen.drained
    assert seen.reason == reason
    assert not node_of(bed, other).drained
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["accepted"]
    bed.until("back in service", lambda: not node_of(bed, node).drained)


def test_a_node_tells_the_version_of_its_slurmd(bed):
    if isinstance(bed, RealBed):
        major, minor, patch = cli(bed.sandbox).version()
        assert node_of(bed, bed.nodes[0]).version == f"{major}.{minor:02}.{patch}"


def test_a_drain_is_convergent_and_takes_over_from_a_recovery_of_ours(bed):
    node = bed.nodes[0]
    for reason in (mine(1), mine(1), mine(2)):
        assert codes(dict(bed.scheduler.drain({node: reason}))) == ["accepted"]
        assert node_of(bed, node).reason == reason


@pytest.mark.parametrize("drained", [False, True])
def test_fail_clears_a_drain_and_a_drain_clears_fail(bed, drained):
    """HyperPod's health agent marks a node so, before our drain or over it."""
    node = bed.nodes[0]
    later(bed)
    if drained:
        bed.scheduler.drain({node: mine(1)})
    bed.operator_fail(node, "Action:Replace")
    marked = node_of(bed, node)
    assert (marked.flags & {"DRAIN", "FAIL"}, marked.reason) == ({"FAIL"}, "Action:Replace")
    assert marked.reason_at is not None
    assert marked.closed
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["not_ours"]
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["not_ours"]
    assert codes(dict(bed.scheduler.drain({node: mine(1)}))) == ["accepted"]
    taken = node_of(bed, node)
    assert (taken.flags & {"DRAIN", "FAIL"}, taken.reason) == ({"DRAIN"}, mine(1))
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["accepted"]
    assert node_of(bed, node).in_service


def test_a_drain_that_spares_marks_leaves_a_marked_node_to_the_service(bed):
    """And closes those beside it, each after a look of its own."""
    node, other = bed.nodes[:2]
    bed.operator_fail(node, "Action:Replace")
    outcomes = bed.scheduler.drain({node: mine(1), other: mine(2)}, spare_marks=True)
    assert codes(dict(outcomes)) == ["marked", "accepted"]
    assert outcomes[node].transient
    left = node_of(bed, node)
    assert (left.flags & {"DRAIN", "FAIL"}, left.reason) == ({"FAIL"}, "Action:Replace")
    assert node_of(bed, other).reason == mine(2)


def test_slurmctld_tells_when_it_started(bed):
    booted = bed.scheduler.read_slurmctld_boot_time()
    assert (booted is None) is not bed.real
    if booted is not None:
        as_of = bed.scheduler.view().as_of
        assert as_of - timedelta(hours=1) < booted <= as_of


def test_a_marked_node_is_set_down_under_its_mark_which_stays(bed):
    job = bed.submit(2)
    bed.until("running", lambda: job_of(bed, job).running)
    node, other = job_of(bed, job).nodes
    bed.operator_fail(node, "Action:Reboot")
    assert job_of(bed, job).running
    assert codes(dict(bed.scheduler.down({node: "Action:Replace"}))) == ["not_ours"]
    assert codes(dict(bed.scheduler.down({other: "Action:Reboot"}))) == ["not_ours"]
    assert job_of(bed, job).running
    assert codes(dict(bed.scheduler.down({node: "Action:Reboot"}))) == ["accepted"]
    bed.until("pending again", lambda: job_of(bed, job).state == "PENDING")
    seen = node_of(bed, node)
    assert ("FAIL" in seen.flags, seen.reason) == (True, "Action:Reboot")


def test_a_node_that_booted_since_its_mark_may_be_given_back(bed):
    node = bed.nodes[0]
    later(bed)
    bed.operator_fail(node, "Action:Reboot")
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["not_ours"]
    bed.stop_slurmd(node)
    bed.start_slurmd(node)
    bed.until("registered", lambda: is_hma_mark_fulfilled(node_of(bed, node)), 30)
    assert node_of(bed, node).closed
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["accepted"]
    assert node_of(bed, node).in_service


@pytest.mark.parametrize("words", ["action: replace please", "Action:Replace please", "Action:"])
def test_an_operators_fail_in_other_words_is_touched_by_nothing(bed, words):
    node = bed.nodes[0]
    bed.operator_fail(node, words)
    assert codes(dict(bed.scheduler.drain({node: mine(1)}))) == ["foreign_drain"]
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["not_ours"]
    assert node_of(bed, node).reason == words


def test_several_nodes_with_several_reasons_each_get_an_answer(bed):
    a, b, c, d = bed.nodes
    bed.operator_drain(c, "disk swap, Ada")
    zz = "zz9"
    wanted = {a: mine(1), zz: mine(1), b: mine(1), c: mine(1), d: mine(2)}
    outcomes = bed.scheduler.drain(wanted)
    assert list(outcomes) == list(wanted)
    expected = ["accepted", "no_such_node", "accepted", "foreign_drain", "accepted"]
    assert codes(dict(outcomes)) == expected
    assert node_of(bed, c).reason == "disk swap, Ada"
    assert [node_of(bed, n).reason for n in (a, b, d)] == [mine(1), mine(1), mine(2)]


def test_a_name_that_is_no_host_name_reaches_no_host(bed):
    names = ["n1,n2", "n[1-4]", "ALL", "", "n1 State=DOWN", "-h"]
    outcomes = bed.scheduler.drain({name: mine(1) for name in names})
    assert set(codes(dict(outcomes))) == {"no_such_node"}
    assert not any(node.drained for node in bed.scheduler.view().nodes.values())


def test_an_operators_drain_is_touched_by_nothing(bed):
    node = bed.nodes[0]
    bed.operator_drain(node, "do not touch")
    before = node_of(bed, node)
    assert codes(dict(bed.scheduler.drain({node: mine(1)}))) == ["foreign_drain"]
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["not_ours"]
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["not_ours"]
    after = node_of(bed, node)
    assert (after.state, after.flags, after.reason) == (before.state, before.flags, before.reason)


def test_down_needs_our_own_drain(bed):
    node = bed.nodes[0]
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["not_ours"]
    bed.scheduler.drain({node: mine(2)})
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["not_ours"]
    assert not node_of(bed, node).down
    for _ in range(2):
        assert codes(dict(bed.scheduler.down({node: mine(2)}))) == ["accepted"]
        assert node_of(bed, node).down
    assert node_of(bed, node).drained


def test_down_takes_the_job_off_the_node_and_slurm_requeues_it(bed):
    job = bed.submit(2)
    bed.until("running", lambda: job_of(bed, job).running)
    node = job_of(bed, job).nodes[0]
    bed.scheduler.drain({node: mine(1)})
    assert job_of(bed, job).running
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["accepted"]
    bed.until("pending again", lambda: job_of(bed, job).state == "PENDING")
    assert job_of(bed, job).restarts == 1


def test_down_alone_would_come_back_but_our_drain_stays_closed(bed):
    node = bed.nodes[0]
    bed.scheduler.drain({node: mine(1)})
    bed.scheduler.down({node: mine(1)})
    bed.stop_slurmd(node)
    bed.start_slurmd(node)
    bed.until("registered", lambda: node_of(bed, node).state == "IDLE", 30)
    seen = node_of(bed, node)
    assert seen.drained
    assert seen.reason.startswith(mine(1))
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["accepted"]


def test_give_back_is_for_the_recovery_that_closed_it(bed):
    a, b = bed.nodes[:2]
    bed.scheduler.drain({a: mine(1), b: mine(2)})
    outcomes = bed.scheduler.resume_nodes({a: "r1", b: "r1"})
    assert codes(dict(outcomes)) == ["accepted", "not_ours"]
    assert node_of(bed, b).drained
    again = bed.scheduler.resume_nodes({a: "r1", "zz9": "r1"})
    assert codes(dict(again)) == ["accepted", "no_such_node"]


def test_a_recovery_whose_name_begins_like_another_is_another(bed):
    node = bed.nodes[0]
    bed.scheduler.drain({node: mine(12)})
    assert codes(dict(bed.scheduler.resume_nodes({node: "r1"}))) == ["not_ours"]
    assert codes(dict(bed.scheduler.down({node: mine(1)}))) == ["not_ours"]


def test_a_node_whose_slurmd_is_silent_is_not_offered_to_jobs(bed):
    node = bed.nodes[0]
    bed.scheduler.drain({node: mine(1)})
    bed.stop_slurmd(node)
    bed.until(
        "not responding", lambda: not node_of(bed, node).responding, 400 if not bed.real else 60
    )
    outcome = bed.scheduler.resume_nodes({node: "r1"})[node]
    assert (outcome.code, outcome.transient) == ("not_responding", True)
    assert node_of(bed, node).drained


def test_a_hundred_and_more_names_at_once(bed):
    many = {f"x{i:04d}": mine(1) for i in range(450)}
    outcomes = bed.scheduler.drain({bed.nodes[0]: mine(1), **many, bed.nodes[1]: mine(1)})
    assert len(outcomes) == 452
    assert [o.kind for o in outcomes.values()].count(OutcomeKind.ACCEPTED) == 2


def test_a_partly_refused_update_is_repeated_one_by_one(real, monkeypatch):
    """The look says that all exist; slurmctld then refuses one: the others get their drain."""
    from hpctl.slurm import rules

    monkeypatch.setattr(rules, "NO_SUCH_NODE", None)
    a, b = real.nodes[:2]
    scheduler = real.scheduler
    drain = rules.find_drain_outcome_without_sending
    monkeypatch.setattr(
        rules,
        "find_drain_outcome_without_sending",
        lambda node, why: drain(node, why) if node else None,
    )
    outcomes = scheduler.drain({a: mine(1), "zz9": mine(1), b: mine(1)})
    assert codes(dict(outcomes)) == ["accepted", "ESLURM_INVALID_NODE_NAME", "accepted"]
    assert all(node_of(real, n).drained for n in (a, b))


def test_a_part_has_all_jobs_and_the_nodes_that_are_asked_for(bed):
    job = bed.submit()
    bed.until("running", lambda: job_of(bed, job).running)
    wanted = bed.nodes[:2]
    part, whole = bed.scheduler.part([*wanted, "nobody"], {}), bed.scheduler.view()
    assert set(wanted) <= part.nodes.keys()
    assert "nobody" not in part.nodes
    assert {n: part.nodes[n].state for n in wanted} == {n: whole.nodes[n].state for n in wanted}
    assert part.jobs.keys() == whole.jobs.keys()
    assert part.jobs[job].nodes == whole.jobs[job].nodes != ()


@pytest.mark.parametrize("state", ["drained", "failing", "silent", "running", "unchanged"])
def test_of_known_nodes_state_and_reason_are_read_again(bed: Bed, state: str) -> None:
    node, other = bed.nodes[:2]
    before = bed.scheduler.view().nodes
    if state == "running":
        job = bed.submit()
        bed.until("running", lambda: job_of(bed, job).running)
        (node,) = job_of(bed, job).nodes
    elif state == "drained":
        bed.operator_drain(node, "a | b  none")
    elif state == "failing":
        bed.operator_fail(node, "Action:Replace")
    elif state == "silent":
        bed.stop_slurmd(node)
        bed.until("silent", lambda: not node_of(bed, node).responding, 60)
    known = {name: before[name] for name in {node, other}}
    part, whole = bed.scheduler.part(list(known), known).nodes, bed.scheduler.view().nodes
    for name in known:
        seen, full = part[name], whole[name]
        assert (seen.state, seen.flags) == (full.state, full.flags)
        assert (seen.reason, seen.reason_at) == (full.reason, full.reason_at)
        assert seen.address == full.address
    if state == "silent":
        bed.start_slurmd(node)
