"""The orders for named nodes: their operations, limits and what the service answers."""

from collections.abc import Mapping

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.cloud_facts import BAD_STATUS, GONE, IN_USE


class NodeAction(StrEnum):
    """What is done to a node."""

    REPLACE = "replace"
    REBOOT = "reboot"
    DELETE = "delete"


OPERATIONS = {
    NodeAction.REPLACE: "batch_replace_cluster_nodes",
    NodeAction.REBOOT: "batch_reboot_cluster_nodes",
    NodeAction.DELETE: "batch_delete_cluster_nodes",
}


EVERY_S = 5.0

TIMEOUT_S = {NodeAction.REPLACE: 5400.0, NodeAction.REBOOT: 1800.0, NodeAction.DELETE: 1800.0}
"""After the order: a replacement takes 20 to 30 minutes, with deep health checks up to two hours.
"""


class NodeOrderOptions(Struct, frozen=True):
    """How an order is carried out.

    With `now` no job is waited for: slurmctld sets the node DOWN as soon as the service has
    accepted the order. Without `wait` the order ends when the service has accepted it. `floor`:
    groups that keep so many instances, even where others remove some meanwhile. Times in seconds;
    `timeout_s` 0 is the verb's own.
    """

    now: bool = False
    wait: bool = True
    every_s: float = EVERY_S
    timeout_s: float = 0.0
    floor: Mapping[str, int] = field(default_factory=dict)


DOUBT_S = 20.0
"""How long an order in doubt is looked for before it counts as lost."""


_MENDS = {
    **dict.fromkeys(
        IN_USE,
        "another operation works on it: wait for that; where it lasts over 90 minutes, only AWS"
        " Support can end it",
    ),
    **dict.fromkeys(
        GONE, "it was replaced or deleted meanwhile: look at `hpctl cluster instances`"
    ),
    **dict.fromkeys(
        BAD_STATUS, "it is between two states: wait until `hpctl cluster instances` shows Running"
    ),
    "InternalServerError": (
        "the service broke: look at `hpctl cluster instances` before another try"
    ),
}


def find_fix_for_refusal_code(code: str) -> str:
    """Return what to do about a node's refusal; empty where its words say it."""
    return _MENDS.get(code, "")
