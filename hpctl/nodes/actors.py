"""A node under treatment as others leave it: HyperPod's agent, its service, operators.

HyperPod's health agent marks a node in its own name, the service gives one back that it has
replaced, and an operator resumes it, or gives it another Reason, and wins.
"""

from datetime import datetime, timedelta

from msgspec import Struct

from hpctl.engine.node_history import (
    RESTORED,
    UNSAVED,
    find_last_instance_order,
    has_health_agent_mark,
    has_node_unexpectedly_left_drain,
    has_passed_latest_node_test,
    is_node_being_returned,
    list_steps_since_drain,
    may_have_begun_remedy,
)
from hpctl.faults.hma_marks import (
    CHECK,
    MARKS,
    find_hma_reason_mark,
    is_hma_mark_fulfilled,
    parse_hma_mark_from_reason,
)
from hpctl.faults.reachability import RULES as REACH_RULES
from hpctl.faults.reachability import is_reachable
from hpctl.faults.slurm_reasons import is_node_drained_by_slurm
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy
from hpctl.vocabulary.cloud_facts import Instance
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.node_recovery import (
    IN_TEST,
    SCALE_DOWN,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryDecisionContext,
    RecoveryPhaseMove,
    StepKind,
    StepRetryRule,
    StepStartDecision,
    WaitDecision,
    describe_node_takeover,
    find_last_step_attempt,
    format_call_outcome,
)
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode


class NodeFacts(Struct, frozen=True):
    """What is known now of the node that a recovery treats.

    `instance` is the node's instance now, by the provider; `unjoined` says why it has none where
    several might be it. `listed`: the instance that is treated, where the provider lists it.
    `running` and `completing` are the jobs that hold the node.
    `movable` are the running ones whose own job recovery is ready to let them be stopped.
    `heard` is the generation that the agent reports on.
    `withdrawn` says why an order by hand, or a removal, is withdrawn. Empty where it is not.
    `correlated` says why its fault is not the node's own: a mass event, or it was unreachable and
    now it answers. Empty where it is.
    `blocked` says why its remedy waits though it stays closed. `was_blocked`: it has waited so
    until now.
    `taken_away`: the provider reclaims the instance soon, whatever the recovery was opened for.
    `able_since`: see `PlanningView`. `booted`: when slurmctld started, where that was asked.
    `reset`: what the agent answered to the recovery's order to reset GPUs; `evidence`: to its order
    to keep the node's evidence, for which it is the recovery's `turn`. `silent`: the agent has not
    reported for a while.
    `held`: the reservation of its newest test holds the node. `test`: that test's job, where
    slurmctld knows it; `results`: what the agent reports of it. `left_in`: the reservation of an
    earlier recovery's test, which holds the node still. `maintenance`: which maintenance
    reservation holds the node, in words; "" where none does. `stuck`: which of the `completing`
    jobs has been so for too long, in words, where DOWN frees all of them. `absent`: since when
    slurmctld does not list the node; None where it does.
    """

    slurm: SlurmNode | None = None
    instance: Instance | None = None
    unjoined: str = ""
    listed: Instance | None = None
    provider_fresh: bool = False
    provider_present: bool = False
    assessment: NodeAssessment | None = None
    heard: NodeGeneration | None = None
    running: tuple[SlurmJob, ...] = ()
    completing: tuple[SlurmJob, ...] = ()
    movable: frozenset[int] = frozenset()
    correlated: str = ""
    withdrawn: str = ""
    blocked: str = ""
    was_blocked: bool = False
    taken_away: bool = False
    able_since: datetime | None = None
    booted: datetime | None = None
    reset: Finding | None = None
    evidence: Finding | None = None
    turn: bool = False
    silent: bool = True
    held: bool = False
    test: SlurmJob | None = None
    results: tuple[Finding, ...] = ()
    left_in: str = ""
    maintenance: str = ""
    begins: datetime | None = None
    stuck: str = ""
    absent: datetime | None = None

    @property
    def mark(self) -> str:
        """Return the Reason with which HyperPod's health agent asks for a remedy."""
        return find_hma_reason_mark(self.slurm)


