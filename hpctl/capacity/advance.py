"""A durable change of the capacity at hand: a group grows, a node leaves, spares are set apart.

Built like a recovery: every phase change is in TRANSITIONS, an unknown pair raises, every phase
has a deadline, and a change that has ended never acts again. Nothing here opens one:
`plan_capacity` does. `advance` is one pure function, with one small one for each phase. Looking
comes before doing, as in a recovery: is the effect there to be seen, and only then the step. An
instance is removed by its id, which names no other machine ever after; an addition bears the
change's id as its client token. So a repeat adds or removes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from hpctl.capacity.burn_in import _burn_in, _ending, _testing
from hpctl.capacity.change_facts import ChangeFacts, _Case
from hpctl.capacity.group_growth import _add, _arriving
from hpctl.capacity.node_removal import _closed, _giving_back, _leaving, _remove, _return
from hpctl.capacity.spares import _spares
from hpctl.engine.change_deadlines import deadline_of
from hpctl.vocabulary.change import Change, ChangePhase, ChangeSignal, Kind, ordered
from hpctl.vocabulary.policy import Policy
from hpctl.vocabulary.recovery import Case, Next, Repeat, in_time


def advance(change: Change, facts: ChangeFacts, policy: Policy, now: datetime) -> Next:
    """What the facts make of a change: a move, a step, or waiting. Total over open phases."""
    node = policy.node
    deadline = in_time(deadline_of(change, policy), facts.able_since, policy.ages.silent_s)
    repeat = Repeat(node.step_retry_s, node.step_attempts, node.doubt_window_s)
    c = Case(change, facts, policy, now, deadline, repeat)
    # What was closed for nothing is given back; what may be going is left to a person.
    vain = change.phase is ChangePhase.CLOSED and not ordered(change)
    answer = _PHASES[change.opened.kind, change.phase](c)
    return c.timed(answer, ChangeSignal.REFUSED if vain else ChangeSignal.DEADLINE)


_PHASES: Final[Mapping[tuple[Kind, ChangePhase], Callable[[_Case], Next]]] = {
    (Kind.ADD, ChangePhase.OPEN): _add,
    (Kind.ADD, ChangePhase.ARRIVING): _arriving,
    (Kind.REMOVE, ChangePhase.OPEN): _remove,
    (Kind.REMOVE, ChangePhase.CLOSED): _closed,
    (Kind.REMOVE, ChangePhase.LEAVING): _leaving,
    (Kind.REMOVE, ChangePhase.GIVING_BACK): _giving_back,
    (Kind.RETURN, ChangePhase.OPEN): _return,
    (Kind.SPARES, ChangePhase.OPEN): _spares,
    (Kind.BURN_IN, ChangePhase.OPEN): _burn_in,
    (Kind.BURN_IN, ChangePhase.TESTING): _testing,
    (Kind.BURN_IN, ChangePhase.LEAVING): _ending,
}
