"""The three orders for named nodes: replace, reboot, delete. Sent once, in doubt looked for.

None of the three takes a client token. What makes a second order harmless is the instance id: it
ends with the instance, so a replacement or a deletion that was taken after all answers a repeat
with InUse or NotFound. A reboot keeps its id, and is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctl.clusters.names import NodeRow
from hpctl.clusters.progress import FAILURE, RUNNING
from hpctl.core.compat import StrEnum
from hpctl.core.hostlist import batches
from hpctl.core.model import Outcome, OutcomeKind
from hpctl.errors import Absent, InDoubt, Refused, Unavailable
from hpctl.ports import Service


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

_GONE = "gone"

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


def mend(code: str) -> str:
    """What to do about a node's refusal; empty where its words say it."""
    return _MENDS.get(code, "")


def send(
    sagemaker: Service,
    cluster: str,
    verb: Verb,
    rows: Sequence[NodeRow],
    *,
    sleep: Callable[[float], None],
) -> Mapping[str, Outcome]:
    """Order it for each of these nodes; the outcome of each, by instance id (else logical id).

    Nodes that nobody can speak for after the call are looked at, and asked for once more where
    that cannot do harm; what is Ambiguous then stays so.
    """
    outcomes: dict[str, Outcome] = {}
    by_key = {key(row): row for row in rows}
    for chunk in batches(by_key, BATCH[verb]):
        outcomes |= _call(sagemaker, cluster, verb, [by_key[one] for one in chunk])
    doubtful = [k for k, outcome in outcomes.items() if outcome.kind is OutcomeKind.AMBIGUOUS]
    if doubtful:
        outcomes |= _observed(
            sagemaker, cluster, verb, {k: (by_key[k], outcomes[k]) for k in doubtful}, sleep
        )
    if verb is Verb.DELETE:
        for k, outcome in outcomes.items():
            outcomes[k] = _deleted_by_another(sagemaker, cluster, by_key[k], outcome)
    return outcomes


def key(row: NodeRow) -> str:
    """What an order names a node by: its instance, or its place where it has none yet."""
    return row.instance_id or row.logical_id


def _call(
    sagemaker: Service, cluster: str, verb: Verb, rows: Sequence[NodeRow]
) -> dict[str, Outcome]:
    """One call, and its answer for each node. A whole refusal is each one's."""
    ids = [row.instance_id for row in rows if row.instance_id]
    logical = [row.logical_id for row in rows if not row.instance_id]
    request: dict[str, Any] = {"ClusterName": cluster}
    request |= {"NodeIds": ids} if ids else {}
    request |= {"NodeLogicalIds": logical} if logical else {}
    try:
        answer = sagemaker.order(OPERATIONS[verb], **request)
    except Refused as error:
        whole = Outcome.rejected(error.code, f"{error} {error.hint}".strip())
        return dict.fromkeys((*ids, *logical), whole)
    except InDoubt as error:
        return dict.fromkeys((*ids, *logical), Outcome.ambiguous("InDoubt", str(error)))
    taken = {*answer.get("Successful", ()), *answer.get("SuccessfulNodeLogicalIds", ())}
    failed = {
        str(entry.get("NodeId") or entry.get("NodeLogicalId")): entry
        for part in ("Failed", "FailedNodeLogicalIds")
        for entry in answer.get(part, ())
    }
    return {one: _of_one(one in taken, failed.get(one)) for one in (*ids, *logical)}


def _of_one(taken: bool, failed: Mapping[str, Any] | None) -> Outcome:
    if failed is None:
        if taken:
            return Outcome.accepted()
        return Outcome.ambiguous("unanswered", "the service did not answer for this node")
    # BatchDelete says Code where the others say ErrorCode.
    code = str(failed.get("ErrorCode") or failed.get("Code") or "")
    message = str(failed.get("Message", ""))
    if code in IN_USE | GONE | BAD_STATUS:
        return Outcome.rejected(code, message, transient=code not in GONE)
    return Outcome.ambiguous(code or "unanswered", message)


# --- in doubt ---------------------------------------------------------------------------------


def _observed(
    sagemaker: Service,
    cluster: str,
    verb: Verb,
    doubtful: Mapping[str, tuple[NodeRow, Outcome]],
    sleep: Callable[[float], None],
) -> dict[str, Outcome]:
    """Look until each doubtful order shows; send those that do not once more, but no reboot."""
    found: dict[str, Outcome] = {}
    for _ in range(int(DOUBT_S / LOOK_S)):
        left = {k: pair[0] for k, pair in doubtful.items() if k not in found}
        if not left:
            return found
        sleep(LOOK_S)
        found |= {k: taken for k, row in left.items() if (taken := _shows(sagemaker, cluster, row))}
    left_over = {k: pair for k, pair in doubtful.items() if k not in found}
    if verb is Verb.REBOOT:
        # An accepted reboot leaves no trace in the API, and a second one would hit fresh work.
        return found | {k: outcome for k, (_, outcome) in left_over.items()}
    for chunk in batches(left_over, BATCH[verb]):
        again = _call(sagemaker, cluster, verb, [left_over[one][0] for one in chunk])
        for one, outcome in again.items():
            told = after_doubt(outcome)
            doubt = told.kind is OutcomeKind.AMBIGUOUS
            found[one] = (_shows(sagemaker, cluster, left_over[one][0]) if doubt else None) or told
    return found


def _shows(sagemaker: Service, cluster: str, row: NodeRow) -> Outcome | None:
    """Accepted where the node is no longer as it was; None where it is, or cannot be seen."""
    status = _status(sagemaker, cluster, row)
    # It may have come up, or failed, by itself since it was looked at, which may be hours.
    if status in (None, "", row.status, RUNNING, *FAILURE):
        return None
    return Outcome.accepted(f"the reply was lost; the instance is {status}")


def _status(sagemaker: Service, cluster: str, row: NodeRow) -> str | None:
    """The instance's state in the API's word, or `gone`; None where it cannot be seen."""
    way = {"NodeId": row.instance_id} if row.instance_id else {"NodeLogicalId": row.logical_id}
    try:
        details = sagemaker.read("describe_cluster_node", ClusterName=cluster, **way)["NodeDetails"]
    except Absent:
        return _GONE
    except (Refused, Unavailable):
        return None
    return str(details.get("InstanceStatus", {}).get("Status", ""))


def _deleted_by_another(
    sagemaker: Service, cluster: str, row: NodeRow, outcome: Outcome
) -> Outcome:
    """What was refused because it is gone is as wished. A call that is refused as a whole, as it is
    where no node of it could be deleted, names one reason for all: then each is looked at."""
    gone = outcome.code in GONE
    if outcome.code == "ValidationException":
        gone = _status(sagemaker, cluster, row) == _GONE
    return Outcome.accepted("it was gone already") if gone else outcome


def after_doubt(outcome: Outcome) -> Outcome:
    """What a repeat's answer says of the order that was in doubt.

    A refusal says nothing of the first, which may be what it is refused for: it stays in doubt.
    """
    if outcome.code in IN_USE | GONE:
        return Outcome.accepted("the reply was lost; the service says that it is under way")
    if outcome.kind is OutcomeKind.REJECTED:
        return Outcome.ambiguous(outcome.code, outcome.detail)
    return outcome
