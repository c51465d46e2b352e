"""What may be sent, decided from a look: the requeue sequence, the nodes' rules, the errors."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.slurm import cli, rules
from hpctl.slurm.records import PendingJobSize, SlurmJobRecord, merge_het_job_components
from hpctl.slurm.run import CommandEndKind, CommandResult, classify_command_result
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobAttempt, NodeName
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

T = datetime(2026, 3, 1, tzinfo=UTC)
FAILED = SlurmJob(7, "FAILED", T, 1)
MINE = JobAttempt(7, T, 1)
COMPLETING = frozenset({"COMPLETING"})
A, B, C = map(NodeName, "abc")


def record(**over) -> SlurmJobRecord:
    return SlurmJobRecord(replace(FAILED, **over))


def code(answer) -> str:
    """`send`, a rejection's code, or `accepted`."""
    if isinstance(answer, Outcome):
        return answer.code or str(answer.kind)
    return "send"


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (record(), "send"),
        (record(state="RUNNING"), "send"),
        (record(flags=COMPLETING), "completing"),
        (record(state="PENDING", restarts=2, submit=T, flags=COMPLETING), "completing"),
        (record(state="PENDING", restarts=2, submit=T + timedelta(9)), "accepted"),
        (record(state="RUNNING", restarts=2, submit=T + timedelta(9)), "other_attempt"),
        (record(state="FAILED", restarts=2, submit=T + timedelta(9)), "other_attempt"),
        (record(restarts=0), "other_attempt"),
        (record(submit=T + timedelta(9)), "other_attempt"),
        (record(state="PENDING", restarts=2, submit=T - timedelta(9)), "other_attempt"),
        (record(requeue=False), "no_requeue"),
        (record(batch=False), "not_batch"),
        (SlurmJobRecord(replace(FAILED, array_job=5, array_task="1-3")), "array_whole"),
        (SlurmJobRecord(replace(FAILED, array_job=5, array_task="2")), "send"),
        (SlurmJobRecord(replace(FAILED, het_job=7)), "het_component"),
        (None, "no_such_job"),
    ],
)
def test_requeue(job, expected):
    assert code(rules.plan_job_requeue(job, MINE)) == expected


def test_a_task_is_named_so_that_the_array_is_not():
    assert (
        rules.plan_job_requeue(SlurmJobRecord(replace(FAILED, array_job=7, array_task="2")), MINE)
        == "7_2"
    )


EXPEDITED = frozenset({"REQUEUE_HOLD", "EXPEDITED_REQUEUE"})
PENDING = {"state": "PENDING", "restarts": 2}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (record(**PENDING), "send"),
        (record(**PENDING, flags=COMPLETING), "completing"),
        (record(**PENDING, reason="JobHeldUser"), "held"),
        (record(**PENDING, reason="JobHeldAdmin"), "held"),
        (record(**PENDING, flags=frozenset({"REQUEUE_HOLD"})), "held"),
        (record(**PENDING, flags=EXPEDITED, reason="JobHeldUser"), "send"),
        (record(**PENDING, flags=EXPEDITED, reason="JobHeldAdmin"), "held"),
        (record(**PENDING, flags=frozenset({"EXPEDITING"})), "send"),
        (record(state="RUNNING"), "not_pending"),
        (record(), "not_pending"),
        (
            SlurmJobRecord(replace(FAILED, state="PENDING", array_job=7, array_task="1-3")),
            "array_whole",
        ),
        (SlurmJobRecord(replace(FAILED, state="PENDING", het_job=7)), "het_component"),
        (None, "no_such_job"),
    ],
)
def test_start_now(job, expected):
    assert code(rules.plan_job_start(job, [], [])) == expected


@pytest.mark.parametrize("flags", [frozenset(), frozenset({"REQUEUE_HOLD"})])
def test_a_job_that_slurm_holds_for_its_launch_is_released_as_well(flags):
    held = record(**PENDING, flags=flags, reason="launch_failed_requeued_held")
    send = rules.plan_job_start(held, [A], {A})
    assert (send.release, send.updates[0].exclude) == (True, (A,))


