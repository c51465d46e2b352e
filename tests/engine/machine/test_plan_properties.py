"""What holds of every plan, and a dumb second opinion on small clusters."""

import random
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.engine.config import Config
from hpctl.engine.journal.events import GateBlocked, NodeRecoveryOpened
from hpctl.engine.kinds import RecoveryPlan
from hpctl.engine.plan import find_node_recovery_candidates
from hpctl.engine.view import PlanningView
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason, parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.slurm_facts import SlurmNode
from tests.examples import examples
from tests.fakes.engine import plan
from tests.fakes.values import at, faulty, generation, node_name, opened, slurm_node, view_of
from tests.unflawed import unflawed

RULES = catalogue_rules()
EXAMPLES = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
FAULTS = tuple(
    FaultClass(rule, rule, urgency, (Remedy.REPLACE,))
    for rule, urgency in (
        ("xid-79", Urgency.NOW),
        ("xid-63", Urgency.AFTER_JOBS),
        ("xid-48", Urgency.NOW),
    )
)
REASONS = ("", "", "", "bad fan", format_hpctl_node_reason(make_recovery_id("n", 0), "old"))


@st.composite
def clusters(draw: st.DrawFn) -> PlanningView:
    size = draw(st.integers(1, 12))
    names = [node_name(i) for i in range(1, size + 1)]
    nodes: dict[str, SlurmNode] = {}
    health: dict[str, NodeHealth] = {}
    sick = []
    log = []
    for i, name in enumerate(names):
        reason = draw(st.sampled_from(REASONS))
        flags = frozenset({"DRAIN"}) if reason else frozenset()
        nodes[name] = slurm_node(i + 1, reason=reason, flags=flags)
        health[name] = NodeHealth(
            generation(name), at(draw(st.sampled_from((0, 0, 0, -120, -121))))
        )
        state = draw(st.sampled_from(("well", "ill", "ill", "treated")))
        since = draw(st.integers(-900, 0))
        fault = draw(st.sampled_from(FAULTS))
        if state == "ill":
            sick.append(faulty(name, fault, since))
        elif state == "treated":
            log.append(opened(f"n-{i}", name, since, rule=fault.rule))
    view = view_of(size, sick, log=log, health=health)
    return replace(view, scheduler=replace(view.scheduler, nodes=nodes))


budgets = st.builds(
    ConcurrentRecoveryBudgets, open_min=st.integers(1, 4), partition_min=st.integers(1, 4),
    drain_min=st.integers(1, 4), drain_fraction=st.sampled_from((0.0, 0.25, 0.5, 1.0)),
    correlated_min=st.integers(2, 5),
)  # fmt: skip


def _plan(
    view: PlanningView, budgets: ConcurrentRecoveryBudgets, mode: OperatingMode = OperatingMode.OWN
) -> RecoveryPlan:
    return plan(view, RecoveryPolicy(mode=mode, budgets=budgets), RULES, {}, at(0))


def _opens(made: RecoveryPlan) -> list[str]:
    return [o.generation.node for o in made.opens if isinstance(o, NodeRecoveryOpened)]


@EXAMPLES
@given(clusters(), budgets)
def test_every_candidate_yields_exactly_one_open_or_hold(
    view: PlanningView, b: ConcurrentRecoveryBudgets
) -> None:
    made = _plan(view, b)
    decided = [*_opens(made), *(h.target for h in made.holds if not _blocked(h, view))]
    assert sorted(decided) == sorted(
        c.node.name for c in unflawed(find_node_recovery_candidates(view, RULES, at(0)))
    )


def _blocked(hold: GateBlocked, view: PlanningView) -> bool:
    """Whether it is the remedy of an open recovery that a gate holds."""
    return hold.target in view.state.open_nodes


