"""What holds of every answer, whatever the policy, the history and the means."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.jobs.decide import (
    PastJobFailure,
    RestartResources,
    decide_job_failure_action,
    list_failures_since_last_progress,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.run_policy import (
    CERTAIN,
    DEFAULTS,
    RESTARTS,
    STOPS,
    UNPLANNED,
    RestartBackoff,
    RunAction,
    RunActionDecision,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.examples import examples

pytestmark = pytest.mark.slow

EXAMPLES = settings(max_examples=examples(60))
START = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = tuple(f"n{i}" for i in range(6))
TOLD = frozenset({RunAction.NONE, RunAction.NOTIFY})

nodes = st.none() | st.sampled_from(NAMES)
numbers = st.none() | st.integers(0, 5)


@st.composite
def ladders(draw: st.DrawFn) -> tuple[RunAction, ...]:
    rungs = draw(st.lists(st.sampled_from(list(RunAction)[1:5]), max_size=4).map(sorted_gentlest))
    return (*rungs, RunAction.HOLD) if draw(st.booleans()) or not rungs else tuple(rungs)


def sorted_gentlest(rungs: list[RunAction]) -> list[RunAction]:
    return sorted(rungs, key=list(RunAction).index)


treatments = st.builds(
    TroubleTreatment, ladders(), st.booleans(), st.integers(0, 3), st.booleans(), st.booleans()
)
policies = st.builds(
    RunPolicy, restarts=st.integers(0, 6), window_s=st.sampled_from((600.0, 3600.0, 86400.0)),
    without_progress=st.integers(0, 5), same_signature=st.integers(1, 4),
    most_excluded=st.integers(0, 3),
    backoff=st.builds(RestartBackoff, st.floats(0, 1e6), st.floats(1, 1e9), st.floats(0, 1e6)),
    nodes=st.none() | st.tuples(st.integers(1, 3), st.integers(3, 6)),
    treatments=st.dictionaries(st.sampled_from(list(TroubleKind)), treatments, max_size=4),
)  # fmt: skip
troubles = st.builds(
    Trouble, st.sampled_from(list(TroubleKind)),
    st.integers(0, 100_000).map(lambda s: START + timedelta(seconds=s)),
    st.text(max_size=300), st.sampled_from(("", "a", "b")), node=nodes, step=numbers,
    progress=numbers,
)  # fmt: skip
pasts = st.lists(st.builds(PastJobFailure, troubles, st.sampled_from(list(RunAction))), max_size=12)


@st.composite
def all_means(draw: st.DrawFn) -> RestartResources:
    names = tuple(draw(st.sets(st.sampled_from(NAMES)).map(sorted)))
    return RestartResources(
        process=draw(st.booleans()), step=draw(st.booleans()),
        nodes=len(names) or draw(st.integers(0, 6)), wanted=draw(st.integers(0, 6)),
        requeue=draw(st.booleans()), names=names, pool=draw(st.integers(0, 8)),
        healed=tuple(draw(st.sets(st.sampled_from(NAMES), max_size=2).map(sorted))),
        alive=draw(st.none() | st.booleans()),
    )  # fmt: skip


def room(means: RestartResources, answer: RunActionDecision) -> int:
    if means.names:
        return len(set(means.names) - set(answer.exclude))
    return means.nodes - len(answer.exclude)


@EXAMPLES
@given(policies, pasts, troubles, all_means())
def test_every_answer_is_possible_and_readable(policy, past, trouble, means):
    answer = decide_job_failure_action(policy, past, trouble, means, trouble.at)
    assert answer == decide_job_failure_action(policy, tuple(past), trouble, means, trouble.at)
    assert len(answer.why) <= 200
    assert answer.why.isprintable()
    assert (answer.action is RunAction.HOLD) == answer.why.startswith("hpctl: ") or trouble.why
    assert 0 <= answer.after_s <= policy.backoff.cap_s
    assert answer.save_first_s in (0.0, policy.save_grace_s)
    assert (answer.size > 0) == (answer.action is RunAction.STEP)
    assert list(answer.exclude) == sorted(set(answer.exclude))
    match answer.action:
        case RunAction.PROCESS:
            assert means.process
            assert trouble.node not in answer.exclude
        case RunAction.STEP:
            assert means.step
            assert 1 <= answer.size <= room(means, answer)
            assert answer.size <= (means.wanted or answer.size)
            assert policy.nodes is not None or answer.size >= means.wanted
        case RunAction.REQUEUE:
            assert means.requeue


@EXAMPLES
@given(policies, pasts, troubles, all_means())
def test_no_restart_breaks_a_budget_and_final_is_final(policy, past, trouble, means):
    answer = decide_job_failure_action(policy, past, trouble, means, trouble.at)
    if answer.action not in RESTARTS:
        return
    assert trouble.kind is not TroubleKind.FINAL
    since_stop = past
    for index, one in enumerate(past):
        if one.action in STOPS:
            since_stop = past[index + 1 :]
    lately = [
        p
        for p in since_stop
        if p.action in RESTARTS
        and p.trouble.kind in UNPLANNED
        and (trouble.at - p.trouble.at).total_seconds() < policy.window_s
    ]
    assert trouble.kind not in UNPLANNED or len(lately) < policy.restarts
    fruitless = list_failures_since_last_progress(policy, past, trouble)
    assert sum(p.action in RESTARTS for p in fruitless) < policy.without_progress
    if policy.treatment(trouble.kind).hold_same:
        same = [
            p
            for p in fruitless
            if p.action in RESTARTS
            and (p.trouble.kind, p.trouble.signature) == (trouble.kind, trouble.signature)
        ]
        assert len(same) + 1 < policy.same_signature


@EXAMPLES
@given(policies, pasts, troubles, all_means())
def test_nodes_are_left_only_for_a_reason_and_never_all_of_them_on_suspicion(
    policy, past, trouble, means
):
    answer = decide_job_failure_action(policy, past, trouble, means, trouble.at)
    named: dict[str, list[TroubleKind]] = {}
    for one in (*(p.trouble for p in past), trouble):
        if one.node is not None and policy.treatment(one.kind).exclude:
            named.setdefault(one.node, []).append(one.kind)
    assert set(answer.exclude) <= named.keys()
    suspects = [n for n in answer.exclude if not CERTAIN & set(named[n])]
    assert len(suspects) <= policy.most_excluded
    # Where not even the suspects' nodes would have helped, nothing else was possible either.
    if answer.action is RunAction.HOLD and "too few healthy nodes" in answer.why:
        bad = {n for n, kinds in named.items() if CERTAIN & set(kinds)} - set(means.healed)
        bad |= {trouble.node} & named.keys() if trouble.kind in CERTAIN else set()
        need = means.wanted if policy.nodes is None else min(means.wanted, policy.nodes[0])
        unhealed = set(means.names) - bad if means.names else range(means.nodes - len(bad))
        assert len(unhealed) < max(1, need)


@EXAMPLES
@given(
    st.lists(st.sampled_from(list(TroubleKind)), min_size=40, max_size=40),
    st.lists(nodes, min_size=40, max_size=40),
    st.integers(1, 80),
    st.none() | st.just(7),
    st.booleans(),
)
def test_a_run_that_gets_nowhere_is_stopped_whatever_befalls_it(
    kinds, where, gap_s, progress, process
):
    """By the defaults: at most `without_progress` restarts, then a stop, for every mixture."""
    policy, past = RunPolicy(), list[PastJobFailure]()
    means = RestartResources(process, True, 6, 4, names=NAMES)
    restarts = 0
    for index, (kind, node) in enumerate(zip(kinds, where, strict=True)):
        at = START + timedelta(seconds=gap_s * index)
        trouble = Trouble(kind, at, "w", f"s{index}", node=node, progress=progress)
        answer = decide_job_failure_action(policy, past, trouble, means, at)
        past.append(PastJobFailure(trouble, answer.action))
        restarts += answer.action in RESTARTS
        if answer.action in STOPS or kind is TroubleKind.FINAL:
            break
    # The first of them shows the checkpoint that the others do not get beyond.
    assert restarts <= policy.without_progress
    stopped = past[-1].action in (*STOPS, RunAction.NONE)
    restarting = sum(not TOLD & set(DEFAULTS[p.trouble.kind].ladder) for p in past)
    assert stopped or restarting <= policy.without_progress


@EXAMPLES
@given(pasts, troubles, all_means(), st.sampled_from(NAMES))
def test_a_node_that_is_proven_bad_is_left_whatever_it_costs(past, trouble, means, node):
    bad = replace(trouble, kind=TroubleKind.NODE, node=node)
    answer = decide_job_failure_action(RunPolicy(), past, bad, means, bad.at)
    assert answer.action not in RESTARTS or node in answer.exclude