NodeCase = RecoveryDecisionContext[NodeRecovery, NodeFacts]


def end_interrupted_removal(c: NodeCase) -> RecoveryPhaseMove | None:
    """End a removal whose node another actor closes before its deletion was ordered."""
    rec, node = c.rec, c.facts.slurm
    if rec.rule != SCALE_DOWN or node is None or may_have_begun_remedy(rec):
        return None
    if c.facts.mark:
        why = f"HyperPod's health agent marked it: {c.facts.mark}"
        return RecoveryPhaseMove(NodeRecoverySignal.OPERATOR_TOOK_OVER, why)
    if node.drained and parse_recovery_id_from_reason(node.reason) != rec.id:
        return RecoveryPhaseMove(
            NodeRecoverySignal.OPERATOR_TOOK_OVER,
            f"drained by another operator or tool: {node.reason!r}",
        )
    return None


def record_health_agent_mark(c: NodeCase) -> Next | None:
    """Note that HyperPod's health agent closed the node in its own name: evidence, and no
    operator's decision.

    Its FAIL has cleared our DRAIN and its Reason replaced ours. Mode own closes the node in our
    name again; in mode assist the service reads that Reason, so it stays.
    """
    rec, node, mark = c.rec, c.facts.slurm, c.facts.mark
    lost = (
        node is not None
        and "FAIL" in node.flags
        and parse_recovery_id_from_reason(node.reason) == rec.id
    )
    if node is None or not (mark or lost):
        return None
    if rec.rule == SCALE_DOWN:
        return None
    fresh = bool(mark) and not is_hma_mark_fulfilled(node, c.facts.instance)
    if fresh and rec.phase in (NodeRecoveryPhase.VERIFYING, NodeRecoveryPhase.ACCEPTING):
        return RecoveryPhaseMove(
            NodeRecoverySignal.FAULT_AGAIN, f"HyperPod's health agent marked it: {mark}"
        )
    if (
        fresh
        and rec.phase is NodeRecoveryPhase.UNRESERVING
        and has_passed_latest_node_test(rec, c.policy)
    ):
        # In its reservation it has failed after all; out of it, it serves, and is treated again.
        signal = NodeRecoverySignal.FAULT_AGAIN if c.facts.held else NodeRecoverySignal.RETURN_SEEN
        return RecoveryPhaseMove(
            signal, f"HyperPod's health agent marked it after its test: {mark}"
        )
    drain = c.last(StepKind.DRAIN)
    if mark and not _is_health_agent_mark_recorded(rec):
        return RecoveryPhaseMove(
            _choose_signal_for_health_agent_mark(rec, mark),
            f"{node.state}+{'+'.join(sorted(node.flags))}: {node.reason}",
        )
    if c.policy.mode is not OperatingMode.OWN or drain is None:
        return None
    if drain.attempt >= _compute_max_drain_repeats(c):
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEEDS_HUMAN, f"it is marked {mark} again and again"
        )
    if drain.accepted:
        return StepStartDecision(StepKind.DRAIN, rec.node, drain.attempt + 1, rec.meaning)
    return resolve_step_answer(c.attempt(StepKind.DRAIN, rec.node, rec.meaning), "drain the node")


def resolve_step_answer(
    answer: StepStartDecision | WaitDecision | Outcome, to_do: str, not_ours: str = ""
) -> Next:
    """Return a step's answer, or a move where trying again is not for us to decide. `not_ours`:
    what it means that the node belongs to another operator or tool by now."""
    if not isinstance(answer, Outcome):
        return answer
    if not_ours and answer.code in ("foreign_drain", "not_ours"):
        return RecoveryPhaseMove(
            NodeRecoverySignal.OPERATOR_TOOK_OVER, f"{not_ours}: {answer.detail}"
        )
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEEDS_HUMAN, f"slurmctld will not {to_do}: {format_call_outcome(answer)}"
    )


def _is_health_agent_mark_recorded(rec: NodeRecovery) -> bool:
    """Return whether the mark that the node bears is written down: none came since we closed it.

    By count and not by time: clocks are set back.
    """
    opened_for_it = not rec.drains and any(f.check == CHECK for f in rec.findings)
    return opened_for_it or rec.marked_at == rec.drains


