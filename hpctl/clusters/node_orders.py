"""Orders for named nodes: what each would do and why it may not be given, and how it is sent.

None of the three takes a client token. What makes a second order harmless is the instance id: it
ends with the instance, so a replacement or a deletion that was taken after all answers a repeat
with InUse or NotFound. A reboot keeps its id, and is never repeated.

UpdateCluster with a lower count ends instances at random, with whatever runs there. So a group that
shrinks has its nodes picked here, what is broken first and then what is idle, and they are deleted
by name.
"""

from collections.abc import Callable, Mapping, Sequence

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.order_call import call_service, key
from hpctl.clusters.order_in_doubt import accept_earlier_deletion, observe_orders
from hpctl.clusters.order_terms import BATCH, Verb
from hpctl.toolkit.hostlist import batches
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.ports import Service


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
        outcomes |= call_service(sagemaker, cluster, verb, [by_key[one] for one in chunk])
    doubtful = [k for k, outcome in outcomes.items() if outcome.kind is OutcomeKind.AMBIGUOUS]
    if doubtful:
        outcomes |= observe_orders(
            sagemaker, cluster, verb, {k: (by_key[k], outcomes[k]) for k in doubtful}, sleep
        )
    if verb is Verb.DELETE:
        for k, outcome in outcomes.items():
            outcomes[k] = accept_earlier_deletion(sagemaker, cluster, by_key[k], outcome)
    return outcomes