def test_an_expedited_job_that_slurm_holds_is_released_as_well():
    job = record(**PENDING, flags=EXPEDITED, reason="JobHeldUser")
    assert rules.plan_job_start(job, [], []).release


@pytest.mark.parametrize(
    ("own", "exclude", "forgive", "sent"),
    [
        ((), (), (), None), ((), (A,), (), (A,)), ((B,), (A,), (), (A, B)), ((B,), (B,), (), None),
        ((B,), (C,), (B,), (B, C)), ((B,), (), (B,), None), ((B,), ("gone",), (), None),
        ((B, "gone"), (A,), (), (A, B)), ((A,), (A,), (A,), None),
    ],
)  # fmt: skip
def test_the_excluded_nodes_are_merged_with_the_users_own(own, exclude, forgive, sent):
    send = rules.plan_job_start(record(**PENDING, excluded=own), exclude, {A, B, C}, forgive)
    assert [update.exclude for update in send.updates] == [sent]


def test_a_refusal_for_a_node_that_is_gone_says_which():
    refused = Outcome.rejected("ESLURM_INVALID_NODE_NAME", "Invalid node name specified for job 7")
    excludes = record(**PENDING, excluded=(A, "gone"))
    answer = rules.classify_job_start_answer(refused, excludes, {A})
    assert (answer.code, answer.kind) == (refused.code, refused.kind)
    assert "its ExcNodeList names gone, which Slurm no longer has" in answer.detail
    assert rules.classify_job_start_answer(refused, excludes, {A, "gone"}) == refused
    other = Outcome.rejected("ESLURM_ACCESS_DENIED", "")
    assert rules.classify_job_start_answer(other, excludes, {A}) == other


def heterogeneous(*excluded, **said):
    """A job of as many components, each with its own list of excluded nodes."""
    waits = replace(FAILED, **PENDING, het_job=FAILED.id, **said)
    components = tuple(
        replace(waits, id=FAILED.id + i, het_offset=i, excluded=names)
        for i, names in enumerate(excluded)
    )
    return SlurmJobRecord(merge_het_job_components(components), components)


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        (((), ()), [("7", (A,))]),
        (((B,), ()), [("7+0", (A, B)), ("7+1", (A,))]),
        (((A,), ()), [("7+0", None), ("7+1", (A,))]),
        (((A,), (A,)), [("7", None)]),
    ],
)
def test_each_component_keeps_the_nodes_that_its_owner_excludes(own, sent):
    send = rules.plan_job_start(heterogeneous(*own), (A,), {A, B})
    assert [(update.command_id, update.exclude) for update in send.updates] == sent


def test_a_heterogeneous_job_is_requeued_by_its_leader_once_all_have_cleared():
    leader, other = (replace(FAILED, het_job=7, het_offset=i, id=7 + i) for i in (0, 1))
    whole = SlurmJobRecord(merge_het_job_components((leader, other)), (leader, other))
    assert rules.plan_job_requeue(whole, MINE) == "7"
    clears = replace(other, flags=COMPLETING)
    assert (
        code(
            rules.plan_job_requeue(SlurmJobRecord(merge_het_job_components((leader, clears))), MINE)
        )
        == "completing"
    )
    fixed = replace(other, requeue=False)
    assert (
        code(
            rules.plan_job_requeue(SlurmJobRecord(merge_het_job_components((leader, fixed))), MINE)
        )
        == "no_requeue"
    )


def two_components(leader, other):
    """A heterogeneous job on two nodes, whose components are as they are said to be."""
    whole = replace(FAILED, het_job=7, state="RUNNING")
    first = replace(whole, id=7, nodes=(A,), **leader)
    second = replace(whole, id=8, het_offset=1, nodes=(B,), **other)
    return SlurmJobRecord(merge_het_job_components((first, second)), (first, second))