def _choose_signal_for_health_agent_mark(rec: NodeRecovery, mark: str) -> NodeRecoverySignal:
    """Return a replacement where the reboot that we are about to order would not be enough."""
    early = (
        rec.phase in (NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED)
        and not rec.remedied
    )
    return (
        NodeRecoverySignal.REPLACE_ASKED
        if early and _needs_stronger_remedy(rec, mark)
        else NodeRecoverySignal.MARKED
    )


def _needs_stronger_remedy(rec: NodeRecovery, mark: str) -> bool:
    gentler = rec.remedy in (Remedy.RESET_GPU, Remedy.REBOOT)
    stronger = Remedy.REPLACE in rec.ladder[rec.rung + 1 :]
    return MARKS.get(mark) == Remedy.REPLACE and gentler and stronger


def is_replacement_still_requested(rec: NodeRecovery, policy: RecoveryPolicy) -> bool:
    """Return whether a mark that came during the reboot still asks for a replacement.

    Our drain has removed that mark since, so the node itself does not show it. In mode assist the
    service acts on its marks.
    """
    if policy.mode is not OperatingMode.OWN or rec.generation.instance != rec.opened_for.instance:
        return False
    noted = (t.why.partition(": ")[2] for t in rec.trail if t.signal == NodeRecoverySignal.MARKED)
    return any(_needs_stronger_remedy(rec, parse_hma_mark_from_reason(reason)) for reason in noted)


def restore_lost_drain(c: NodeCase) -> Next | None:
    """Restore our drain after slurmctld died before it had saved it: no operator lifted it. Only
    once for a start of slurmctld: an operator who resumes the node after that wins.
    """
    facts, drain = c.facts, c.last(StepKind.DRAIN)
    if facts.booted is None or drain is None or drain.resolved is None:
        return None
    # slurmctld reports whole seconds.
    before = facts.booted - drain.resolved > -timedelta(seconds=1)
    recent = facts.booted - drain.resolved < UNSAVED and c.now - facts.booted < RESTORED
    if not (
        before and recent and has_node_unexpectedly_left_drain(c.rec, facts.slurm)
    ) or drain.attempt >= _compute_max_drain_repeats(c):
        return None
    return StepStartDecision(StepKind.DRAIN, c.rec.node, drain.attempt + 1, c.rec.meaning)


def restore_drain_reason(c: NodeCase) -> Next | None:
    """Restore our Reason, which slurmctld replaced or removed: no operator did, so the node is
    drained again.

    From 23.02 on it writes its own at each registration that it calls invalid (fewer GPUs or less
    memory than slurm.conf says), no matter who has drained the node. It refuses a RESUME meanwhile,
    so no operator can have given the node back in between. Every release removes the Reason, and
    keeps the drain, when a node that its power saving has stopped registers: an operator's drain
    always has a Reason.
    """
    node, drain = c.facts.slurm, c.last(StepKind.DRAIN)
    if node is None or drain is None or not drain.accepted or c.rec.phase in IN_TEST:
        return None
    replaced = "INVALID_REG" in node.flags and is_node_drained_by_slurm(node)
    removed = node.drained and not node.reason and not c.facts.running
    if not (replaced or removed):
        return None
    if drain.attempt >= _compute_max_drain_repeats(c):
        why = f"slurmctld takes its Reason away again and again: {node.reason}"
        return RecoveryPhaseMove(NodeRecoverySignal.NEEDS_HUMAN, why)
    return StepStartDecision(StepKind.DRAIN, c.rec.node, drain.attempt + 1, c.rec.meaning)


def handle_unlisted_node(c: NodeCase) -> Next | None:
    """Wait for a node that slurmctld does not list, and end the recovery where it was deleted.

    Dynamic nodes can be deleted at any time. One that is being replaced may be missing for as long
    as that takes.
    """
    since, rec = c.facts.absent, c.rec
    if since is None or rec.is_for_capacity_change or c.policy.attended:
        return None
    why = f"slurmctld has not listed the node since {since:%H:%M:%S} UTC"
    limit = add_seconds_within_bounds(since, c.policy.node.doubt_window_s)
    if may_have_begun_remedy(rec):
        return (
            None
            if c.now < max(limit, c.deadline)
            else RecoveryPhaseMove(NodeRecoverySignal.NODE_GONE, why)
        )
    return (
        WaitDecision(limit, why, RecheckInterval.SLOWLY)
        if c.now < limit
        else RecoveryPhaseMove(NodeRecoverySignal.NODE_GONE, why)
    )


