"""What becomes of a flaw: a hold `internal_error` on its one thing, and a person if it lasts.

The hold is in the journal like every other, so that `status`, `explain` and `doctor` show it and a
restart does not forget it; it is lifted when the thing can be handled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from hpctl.core.bounds import later
from hpctl.core.journal import HoldNoted
from hpctl.core.model import RuleId
from hpctl.core.walls import Flaw

GATE: Final = "internal_error"
QUARANTINED: Final = RuleId("internal-error")
ESCALATED: Final = RuleId("internal-error-lasts")
LASTS_S: Final = 600.0
"""What cannot be handled for so long does not pass by itself."""


def quarantined(
    flaws: Iterable[Flaw],
    holds: Iterable[HoldNoted],
    known: Mapping[str, HoldNoted],
    now: datetime,
) -> list[HoldNoted]:
    """All holds of one cycle, one a target. `known`: those that stand in the journal."""
    found = {hold.target: hold for hold in holds}
    for flaw in flaws:
        before = known.get(flaw.target)
        lasts = before is not None and before.gate == GATE and _lasts(before, now)
        mend = "it lasts: look at the daemon's log" if lasts else "left alone, all others go on"
        why = f"{flaw.where} raised {flaw.error} (input {flaw.digest}); {mend}"
        rule = ESCALATED if lasts else QUARANTINED
        found[flaw.target] = HoldNoted(now, flaw.target, GATE, why, rule)
    return list(found.values())


def _lasts(before: HoldNoted, now: datetime) -> bool:
    return before.rule == ESCALATED or now >= later(before.at, LASTS_S)