ENDED_ALONE = {"state": "TIMEOUT", "reason": "TimeLimit"}


def test_a_component_that_has_ended_before_the_others_has_given_its_nodes_back():
    assert two_components({}, {}).job.nodes == (A, B)
    assert two_components({}, ENDED_ALONE).job.nodes == (A,)
    assert two_components({}, {**ENDED_ALONE, "flags": COMPLETING}).job.nodes == (A, B)
    assert two_components(ENDED_ALONE, ENDED_ALONE).job.nodes == (A, B)


def test_a_component_that_has_ended_is_requeued_before_the_job_starts():
    waits = {"state": "PENDING", "reason": "None", "restarts": 1}
    half = two_components(waits, ENDED_ALONE)
    assert half.job.nodes == (A, B)
    assert half.job.reason == "None"
    send = rules.plan_job_start(half, (A,), {A, B})
    assert (send.requeue, send.command_id) == (True, "7")
    assert not rules.plan_job_start(two_components(waits, waits), (A,), {A, B}).requeue


def test_a_lift_leaves_alone_a_component_that_has_ended():
    excludes = {"excluded": (A,), "admin_comment": "hpctl:excluded=a"}
    half = two_components({**PENDING, **excludes}, {**ENDED_ALONE, **excludes})
    assert [lift.command_id for lift in rules.plan_node_exclusion_lifts(half, [A], {A})] == ["7+0"]


@pytest.mark.parametrize(
    ("marked", "exclude", "forgive", "sent", "mark"),
    [
        ("", (C,), (), (A, B, C), "hpctl:excluded=c"),
        ("", (A,), (), None, None),
        ("B", (C,), ("b",), (A, C), "hpctl:excluded=c"),
        ("B", (), ("b",), (A,), ""),
        ("B", (C,), (), (A, B, C), "hpctl:excluded=b,c"),
        ("B", (), (A,), None, None),
    ],
)
def test_only_what_hpctl_added_is_marked_and_leaves_again(marked, exclude, forgive, sent, mark):
    """The owner excludes a; b is marked where it says so."""
    note = "hpctl:excluded=b" if marked else ""
    job = record(**PENDING, excluded=(A, B), admin_comment=note)
    send = rules.plan_job_start(job, exclude, {A, B, C}, forgive)
    (update,) = send.updates
    assert (update.exclude, update.mark) == (sent, mark)


@pytest.mark.parametrize(
    ("nodes", "exclude", "mark"),
    [((B,), (A, C), "site | hpctl:excluded=c"), ((A, B, C), (A,), "site")],
)
def test_a_lift_takes_out_what_is_marked_and_nothing_else(nodes, exclude, mark):
    job = record(**PENDING, excluded=(A, B, C), admin_comment="site | hpctl:excluded=b,c")
    assert rules.plan_node_exclusion_lifts(job, nodes, {A, B, C}) == (
        rules.NodeExclusionLift("7", exclude, mark),
    )


def test_a_lift_leaves_out_what_was_deleted_since():
    job = record(**PENDING, excluded=(A, B, C), admin_comment="hpctl:excluded=b,c")
    assert rules.plan_node_exclusion_lifts(job, [C], {C}) == (rules.NodeExclusionLift("7", (), ""),)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (record(**PENDING, excluded=(A,)), "accepted"),
        (record(state="RUNNING", excluded=(A,), admin_comment="hpctl:excluded=a"), "not_pending"),
        (record(**PENDING, flags=COMPLETING), "completing"),
        (SlurmJobRecord(replace(FAILED, **PENDING, array_job=5, array_task="1-3")), "array_whole"),
        (None, "no_such_job"),
    ],
)
def test_a_lift_that_is_none(job, expected):
    assert code(rules.plan_node_exclusion_lifts(job, [A], {A})) == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (record(), "accepted"),
        (record(state="RUNNING"), "send"),
        (record(**PENDING), "send"),
        (record(state="RUNNING", restarts=2, submit=T + timedelta(9)), "other_attempt"),
        (record(state="PENDING", restarts=3, submit=T + timedelta(9)), "other_attempt"),
        (record(state="RUNNING", flags=COMPLETING), "completing"),
        (SlurmJobRecord(replace(FAILED, state="RUNNING", het_job=7)), "het_component"),
        (None, "no_such_job"),
    ],
)
def test_what_is_given_up_is_this_attempt_or_the_next_in_the_queue(job, expected):
    answer = rules.find_job_cancel_outcome_without_sending(job, FAILED.attempt)
    assert ("send" if answer is None else code(answer)) == expected


