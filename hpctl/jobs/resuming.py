"""What all who look for a job's resume point agree on: the script's lines, `hpctl run`, a launcher.

Cheap to import: the readers of checkpoints are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hpctl.errors import HpctlError

PAUSES_S = (2.0, 5.0, 10.0)
"""Between looks while a checkpoint directory cannot be read, 17 s in all."""


def further_places(environment: Mapping[str, str]) -> list[str]:
    """The job's tiers beside HPCTL_CHECKPOINT_DIR, as `hpctl sbatch` exports them.

    Raises HpctlError where HPCTL_TIERS is something else: a newer checkpoint may be in a place
    that it was to name.
    """
    said = environment.get("HPCTL_TIERS") or "[]"
    try:
        places = json.loads(said)
    except ValueError:
        places = None
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise HpctlError(
            f"HPCTL_TIERS is no JSON list of places: {said:.80}", "It is set by hpctl sbatch alone."
        )
    return places
