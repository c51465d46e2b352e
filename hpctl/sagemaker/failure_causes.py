"""Why an instance failed to come up, as the service says it, and what to do."""

import re
from collections.abc import Mapping

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum


class NodeFailureKind(StrEnum):
    """Why an instance is not there."""

    LIFECYCLE = "lifecycle"
    CAPACITY = "capacity"
    QUOTA = "quota"
    NETWORK = "network"
    OTHER = "other"


class NodeFailureCause(Struct, frozen=True):
    """A failure, understood. `step` and `line` are of a lifecycle script's log.

    `unread` says why there is no line yet. `log` is where to read the rest: CloudWatch's log
    group and stream, divided by a blank.
    """

    cause: NodeFailureKind
    meaning: str
    fix: str
    step: str = ""
    line: str = ""
    unread: str = ""
    log: str = ""


_CAUSES = (
    # The service's texts (sources: its documentation's troubleshooting pages and users' issues).
    (
        NodeFailureKind.CAPACITY,
        r"insufficient\s*(instance)?\s*capacity|sufficient capacity|no capacity",
    ),
    (NodeFailureKind.LIFECYCLE, r"life\s*cycle|\bLCS\b"),
    (NodeFailureKind.QUOTA, r"limit\s*exceeded|quota|resourcelimit|vcpu limit"),
    (NodeFailureKind.NETWORK, r"\bEFA\b|security group|subnet|\bENI\b|free ip|ip address"),
)


_MEANING = {
    NodeFailureKind.LIFECYCLE: "a lifecycle script ended with an error on the node",
    NodeFailureKind.QUOTA: "the account's quota for these instances is used up",
    NodeFailureKind.NETWORK: "the node's network did not come up as it must",
    NodeFailureKind.OTHER: "the service gave no reason that is known",
}


_FIX = {
    NodeFailureKind.LIFECYCLE: (
        "fix the script, push it (`hpctl cluster lifecycle push`) and replace the node"
    ),
    NodeFailureKind.QUOTA: "ask for more in Service Quotas: `<type> for cluster usage` of "
    "SageMaker",
    NodeFailureKind.NETWORK: (
        "security groups must allow themselves both ways (`hpctl cluster validate` looks); where "
        "they do, the failure often passes: replace the node once"
    ),
    NodeFailureKind.OTHER: "read the message; `hpctl cluster events` may say more",
}


def classify_failure_message(message: str) -> NodeFailureKind:
    """Return which kind of failure a message of the service's speaks of."""
    for cause, pattern in _CAUSES:
        if re.search(pattern, message, re.IGNORECASE):
            return cause
    return NodeFailureKind.OTHER


class InstancePlacement(Struct, frozen=True):
    """Where a group's instances are to come from: `types` in order, the zone of each subnet ("" for
    unknown), and the training plan with its status and the zones of its capacity.
    """

    types: tuple[str, ...] = ()
    zones: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    plan_status: str = ""
    plan_zones: tuple[str, ...] = ()


def explain_node_failure(message: str, where: InstancePlacement | None = None) -> NodeFailureCause:
    """Return what a failure of a node means; `where` its group looks for instances."""
    cause = classify_failure_message(message)
    if cause is NodeFailureKind.CAPACITY:
        return _explain_capacity_shortage(where or InstancePlacement())
    return NodeFailureCause(cause, _MEANING[cause], _FIX[cause])


def _explain_capacity_shortage(where: InstancePlacement) -> NodeFailureCause:
    types = where.types or ("of this type",)
    wanted = f"none of {', '.join(types)}" if len(types) > 1 else f"no {types[0]}"
    places = ", ".join(f"{s} ({z})" if z else s for s, z in where.zones.items())
    meaning = f"AWS has {wanted} to give in {places or 'the subnets of the group'}"
    if where.plan:
        meaning += f", from training plan {where.plan}"
        return NodeFailureCause(
            NodeFailureKind.CAPACITY, meaning, _explain_training_plan_shortage(where)
        )
    if len(types) > 1:
        alternatives = f"the spec's order was tried to its end ({' then '.join(types)}): add a type"
    else:
        alternatives = "name alternatives in the spec's order (instance_types, in a new group)"
    fix = (
        f"{alternatives}, try a subnet in another Availability Zone, reserve capacity (a training "
        "plan), or wait: with Continuous provisioning the service keeps trying"
    )
    return NodeFailureCause(NodeFailureKind.CAPACITY, meaning, fix)


def _explain_training_plan_shortage(where: InstancePlacement) -> str:
    zones = {zone for zone in where.zones.values() if zone}
    held = ", ".join(where.plan_zones)
    if where.plan_status and where.plan_status != "Active":
        return f"the plan is {where.plan_status}: it gives instances only while it is Active"
    if zones and where.plan_zones and not zones & set(where.plan_zones):
        return (
            f"the plan's capacity is in {held}, the group's subnets are in "
            f"{', '.join(sorted(zones))}: give the group a subnet in {held}"
        )
    return (
        f"the plan's capacity{f' in {held}' if held else ''} is taken, or not in the zone of the "
        "group's subnets: `hpctl cluster capacity` shows who has it"
    )