def detect_operator_takeover(c: NodeCase) -> RecoveryPhaseMove | None:
    """Detect an operator who resumes our node or changes its Reason: they win at any time after our
    drain.

    Before it, that is the operator who removes a mark: the mark had closed the node.
    """
    ours_to_close = c.rec.phase is NodeRecoveryPhase.OPEN and not has_health_agent_mark(c.rec)
    if ours_to_close or c.rec.phase in IN_TEST or is_node_being_returned(c.rec) or c.facts.mark:
        return None
    if c.policy.attended and _is_remedy_ordered(c.rec):
        # The operator who waits wants to know when the node is back, no matter who has it by then.
        return None
    if c.rec.remedy is Remedy.DELETE and may_have_begun_remedy(c.rec):
        return None  # A deletion cannot be undone.
    how = describe_node_takeover(c.facts.slurm, c.rec.id)
    if (
        how
        and c.policy.mode is OperatingMode.ASSIST
        and _is_new_generation_in_service(c.rec, c.facts)
    ):
        return None
    return RecoveryPhaseMove(NodeRecoverySignal.OPERATOR_TOOK_OVER, how) if how else None


def _is_remedy_ordered(rec: NodeRecovery) -> bool:
    order = find_last_instance_order(rec)
    return rec.phase in _UNDER_REMEDY or (order is not None and order.accepted)


_UNDER_REMEDY = (
    NodeRecoveryPhase.REMEDYING,
    NodeRecoveryPhase.REJOINING,
    NodeRecoveryPhase.VERIFYING,
)


def _is_new_generation_in_service(rec: NodeRecovery, facts: NodeFacts) -> bool:
    """Return whether the node serves again as another boot or instance than the one that was
    treated."""
    node, instance = facts.slurm, facts.instance
    if rec.phase not in _UNDER_REMEDY or node is None or not node.in_service:
        return False
    another = instance is not None and instance.id != rec.opened_for.instance
    return another or (node.boot_time is not None and node.boot_time > rec.opened)


def explain_unneeded_remedy(rec: NodeRecovery, facts: NodeFacts) -> str:
    """Return why nothing is left to remedy: the node can be reached again."""
    judged = facts.assessment
    again = judged is not None and judged.condition is NodeCondition.HEALTHY
    if rec.rule not in REACH_RULES or rec.by or rec.remedied or not again:
        return ""
    if facts.heard != rec.generation or not is_reachable(facts.slurm, facts.instance):
        return ""
    return "it answers again, and its checks pass"


def attempt_node_step(
    c: NodeCase, kind: StepKind, why: str = "", mark: str = ""
) -> StepStartDecision | WaitDecision | Outcome:
    """Attempt a step on the node; once more where it was closed again since the last one.

    Or where the last one was refused because the node had just been marked.
    """
    last = c.last(kind)
    refused = last is not None and last.outcome is not None and last.outcome.code == "not_ours"
    outrun = (
        bool(mark) and refused and last is not None and last.attempt < _compute_max_drain_repeats(c)
    )
    if last is not None and (
        outrun or find_last_step_attempt(list_steps_since_drain(c.rec), kind) is None
    ):
        return StepStartDecision(kind, c.rec.node, last.attempt + 1, why)
    return c.attempt(kind, c.rec.node, why)


def _compute_max_drain_repeats(c: NodeCase) -> int:
    """Limit how often a node is closed again, or set DOWN, for the marks that it gets."""
    return 2 * c.repeat.attempts


def make_node_step_repeat_rule(policy: RecoveryPolicy) -> StepRetryRule:
    """Return how a step of a node recovery is repeated."""
    node = policy.node
    return StepRetryRule(node.step_retry_s, node.step_attempts, node.doubt_window_s)
