"""What is done about a run's trouble, case by case."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.jobs.decide import PastJobFailure, RestartResources, decide_job_failure_action
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.run_policy import (
    DEFAULTS,
    RestartBackoff,
    RunAction,
    RunActionDecision,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import Trouble, TroubleKind

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NAMES = tuple(f"n{i}" for i in range(1, 6))
MEANS = RestartResources(process=True, step=True, nodes=5, wanted=4, names=NAMES)
STEP_ONLY = replace(MEANS, process=False)
GENTLE = RunPolicy(same_signature=99, without_progress=99)


def seen(kind: TroubleKind, minute: float = 0, **more) -> Trouble:
    return Trouble(kind, START + timedelta(minutes=minute), more.pop("why", f"a {kind}"), **more)


def run(
    *troubles: Trouble, policy: RunPolicy | None = None, means: RestartResources = MEANS
) -> list[RunActionDecision]:
    """The answers to one trouble after the other."""
    past: list[PastJobFailure] = []
    answers = []
    for trouble in troubles:
        answers.append(
            decide_job_failure_action(policy or RunPolicy(), past, trouble, means, trouble.at)
        )
        past.append(PastJobFailure(trouble, answers[-1].action))
    return answers


def actions(*troubles: Trouble, **more) -> list[str]:
    return [str(a.action) for a in run(*troubles, **more)]


def crashes(count: int, **more) -> list[Trouble]:
    return [seen(TroubleKind.CRASH, i, signature=f"s{i}", progress=7, **more) for i in range(count)]


def test_one_node_after_the_other_uses_up_the_spares_and_then_asks_for_new_nodes() -> None:
    answers = run(seen(TroubleKind.NODE, 0, node="n2"), seen(TroubleKind.NODE, 1, node="n3"))
    assert [a.action for a in answers] == [RunAction.STEP, RunAction.REQUEUE]
    assert answers[1].exclude == ("n2", "n3")


def test_a_node_that_is_gone_from_the_list_is_not_subtracted_again() -> None:
    four = replace(MEANS, nodes=4, names=("n1", "n3", "n4", "n5"))
    assert actions(seen(TroubleKind.NODE, node="n2"), means=four) == ["step"]


def test_without_names_every_excluded_node_is_counted_among_the_healthy() -> None:
    unnamed = replace(MEANS, names=())
    assert actions(seen(TroubleKind.NODE, node="n2"), means=unnamed) == ["step"]
    assert actions(seen(TroubleKind.NODE, node="n2"), means=replace(unnamed, nodes=4)) == [
        "requeue"
    ]


def test_a_crash_goes_from_process_to_its_end() -> None:
    assert actions(*crashes(4), policy=GENTLE) == ["process", "step", "requeue", "end"]


def test_progress_goes_back_to_the_first_rung() -> None:
    later = seen(TroubleKind.CRASH, 9, signature="s", progress=8)
    assert actions(*crashes(2), later) == ["process", "step", "process"]
    assert actions(*crashes(2), replace(later, progress=7)) == ["process", "step", "requeue"]


def test_training_steps_count_only_where_no_checkpoint_is_known() -> None:
    at_step = [seen(TroubleKind.CRASH, i, signature=f"s{i}", step=10 + i) for i in range(4)]
    assert actions(*at_step) == ["process"] * 4
    saved_none = [replace(t, progress=7) for t in at_step]
    assert actions(*saved_none) == ["process", "step", "requeue", "end"]


def test_hour_without_trouble_is_progress_where_steps_are_unknown() -> None:
    hourly = [seen(TroubleKind.CRASH, 60 * i, signature=f"s{i}") for i in range(4)]
    assert actions(*hourly) == ["process"] * 4
    quicker = [seen(TroubleKind.CRASH, 59 * i, signature=f"s{i}") for i in range(4)]
    assert actions(*quicker) == ["process", "step", "requeue", "end"]


def test_the_same_crash_twice_from_the_same_checkpoint_ends() -> None:
    twice = [seen(TroubleKind.CRASH, i, signature="KeyError", progress=7) for i in range(2)]
    answer = run(*twice)[1]
    assert answer.action is RunAction.END
    assert answer.why == "the same crash 2 times without progress: a crash"
    assert actions(twice[0], replace(twice[1], progress=8)) == ["process", "process"]


@pytest.mark.parametrize("kind", [TroubleKind.GPU_MEMORY, TroubleKind.HOST_MEMORY, TroubleKind.NAN])
def test_program_error_gets_one_restart(kind: TroubleKind) -> None:
    assert actions(*[seen(kind, i, progress=7) for i in range(2)]) == ["step", "end"]


def test_three_restarts_without_progress_are_enough() -> None:
    troubles = [
        seen(TroubleKind.CRASH, 0, signature="a", progress=1),
        seen(TroubleKind.HANG, 1, progress=1),
        seen(TroubleKind.NODE, 2, node="n1", progress=1),
        seen(TroubleKind.NODE, 3, node="n2", progress=1),
    ]
    answers = run(*troubles)
    assert [str(a.action) for a in answers] == ["process", "process", "step", "hold"]
    assert answers[-1].why.startswith("hpctl: 3 restarts without progress: ")


def test_time_limits_are_no_failures_but_must_get_on() -> None:
    answers = run(*[seen(TroubleKind.TIME_LIMIT, 60 * i, progress=i) for i in range(30)])
    assert {a.action for a in answers} == {RunAction.REQUEUE}
    assert {a.save_first_s for a in answers} == {60.0}
    idle = [seen(TroubleKind.TIME_LIMIT, 60 * i) for i in range(4)]
    assert actions(*idle) == ["requeue", "requeue", "requeue", "hold"]


def test_release_of_a_held_job_resets_the_restart_count() -> None:
    same = [seen(TroubleKind.CRASH, i, signature="s", progress=7) for i in range(4)]
    assert actions(*same) == ["process", "end", "process", "end"]


def test_the_second_restart_in_a_row_waits_and_further_ones_longer() -> None:
    step = {TroubleKind.CRASH: TroubleTreatment((RunAction.STEP,), backoff=True)}
    policy = replace(GENTLE, backoff=RestartBackoff(30, 2, 100), treatments=step)
    waits = [a.after_s for a in run(*crashes(4), policy=policy)]
    assert waits[0] == 0
    assert 30 <= waits[1] <= 37.5
    assert 60 <= waits[2] <= 75
    assert waits[3] == 100


def test_a_node_is_left_when_a_network_fault_names_it_again() -> None:
    answers = run(*(seen(TroubleKind.NETWORK, i, node="n3", progress=i) for i in range(2)))
    assert [a.exclude for a in answers] == [(), ("n3",)]


def test_ranks_are_not_restarted_in_place_on_a_node_that_is_left() -> None:
    answers = run(*(seen(TroubleKind.HANG, i, node="n3", progress=i) for i in range(2)))
    assert [a.action for a in answers] == [RunAction.PROCESS, RunAction.STEP]


def test_a_healed_node_is_let_in_again_and_its_next_trouble_counts() -> None:
    healed = replace(MEANS, healed=("n2",))
    before = [PastJobFailure(seen(TroubleKind.NODE, 0, node="n2"), RunAction.STEP)]
    crash = seen(TroubleKind.CRASH, 1, signature="s")
    assert decide_job_failure_action(RunPolicy(), before, crash, MEANS, crash.at).exclude == ("n2",)
    assert decide_job_failure_action(RunPolicy(), before, crash, healed, crash.at).exclude == ()
    again = seen(TroubleKind.NODE, 1, node="n2")
    assert decide_job_failure_action(RunPolicy(), before, again, healed, again.at).exclude == (
        "n2",
    )


def test_a_suspected_node_is_better_than_no_run_and_a_bad_one_is_not() -> None:
    last = RestartResources(step=True, nodes=4, wanted=4, names=NAMES[:4], requeue=False)
    suspect = run(seen(TroubleKind.CUDA, node="n2"), means=last)[0]
    assert (suspect.action, suspect.exclude) == (RunAction.STEP, ())
    for kind in (TroubleKind.NODE, TroubleKind.CORRUPTION):
        assert run(seen(kind, node="n2"), means=last)[0].action is RunAction.HOLD
    assert "too few healthy nodes" in run(seen(TroubleKind.NODE, node="n2"), means=last)[0].why


def test_the_suspects_leave_enough_nodes_for_a_requeue() -> None:
    policy = replace(
        GENTLE,
        treatments={
            TroubleKind.CUDA: replace(DEFAULTS[TroubleKind.CUDA], ladder=(RunAction.REQUEUE,))
        },
    )
    troubles = [seen(TroubleKind.CUDA, i, node=f"n{i}") for i in range(4)]
    assert run(*troubles, policy=policy)[-1].exclude == ("n0", "n1", "n2", "n3")
    assert run(*troubles, policy=policy, means=replace(MEANS, pool=6))[-1].exclude == ("n2", "n3")
    assert run(*troubles, policy=replace(policy, most_excluded=1))[-1].exclude == ("n3",)


def test_elastic_run_shrinks_before_it_gives_its_nodes_back() -> None:
    full = RestartResources(step=True, nodes=4, wanted=4, names=NAMES[:4])
    elastic = RunPolicy(nodes=(3, 4))
    lost = [seen(TroubleKind.NODE, n - 1, node=f"n{n}", progress=n) for n in (1, 2)]
    answers = run(*lost, policy=elastic, means=full)
    assert [(a.action, a.size) for a in answers] == [(RunAction.STEP, 3), (RunAction.REQUEUE, 0)]


@pytest.mark.parametrize("kind", [TroubleKind.SPIKE, TroubleKind.SLOW, TroubleKind.UPLOAD])
def test_harmless_trouble_is_only_notified(kind: TroubleKind) -> None:
    assert set(actions(*(seen(kind, i) for i in range(20)))) == {"notify"}


def test_ranks_save_first_where_they_live_and_the_policy_asks() -> None:
    alive, dead = replace(MEANS, alive=True), replace(MEANS, alive=False)
    for means, seconds in ((MEANS, 0), (alive, 60), (dead, 0)):
        assert run(seen(TroubleKind.NODE, node="n2"), means=means)[0].save_first_s == seconds
    assert run(seen(TroubleKind.NAN), means=alive)[0].save_first_s == 0


def test_no_end_without_progress_counts_as_progress() -> None:
    ends = [seen(TroubleKind.NO_PROGRESS, 60 * i, step=i, exit_code=0) for i in range(3)]
    assert actions(*ends) == ["step", "requeue", "hold"]


def test_a_run_that_cannot_be_requeued_takes_the_step_again() -> None:
    fixed = replace(MEANS, requeue=False)
    twice = [seen(TroubleKind.NODE, i, node="n2") for i in range(4)]
    assert actions(*twice, means=fixed) == ["step", "step", "step", "hold"]
    crashes_on = actions(*crashes(3), policy=GENTLE, means=replace(STEP_ONLY, requeue=False))
    assert crashes_on == ["step", "end", "step"]
    why = run(*crashes(2), policy=GENTLE, means=replace(STEP_ONLY, requeue=False))[1].why
    assert why == "no further restart is possible: a crash"


def test_kind_may_have_a_separate_bound() -> None:
    nan = replace(DEFAULTS[TroubleKind.NAN], hold_same=False, ladder=(RunAction.STEP,), max=2)
    policy = replace(RunPolicy(), treatments={**DEFAULTS, TroubleKind.NAN: nan}, without_progress=9)
    *_, again, held = run(
        *[seen(TroubleKind.NAN, n) for n in range(3)], policy=policy, means=STEP_ONLY
    )
    assert again.action is RunAction.STEP
    assert held.action is RunAction.END
    assert "max: 2" in held.why


NO_JSON = "its Comment is no JSON after `hpctl:`"
NO_POLICY = "`policy` in its Comment is not a mapping"
NO_SIGNAL = "`save_signal` in its Comment is not a text"
NO_FAST = "`fast` in its Comment is not what fast saves take"
NO_SPARES = "`spares` in its Comment is not a number of nodes"


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ('hpctl:{"ckpt":"/a","save_signal":"USR1"}', JobRegistration("/a", save_signal="USR1")),
        ('hpctl:{"ckpt":"/a"} | hpctl: restarted 10 times', JobRegistration("/a")),
        ('hpctl:{"spares":2}', JobRegistration(spares=2, supervised=True)),
        ('hpctl:{"spares":0,"supervised":true}', JobRegistration(supervised=True)),
        ('hpctl:{"policy":{"restarts":3}}', JobRegistration(policy={"restarts": 3})),
        ('hpctl:{"policy":[3]}', JobRegistration(flaw=NO_POLICY)),
        ('hpctl:{"spares":-1}', JobRegistration(flaw=NO_SPARES)),
        ('hpctl:{"spares":true}', JobRegistration(flaw=NO_SPARES)),
        ('hpctl:{"spares":"2","policy":3}', JobRegistration(flaw=f"{NO_POLICY}; {NO_SPARES}")),
        ("hpctl:{", JobRegistration(flaw=NO_JSON)),
        ("hpctl:{" + '"a":[' * 5000, JobRegistration(flaw=NO_JSON)),
        # Half a surrogate pair is JSON and no text: the journal could not take it.
        ('hpctl:{"save_signal":"\\ud800"}', JobRegistration(flaw=NO_JSON)),
        ('hpctl:{"policy":{"\\udc00":1}}', JobRegistration(flaw=NO_JSON)),
        ('hpctl:{"ckpt":"/\\ud83d\\ude00"}', JobRegistration("/😀")),
        ('hpctl:{"save_signal":{"USR1":1}}', JobRegistration(flaw=NO_SIGNAL)),
        (
            'hpctl:{"tiers":["/a",3,""],"fast":{"size":1}}',
            JobRegistration(tiers=("/a",), flaw=NO_FAST),
        ),
        ("hpctl: restarted 10 times", None),
        ("hpctl:[1]", None),
        ("somebody's own words", None),
        ("", None),
    ],
)
def test_registration(comment: str, expected: JobRegistration | None) -> None:
    found = parse_registration_comment(comment)
    assert found == expected
    if found is not None and expected is not None:
        assert found.policy == expected.policy


def test_a_full_disk_is_held_at_once_whatever_its_restarts_are():
    at = datetime(2026, 11, 28, tzinfo=UTC)
    full = Trouble(
        TroubleKind.DISK_FULL, at, "rank 0: file system full: /fsx/ckpt/x.pt", "file system full"
    )
    for policy in (RunPolicy(), RunPolicy(restarts=0)):
        answer = decide_job_failure_action(policy, (), full, RestartResources(requeue=True), at)
        assert answer.action is RunAction.HOLD
        assert answer.why == f"hpctl: {full.why}"


def hang(node: str, minute: float, **more) -> Trouble:
    """The same rank of a job that does not come to a collective."""
    known = {"signature": "did not come", "rank": 3, "step": 70, "progress": 60}
    return seen(TroubleKind.HANG, minute, node=node, **{**known, **more})


def test_a_rank_that_hangs_at_the_same_step_on_another_node_is_the_program_s() -> None:
    past = [PastJobFailure(hang("n1", 0), RunAction.STEP)]
    means = RestartResources(step=True, nodes=8, requeue=True)

    def answer(trouble: Trouble, policy: RunPolicy = RunPolicy()) -> RunActionDecision:  # noqa: B008
        return decide_job_failure_action(policy, past, trouble, means, trouble.at)

    found = answer(hang("n2", 10))
    assert found.action in (RunAction.END, RunAction.HOLD)
    assert "hang of rank 3 at step 70 2 times, on different nodes" in found.why
    assert answer(hang("n1", 10)).action is RunAction.REQUEUE
    assert answer(hang("n2", 10, step=71)).action is RunAction.REQUEUE
    assert answer(hang("n2", 10, rank=4)).action is RunAction.REQUEUE
    assert answer(hang("n2", 10, progress=80)).action is not RunAction.END
    assert answer(hang("n2", 10), RunPolicy(same_signature=3)).action is RunAction.REQUEUE
