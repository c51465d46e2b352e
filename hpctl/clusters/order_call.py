"""One call of the service with an order for several nodes, and its outcome for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.order_terms import OPERATIONS, NodeAction
from hpctl.toolkit.errors import OrderOutcomeUnknown, ServiceCallRefused
from hpctl.vocabulary.cloud_facts import BAD_STATUS, GONE, IN_USE
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.ports import AwsServiceClient


def choose_node_id_for_api_call(row: NodeRow) -> str:
    """Return what an order names a node by: its instance, or its place where it has none yet."""
    return row.instance_id or row.logical_id


def call_batch_node_operation(
    sagemaker: AwsServiceClient, cluster: str, verb: NodeAction, rows: Sequence[NodeRow]
) -> dict[str, Outcome]:
    """Send one call; return its answer for each node. A whole refusal is each one's."""
    ids = [row.instance_id for row in rows if row.instance_id]
    logical = [row.logical_id for row in rows if not row.instance_id]
    request: dict[str, Any] = {"ClusterName": cluster}
    request |= {"NodeIds": ids} if ids else {}
    request |= {"NodeLogicalIds": logical} if logical else {}
    try:
        answer = sagemaker.order(OPERATIONS[verb], **request)
    except ServiceCallRefused as error:
        whole = Outcome.rejected(error.code, f"{error} {error.hint}".strip())
        return dict.fromkeys((*ids, *logical), whole)
    except OrderOutcomeUnknown as error:
        return dict.fromkeys((*ids, *logical), Outcome.ambiguous("InDoubt", str(error)))
    taken = {*answer.get("Successful", ()), *answer.get("SuccessfulNodeLogicalIds", ())}
    entries = [*answer.get("Failed", ()), *answer.get("FailedNodeLogicalIds", ())]
    failed = {str(entry.get("NodeId") or entry.get("NodeLogicalId")): entry for entry in entries}
    return {one: _classify_node_response(one in taken, failed.get(one)) for one in (*ids, *logical)}


def _classify_node_response(taken: bool, failed: Mapping[str, Any] | None) -> Outcome:
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