OURS = format_hpctl_node_reason("r1", "xid 79")
DRAIN = frozenset({"DRAIN"})


def node(state: str = "IDLE", reason: str = "", *flags: str) -> SlurmNode:
    return SlurmNode(A, state, frozenset(flags), reason)


def by_ann(closed: SlurmNode) -> SlurmNode:
    return replace(closed, reason_by="ann")


@pytest.mark.parametrize(
    ("seen", "drain", "down", "back"),
    [
        (None, "no_such_node", "no_such_node", "no_such_node"),
        (node(), "send", "not_ours", "accepted"),
        (node("IDLE", OURS, "DRAIN"), "accepted", "send", "send"),
        (node("IDLE", OURS + " : Not responding", "DRAIN"), "accepted", "send", "send"),
        (node("IDLE", "hpctl:r2 x", "DRAIN"), "send", "not_ours", "not_ours"),
        (node("IDLE", "disk", "DRAIN"), "foreign_drain", "not_ours", "not_ours"),
        (node("IDLE", "", "DRAIN"), "send", "not_ours", "not_ours"),
        (node("IDLE", "", "FAIL"), "foreign_drain", "not_ours", "not_ours"),
        (node("IDLE", "disk", "FAIL"), "foreign_drain", "not_ours", "not_ours"),
        (node("IDLE", "Action:Replace", "FAIL"), "send", "not_ours", "not_ours"),
        (node("MIXED", "Action:Reboot : Not responding", "DRAIN"), "send", "not_ours", "not_ours"),
        (node("DOWN", "Action:Replace"), "send", "not_ours", "not_ours"),
        (node("IDLE", "action: replace please", "FAIL"), "foreign_drain", "not_ours", "not_ours"),
        (node("IDLE", "Prolog error", "DRAIN"), "send", "not_ours", "not_ours"),
        (by_ann(node("IDLE", "Prolog error", "DRAIN")), "foreign_drain", "not_ours", "not_ours"),
        (node("IDLE", "Kill task failed", "FAIL"), "foreign_drain", "not_ours", "not_ours"),
        (node("DOWN", "taken out by Ada"), "foreign_drain", "not_ours", "not_ours"),
        (node("DOWN", "Not responding"), "send", "not_ours", "not_ours"),
        (node("DOWN", OURS, "DRAIN"), "accepted", "accepted", "send"),
        (node("DOWN", OURS, "DRAIN", "NOT_RESPONDING"), "accepted", "accepted", "not_responding"),
        (node("IDLE", OURS, "DRAIN", "NOT_RESPONDING"), "accepted", "send", "not_responding"),
    ],
)
def test_what_may_be_done_to_a_node(seen, drain, down, back):
    answers = [
        rules.find_drain_outcome_without_sending(seen, OURS),
        rules.find_down_outcome_without_sending(seen, OURS),
        rules.find_owned_resume_outcome_without_sending(seen, "r1"),
    ]
    assert [code(a) if a else "send" for a in answers] == [drain, down, back]


@pytest.mark.parametrize("reason", ["somebody's", "", "hpctl:r1 two\nlines"])
def test_only_our_own_reasons_are_sent(reason):
    assert rules.find_drain_outcome_without_sending(node(), reason).code == "bad_reason"


