"""A durable change of capacity: a group grows, spares are set apart, a node is tested.

Built like a recovery: every phase change is in TRANSITIONS, an unknown pair raises, every phase
has a deadline, and a change that has ended never acts again. Nothing here opens one:
`plan_all_capacity_changes` does. `advance` is one pure function, with one small one for each phase.
Looking comes before doing, as in a recovery: is the effect there to be seen, and only then the
step. An addition bears the change's id as its client token, so a repeat adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from hpctl.capacity.burn_in import (
    evaluate_burn_in_progress,
    plan_burn_in_job_cancellation,
    plan_burn_in_start,
)
from hpctl.capacity.change_facts import CapacityChangeFacts, ChangeCase
from hpctl.capacity.group_growth import plan_instance_request, plan_node_registration_wait
from hpctl.capacity.spares import plan_spare_reservation_update
from hpctl.engine.change_deadlines import find_cluster_change_deadline
from hpctl.vocabulary.change import (
    ChangeKind,
    ClusterChange,
    ClusterChangePhase,
    ClusterChangeSignal,
)
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import (
    Next,
    RecoveryDecisionContext,
    StepRetryRule,
    extend_phase_deadline,
)


def decide_next_capacity_change_step(
    change: ClusterChange, facts: CapacityChangeFacts, policy: RecoveryPolicy, now: datetime
) -> Next:
    """Return what the facts make of a change: a move, a step, or waiting. Total over open
    phases."""
    node = policy.node
    deadline = extend_phase_deadline(
        find_cluster_change_deadline(change, policy), facts.able_since, policy.ages.silent_s
    )
    repeat = StepRetryRule(node.step_retry_s, node.step_attempts, node.doubt_window_s)
    c = RecoveryDecisionContext(change, facts, policy, now, deadline, repeat)
    answer = _PHASES[change.opened.kind, change.phase](c)
    return c.enforce_phase_deadline(answer, ClusterChangeSignal.DEADLINE)


_PHASES: Final[Mapping[tuple[ChangeKind, ClusterChangePhase], Callable[[ChangeCase], Next]]] = {
    (ChangeKind.ADD, ClusterChangePhase.OPEN): plan_instance_request,
    (ChangeKind.ADD, ClusterChangePhase.ARRIVING): plan_node_registration_wait,
    (ChangeKind.SPARES, ClusterChangePhase.OPEN): plan_spare_reservation_update,
    (ChangeKind.BURN_IN, ClusterChangePhase.OPEN): plan_burn_in_start,
    (ChangeKind.BURN_IN, ClusterChangePhase.TESTING): evaluate_burn_in_progress,
    (ChangeKind.BURN_IN, ClusterChangePhase.LEAVING): plan_burn_in_job_cancellation,
}
