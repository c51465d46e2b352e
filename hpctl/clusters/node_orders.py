"""Orders for named nodes: what each would do and why it may not be given, and how it is sent.

None of the three takes a client token. What makes a second order harmless is the instance id: it
ends with the instance, so a replacement or a deletion that was taken after all answers a repeat
with InUse or NotFound. A reboot keeps its id, and is never repeated.

UpdateCluster with a lower count ends instances at random, with whatever runs there. So a group that
shrinks has its nodes picked here, what is broken first and then what is idle, and they are deleted
by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpctl.clusters.names import NOT_FOUND, UNKNOWN, NodeRow, natural
from hpctl.clusters.progress import FAILURE, RUNNING
from hpctl.core.compat import StrEnum
from hpctl.core.hostlist import batches
from hpctl.core.model import (
    NodeName,
    Outcome,
    OutcomeKind,
    SchedulerView,
    SlurmJob,
    SlurmNode,
    reason_owner,
)
from hpctl.core.view import jobs_on
from hpctl.errors import Absent, HpctlError, InDoubt, Refused, Unavailable
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


def fix(code: str) -> str:
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


PREFIX = "operator:"
"""How the Reason of a node begins that an operator's command drained. Not the daemon's own."""

_MARK = re.compile(rf"{PREFIX}(replace|reboot|delete):(\S+) ")

ALLOWED = {
    Verb.REPLACE: ("Running", "Failure", "Failed"),
    Verb.REBOOT: ("Running",),
    Verb.DELETE: (),
}
"""The API's states in which a node takes an order; none named: any."""


class Target(Struct, frozen=True):
    """One node of an order. `refusal` says why it may not be; `warning` what to know before.

    `instance` is the one that the order is for: its id, or the logical id of a place without one.
    `reason` is the Reason under which it is drained; empty where it need not or cannot be.
    `before` is the node as Slurm had it. `under_way`: an earlier command has ordered this, and
    what is left is to wait and to give the node back. `adopted`: it has drained it and may have
    ordered it. `slurmd`: when the slurmd began that was there at the drain, "" for unknown: another
    one has to register before the node is given back.
    """

    row: NodeRow
    instance: str
    jobs: tuple[SlurmJob, ...] = ()
    before: SlurmNode | None = None
    reason: str = ""
    refusal: str = ""
    warning: str = ""
    under_way: bool = False
    adopted: bool = False
    slurmd: str = ""


class Plan(Struct, frozen=True):
    """An order for nodes of a cluster. `refusal` is why none of it may be given."""

    verb: Verb
    cluster: str
    targets: tuple[Target, ...]
    refusal: str = ""
    arn: str = ""

    @property
    def refused(self) -> bool:
        """Whether anything speaks against it: an order is given for all of its nodes or none."""
        return bool(self.refusal) or any(target.refusal for target in self.targets)


def mark(verb: Verb, row: NodeRow, by: str, slurmd: str = "") -> str:
    """The Reason of a drain: what was ordered, for which instance, by whom.

    The instance makes it durable: whoever finds the node knows whether the order is done. Which
    slurmd was there then tells later whether the machine has come back or is only about to go.
    """
    return f"{PREFIX}{verb}:{key(row)}{f'@{slurmd}' if slurmd else ''} by {by}"


def began(node: SlurmNode) -> str:
    """When its slurmd began, as a Reason has it; "" for unknown."""
    return f"{node.slurmd_start:%Y%m%dT%H%M%S}" if node.slurmd_start else ""


def plan(
    verb: Verb,
    description: Mapping[str, Any],
    rows: Sequence[NodeRow],
    slurm: SchedulerView | None,
    *,
    by: str,
    daemon: bool = False,
) -> Plan:
    """Look at each node. `daemon`: hpctl's daemon lives, and treats what its Reasons name."""
    here: Mapping[NodeName, list[SlurmJob]] = {}
    if slurm is not None:
        here = jobs_on([NodeName(row.node) for row in rows], slurm.jobs)
    targets = []
    for row in rows:
        name = NodeName(row.node)
        jobs = [job for job in here.get(name, ()) if job.running or job.completing]
        targets.append(
            _target(verb, row, jobs, slurm.nodes.get(name) if slurm else None, by, daemon)
        )
    status = str(description["ClusterStatus"])
    refusal = ""
    if status != "InService":
        refusal = f"the cluster is {status}: the service takes such orders only while InService"
    cluster, arn = str(description.get("ClusterName", "")), str(description.get("ClusterArn", ""))
    return Plan(verb, cluster, tuple(targets), refusal, arn)


