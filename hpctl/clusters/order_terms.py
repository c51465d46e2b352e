"""The orders for named nodes: their operations, limits and what the service answers."""

from hpctl.toolkit.compat import StrEnum


class Verb(StrEnum):
    """What is done to a node."""

    REPLACE = "replace"
    REBOOT = "reboot"
    DELETE = "delete"


OPERATIONS = {
    Verb.REPLACE: "batch_replace_cluster_nodes",
    Verb.REBOOT: "batch_reboot_cluster_nodes",
    Verb.DELETE: "batch_delete_cluster_nodes",
}


BATCH = {Verb.REPLACE: 25, Verb.REBOOT: 25, Verb.DELETE: 50}
"""Ids in one call. BatchDeleteClusterNodes: the model says 3 000, its text 99, and 50 together
with logical ids; the least of them is safe.
"""


IN_USE = frozenset({"InstanceIdInUse", "NodeIdInUse"})


GONE = frozenset({"InstanceIdNotFound", "NodeIdNotFound"})


BAD_STATUS = frozenset({"InvalidInstanceStatus", "InvalidNodeStatus"})


MOVING = IN_USE | BAD_STATUS
"""A node refused so may be about to go, by another's order: no job shall start there."""


DOUBT_S = 20.0
"""How long a doubtful order is looked for before it is taken for lost."""


LOOK_S = 2.0


STATUS_GONE = "gone"


_MENDS = {
    **dict.fromkeys(
        IN_USE,
        "another operation works on it: wait for that; where it lasts over 90 minutes, only AWS"
        " Support can end it",
    ),
    **dict.fromkeys(GONE, "it was replaced or deleted meanwhile: look at `hpctl cluster nodes`"),
    **dict.fromkeys(
        BAD_STATUS, "it is between two states: wait until `hpctl cluster nodes` shows Running"
    ),
    "InternalServerError": "the service broke: look at `hpctl cluster nodes` before another try",
}


def fix(code: str) -> str:
    """What to do about a node's refusal; empty where its words say it."""
    return _MENDS.get(code, "")
