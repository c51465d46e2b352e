"""An order whose answer was lost: what the nodes show of it."""

from collections.abc import Callable, Mapping

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.order_call import call_service
from hpctl.clusters.order_terms import BATCH, DOUBT_S, GONE, IN_USE, LOOK_S, STATUS_GONE, Verb
from hpctl.clusters.progress import FAILURE, RUNNING
from hpctl.toolkit.errors import Absent, Refused, Unavailable
from hpctl.toolkit.hostlist import batches
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.ports import Service


def observe_orders(
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
        again = call_service(sagemaker, cluster, verb, [left_over[one][0] for one in chunk])
        for one, outcome in again.items():
            answer = after_doubt(outcome)
            doubt = answer.kind is OutcomeKind.AMBIGUOUS
            found[one] = (
                _shows(sagemaker, cluster, left_over[one][0]) if doubt else None
            ) or answer
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
        return STATUS_GONE
    except (Refused, Unavailable):
        return None
    return str(details.get("InstanceStatus", {}).get("Status", ""))


def accept_earlier_deletion(
    sagemaker: Service, cluster: str, row: NodeRow, outcome: Outcome
) -> Outcome:
    """What was refused because it is gone is as wished. A call that is refused as a whole, as it is
    where no node of it could be deleted, names one reason for all: then each is looked at."""
    gone = outcome.code in GONE
    if outcome.code == "ValidationException":
        gone = _status(sagemaker, cluster, row) == STATUS_GONE
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