def _target(
    verb: Verb,
    row: NodeRow,
    jobs: Sequence[SlurmJob],
    node: SlurmNode | None,
    by: str,
    daemon: bool,
) -> Target:
    slurmd = began(node) if node is not None and verb is not Verb.DELETE else ""
    reason = mark(verb, row, by, slurmd) if node is not None else ""
    marked = _MARK.match(node.reason) if node is not None and node.drained else None
    if node is not None and marked and marked[1] == verb:
        # An earlier command's drain: its Reason goes on, whoever picks the order up.
        reason = node.reason.split(" : ")[0]
        instance, _, slurmd = marked[2].partition("@")
        if _taken(verb, row, instance, jobs):
            return Target(row, instance, tuple(jobs), node, reason, under_way=True, slurmd=slurmd)
        refusal = _refusal(verb, row, node, daemon)
        other = f"it was drained for {instance}, which is gone: {key(row)} came in its place"
        warning = other if instance != key(row) else ""
        return Target(
            row, key(row), tuple(jobs), node, reason, refusal, warning, adopted=True, slurmd=slurmd
        )
    warning = ""
    if node is not None and node.drained:
        warning = f"it is drained already ({node.reason}) and stays so afterwards"
    elif row.role == "login":
        warning = "it is a login node: whoever works there is cut off"
    refusal = _refusal(verb, row, node, daemon)
    return Target(row, key(row), tuple(jobs), node, reason, refusal, warning, slurmd=slurmd)


def _taken(verb: Verb, row: NodeRow, instance: str, jobs: Sequence[SlurmJob]) -> bool:
    """Whether the order that a Reason speaks of was taken, and is still to be waited for.

    A replacement that failed is over: its instance is replaced in its turn.
    A reboot leaves no trace but its Reason, and is ordered only where no job is left: to give the
    node back and reboot it anew is safer than to reboot it twice.
    """
    if verb is Verb.REPLACE:
        if instance != key(row):
            return row.status not in FAILURE
        return row.status not in ALLOWED[verb]
    return not jobs if verb is Verb.REBOOT else row.status == "ShuttingDown"


def _refusal(verb: Verb, row: NodeRow, node: SlurmNode | None, daemon: bool) -> str:
    if row.role == "controller":
        return "it is the controller: the service neither replaces nor deletes it, and hpctl does"\
            " not reboot what Slurm runs on"  # fmt: skip
    if not row.role:
        where = "Slurm has it in no partition" if row.slurm_state != NOT_FOUND else "nor does Slurm"
        return f"the API does not say whether it is a controller, and {where}"
    if row.unread and row.slurm_state == NOT_FOUND:
        return f"jobs may run there, as nobody can tell which Slurm node it is: {row.unread}"
    owner = reason_owner(node.reason) if node is not None and node.drained else None
    if owner is not None and daemon:
        return f"hpctl's daemon treats it ({owner}): `hpctl cancel {owner}` first"
    if not row.instance_id and verb is not Verb.DELETE:
        return "it has no instance yet"
    if ALLOWED[verb] and row.status not in ALLOWED[verb]:
        wanted = " or ".join(ALLOWED[verb][:2])
        return f"it is {row.status}: the service wants {wanted} for this"
    return ""


GOING = ("ShuttingDown", "NotFound")


class Pick(Struct, frozen=True):
    """A node that is to go, and why it is this one. `rank` 0 goes first."""

    row: NodeRow
    rank: int
    why: str


def judged(row: NodeRow) -> Pick:
    """How readily a node is given up."""
    if not row.instance_id:
        return Pick(row, 0, "no instance yet")
    if row.status != "Running":
        return Pick(row, 0, f"{row.status} in HyperPod")
    if row.slurm_reason.startswith(f"{PREFIX}delete:"):
        return Pick(row, 1, "an earlier command has drained it for this")
    if row.health == "faulty":
        return Pick(row, 2, f"faulty: {row.health_why}")
    if row.jobs:
        return Pick(row, 6, f"{len(row.jobs)} job(s) run there")
    closed = {"DRAIN", "FAIL", "NOT_RESPONDING"} & set(row.slurm_flags)
    if row.slurm_state == "DOWN" or closed:
        return Pick(row, 3, f"{'+'.join([row.slurm_state, *sorted(closed)])} in Slurm, no job")
    if row.slurm_state == NOT_FOUND:
        return Pick(row, 3, "Slurm does not know it")
    if row.slurm_state == UNKNOWN:
        return Pick(row, 5, "nobody knows what runs there")
    return Pick(row, 4, "idle" if row.slurm_state == "IDLE" else f"{row.slurm_state}, no job")


def pick(rows: Sequence[NodeRow], group: str, target: int, count: int) -> tuple[Pick, ...]:
    """The nodes to give up so that a group of `target` has `count`: broken, then idle, the last
    name first; with jobs at last.

    Fewer, perhaps none, where some are going already: whether `target` tells of those, nobody can
    say, and no group may end with less than was asked for.
    """
    own = [judged(r) for r in rows if r.group == group and r.status not in GOING]
    own.sort(key=lambda p: natural(p.row.node or p.row.logical_id), reverse=True)
    own.sort(key=lambda p: (p.rank, len(p.row.jobs)))
    return tuple(own[: max(0, min(target, len(own)) - count)])


def named(rows: Sequence[NodeRow], group: str) -> tuple[Pick, ...]:
    """Nodes that somebody chose. Raises HpctlError where one is not of the group."""
    for row in rows:
        if row.group != group:
            raise HpctlError(
                f"{row.shown} is in group {row.group}, not {group}; nothing was done",
                "`hpctl cluster delete-nodes` removes nodes of any group",
            )
    return tuple(judged(row) for row in rows)
