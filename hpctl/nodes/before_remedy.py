"""What a room adds between an empty node and its remedy; by default nothing."""

from collections.abc import Callable, Collection
from datetime import datetime

from msgspec import Struct

from hpctl.engine.view import PlanningView
from hpctl.nodes.actors import NodeCase
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import Next


def find_no_recoveries_before_remedy(
    view: PlanningView,  # noqa: ARG001
    held: Collection[RecoveryId],  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
    now: datetime,  # noqa: ARG001
) -> frozenset[RecoveryId]:
    """Return an empty result: no recovery needs a turn."""
    return frozenset()


def require_no_step_before_remedy(c: NodeCase) -> Next | None:  # noqa: ARG001
    """Return None: nothing comes before the remedy."""
    return None


class PreRemedySteps(Struct, frozen=True, kw_only=True):
    """What comes before the remedy of an empty node.

    `find_turns` returns the recoveries that may begin it now; `held` are those whose remedy a gate
    holds. `come_before_remedy` returns what one of them still needs, None for nothing.
    """

    find_turns: Callable[
        [PlanningView, Collection[RecoveryId], RecoveryPolicy, datetime], frozenset[RecoveryId]
    ] = find_no_recoveries_before_remedy
    come_before_remedy: Callable[[NodeCase], Next | None] = require_no_step_before_remedy


NOTHING_BEFORE = PreRemedySteps()