@EXAMPLES
@given(clusters(), budgets)
def test_the_same_view_gives_the_same_plan_in_any_order(
    view: PlanningView, b: ConcurrentRecoveryBudgets
) -> None:
    shuffled = random.Random(7)
    nodes = list(view.scheduler.nodes.items())
    sick = list(view.assessments.items())
    shuffled.shuffle(nodes)
    shuffled.shuffle(sick)
    other = replace(
        view, scheduler=replace(view.scheduler, nodes=dict(nodes)), assessments=dict(sick)
    )
    first, second = _plan(view, b), _plan(other, b)
    assert first.opens == second.opens
    assert sorted(first.holds, key=lambda h: h.target) == sorted(
        second.holds, key=lambda h: h.target
    )


@EXAMPLES
@given(clusters(), budgets, st.integers(0, 3))
def test_a_larger_budget_opens_no_fewer(
    view: PlanningView, b: ConcurrentRecoveryBudgets, more: int
) -> None:
    larger = replace(b, drain_min=b.drain_min + more, partition_min=b.partition_min + more)
    few, many = set(_opens(_plan(view, b))), set(_opens(_plan(view, larger)))
    assert few <= many


@EXAMPLES
@given(clusters(), budgets)
def test_nothing_opens_while_paused_stale_stopped_or_observing(
    view: PlanningView, b: ConcurrentRecoveryBudgets
) -> None:
    view.state.pauses = {"": Pause("", "eve", at(-1))}
    assert not _opens(_plan(view, b))
    view.state.pauses = {}
    assert not _opens(_plan(replace(view, stopped="the file exists"), b))
    assert not _opens(_plan(replace(view, current=False), b))
    assert not _opens(_plan(view, b, OperatingMode.OBSERVE))
    old = replace(view.scheduler, as_of=at(-61))
    assert not _opens(_plan(replace(view, scheduler=old), b))


def dumb(view: PlanningView, b: ConcurrentRecoveryBudgets) -> list[str]:
    """A second opinion in as few lines as can be, for one partition and mode own."""
    nodes, state, now = view.scheduler.nodes, view.state, at(0)
    ours = {
        n
        for n, node in nodes.items()
        if node.drained and parse_recovery_id_from_reason(node.reason)
    }
    kept_out = ours - set(state.open_nodes)
    size, is_open = len(nodes), len(state.open_nodes) + len(kept_out)
    recent = {r.node: r.opened for r in state.nodes.values()}
    ill = [a for a in view.assessments.values() if a.fault and a.generation.node not in recent]
    ill.sort(key=lambda a: (a.fault.urgency != "now", a.since, a.generation.node))
    found: list[str] = []
    opened_now: dict[str, list[str]] = {}
    for a in ill:
        name, node = a.generation.node, nodes[a.generation.node]
        same = {x.generation.node: x.since for x in ill if x.fault and x.fault.rule == a.fault.rule}
        for r in state.nodes.values():
            if (
                r.rule == a.fault.rule
                and r.phase != "returned"
                and now - r.opened < timedelta(minutes=10)
            ):
                same[r.node] = r.opened
        same |= dict.fromkeys(opened_now.get(a.fault.rule, []), now)
        near = max(
            sum(abs(t - when) <= timedelta(minutes=10) for t in {**same, name: when}.values())
            for when in (a.since, now)
        )
        if now - view.health[name].last_heard > timedelta(seconds=120):
            continue
        if node.drained and parse_recovery_id_from_reason(node.reason) is None:
            continue
        own = a.fault.rule in OWN_HARDWARE
        if near >= max(b.correlated_min, -(-size // 10)) and not own:
            continue
        whole = max(b.drain_min, b.open_min, int(max(b.drain_fraction, 0.05) * size))
        part = max(b.drain_min, b.partition_min, int(max(b.drain_fraction, 0.25) * size))
        if is_open - (name in kept_out) >= min(whole, part):
            continue
        is_open += name not in kept_out
        found.append(str(name))
        opened_now.setdefault(a.fault.rule, []).append(name)
    return found


@EXAMPLES
@given(clusters(), budgets)
def test_a_dumb_second_opinion_agrees(view: PlanningView, b: ConcurrentRecoveryBudgets) -> None:
    assert _opens(_plan(view, b)) == dumb(view, b)


def test_the_configuration_and_the_policy_have_the_same_defaults() -> None:
    assert Config().policy() == RecoveryPolicy()
