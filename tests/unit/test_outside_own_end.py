"""One thing that a check sees may end otherwise than its CheckSpec says."""

from __future__ import annotations

from datetime import datetime, timedelta

from hpctl.agent.check import Observation
from hpctl.agent.findings import Conditions
from hpctl.core.compat import UTC
from hpctl.core.faults.row import CheckSpec
from hpctl.core.model import Clears

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPEC = CheckSpec("plugin.x", "x", "x", every_s=60.0, gone_s=60.0)


def codes(conditions: Conditions) -> set[str]:
    return {finding.code for finding in conditions.findings()}


def test_its_own_time_and_its_own_way_to_clear() -> None:
    conditions = Conditions(SPEC)
    conditions.saw(
        [
            Observation("plain"),
            Observation("long", gone_s=3600.0),
            Observation("boot", clears=Clears.BOOT),
        ],
        NOON,
    )
    assert codes(conditions) == {"plain", "long", "boot"}
    conditions.saw([], NOON + timedelta(seconds=60))
    assert codes(conditions) == {"long", "boot"}
    conditions.saw([], NOON + timedelta(hours=1))
    assert codes(conditions) == {"boot"}
    assert conditions.findings()[0].clears is Clears.BOOT
