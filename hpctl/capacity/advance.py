"""A durable change of capacity: a group grows, spares are set apart, a node is tested.

Built like a recovery: every phase change is in TRANSITIONS, an unknown pair raises, every phase
has a deadline, and a change that has ended never acts again. Nothing here opens one:
`plan_capacity` does. `advance` is one pure function, with one small one for each phase. Looking
comes before doing, as in a recovery: is the effect there to be seen, and only then the step. An
addition bears the change's id as its client token, so a repeat adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from hpctl.capacity.burn_in import begin_burn_in, end_burn_in, watch_burn_in
from hpctl.capacity.change_facts import CapacityChangeFacts, ChangeCase
from hpctl.capacity.group_growth import request_instances, wait_for_registration
from hpctl.capacity.spares import set_spare_reservation
from hpctl.engine.change_deadlines import find_change_deadline
from hpctl.vocabulary.change import ChangeKind, ChangePhase, ChangeSignal, ClusterChange
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import Next, RecoveryCase, RepeatRule, extend_deadline


def advance_capacity_change(
    change: ClusterChange, facts: CapacityChangeFacts, policy: RecoveryPolicy, now: datetime
) -> Next:
    """Return what the facts make of a change: a move, a step, or waiting. Total over open
    phases."""
    node = policy.node
    deadline = extend_deadline(
        find_change_deadline(change, policy), facts.able_since, policy.ages.silent_s
    )
    repeat = RepeatRule(node.step_retry_s, node.step_attempts, node.doubt_window_s)
    c = RecoveryCase(change, facts, policy, now, deadline, repeat)
    answer = _PHASES[change.opened.kind, change.phase](c)
    return c.enforce_deadline(answer, ChangeSignal.DEADLINE)


_PHASES: Final[Mapping[tuple[ChangeKind, ChangePhase], Callable[[ChangeCase], Next]]] = {
    (ChangeKind.ADD, ChangePhase.OPEN): request_instances,
    (ChangeKind.ADD, ChangePhase.ARRIVING): wait_for_registration,
    (ChangeKind.SPARES, ChangePhase.OPEN): set_spare_reservation,
    (ChangeKind.BURN_IN, ChangePhase.OPEN): begin_burn_in,
    (ChangeKind.BURN_IN, ChangePhase.TESTING): watch_burn_in,
    (ChangeKind.BURN_IN, ChangePhase.LEAVING): end_burn_in,
}