NO_CONTACT = "Unable to contact slurm controller"


def ran(
    end: CommandEndKind = CommandEndKind.EXITED, exit_code: int = 1, err: str = ""
) -> CommandResult:
    return CommandResult(("scontrol",), end, exit_code, b"", err, 1.0)


def says(error: str) -> CommandResult:
    return ran(err=f"slurm_update error: {error}")


@pytest.mark.parametrize(
    ("what", "kind", "code", "transient"),
    [
        (ran(exit_code=0), "accepted", "", False),
        (ran(CommandEndKind.NOT_STARTED), "rejected", "not_started", True),
        (ran(CommandEndKind.TIMED_OUT, -9), "ambiguous", "timeout", False),
        (ran(CommandEndKind.TOO_LONG, -9), "ambiguous", "timeout", False),
        (ran(exit_code=-11), "ambiguous", "killed", False),
        (ran(), "ambiguous", "exit_status", False),
        (says(f"{NO_CONTACT} (connect failure)"), "rejected", "unavailable", True),
        (says(f"{NO_CONTACT} (receive failure)"), "ambiguous", "unavailable", False),
        (says("Socket timed out on send/recv operation"), "ambiguous", "timeout", False),
        (says("Zero Bytes were transmitted or received"), "ambiguous", "connection_lost", False),
        (ran(err="Job is pending execution for job 7"), "rejected", "ESLURM_JOB_PENDING", False),
        (says("Job is no longer pending execution"), "rejected", "not_pending", False),
        (says("Invalid node name specified"), "rejected", "ESLURM_INVALID_NODE_NAME", False),
        (says("Something new"), "rejected", "SLURM_ERROR", False),
    ],
)
def test_what_an_end_says_of_an_order(what, kind, code, transient):
    answer = classify_command_result(what)
    assert (str(answer.kind), answer.code, answer.transient) == (kind, code, transient)


def test_a_refused_batch_is_repeated_singly_and_an_ambiguous_one_is_not():
    sent: list[list[str]] = []

    def send(names, reason: str) -> Outcome:
        sent.append(list(names))
        if reason == "lost":
            return Outcome.ambiguous("timeout")
        return Outcome.rejected("BAD") if B in names else Outcome.accepted()

    wanted = {A: "r", B: "r", C: "lost", "d": "lost"}
    answers = cli.send_grouped_node_updates(wanted, {}, lambda *_: None, send, with_reason=True)
    assert sent == [[A, B], [A], [B], [C, "d"]]
    assert [code(a) for a in answers.values()] == ["accepted", "BAD", "timeout", "timeout"]
    assert list(answers) == list(wanted)


@pytest.mark.parametrize(
    ("after_s", "word"), [(0.0, "now"), (-1.0, "now"), (0.2, "now+1"), (30.0, "now+30")]
)
def test_a_wait_is_rounded_up(after_s, word):
    assert rules.format_start_time_argument(after_s) == f"StartTime={word}"


@pytest.mark.parametrize(
    ("size", "tasks"),
    [
        (PendingJobSize(nodes=3, least=2, tasks=24, tasks_per_node=8), 16),
        (PendingJobSize(nodes=3, least=3, tasks=24, tasks_per_node=8), None),
        (
            PendingJobSize(nodes=3, least=2, tasks=20, tasks_per_node=8),
            None,
        ),  # the user's own number
        (PendingJobSize(nodes=3, least=2, tasks=2), None),
        (PendingJobSize(), None),
    ],
)
def test_an_elastic_job_needs_no_more_tasks_than_for_its_least_nodes(size, tasks):
    job = SlurmJobRecord(SlurmJob(7, "PENDING", datetime(2026, 3, 1, tzinfo=UTC), 1), size=size)
    for elastic, expected in ((True, tasks), (False, None)):
        assert rules.plan_job_start(job, (), (), elastic=elastic).tasks == expected
