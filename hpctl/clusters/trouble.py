"""What the service's words about a failure mean, and what to do about it.

A shortage is explained by where the instances were to come from: the zones of the subnets, and
those of a training plan. Nothing here raises: what cannot be found out is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpctl.core.compat import StrEnum
from hpctl.errors import HpctlError
from hpctl.ports import Aws


class Cause(StrEnum):
    """Why an instance is not there."""

    LIFECYCLE = "lifecycle"
    CAPACITY = "capacity"
    QUOTA = "quota"
    NETWORK = "network"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure, understood. `step` and `line` are of a lifecycle script's log.

    `unread` says why there is no line yet. `log` is where to read the rest: CloudWatch's log
    group and stream, divided by a blank.
    """

    cause: Cause
    meaning: str
    mend: str
    step: str = ""
    line: str = ""
    unread: str = ""
    log: str = ""


_CAUSES = (
    # The service's texts (sources: its documentation's troubleshooting pages and users' issues).
    (Cause.CAPACITY, r"insufficient\s*(instance)?\s*capacity|sufficient capacity|no capacity"),
    (Cause.LIFECYCLE, r"life\s*cycle|\bLCS\b"),
    (Cause.QUOTA, r"limit\s*exceeded|quota|resourcelimit|vcpu limit"),
    (Cause.NETWORK, r"\bEFA\b|security group|subnet|\bENI\b|free ip|ip address"),
)

_MEANING = {
    Cause.LIFECYCLE: "a lifecycle script ended with an error on the node",
    Cause.QUOTA: "the account's quota for these instances is used up",
    Cause.NETWORK: "the node's network did not come up as it must",
    Cause.OTHER: "the service gave no reason that is known",
}

_MEND = {
    Cause.LIFECYCLE: "mend the script, push it (`hpctl lifecycle push`) and replace the node",
    Cause.QUOTA: "ask for more in Service Quotas: `<type> for cluster usage` of SageMaker",
    Cause.NETWORK: (
        "security groups must allow themselves both ways (`hpctl cluster validate` looks); where "
        "they do, the failure often passes: replace the node once"
    ),
    Cause.OTHER: "read the message; `hpctl cluster events` may say more",
}


def cause_of(message: str) -> Cause:
    """Which kind of failure a message of the service's speaks of."""
    for cause, pattern in _CAUSES:
        if re.search(pattern, message, re.IGNORECASE):
            return cause
    return Cause.OTHER


@dataclass(frozen=True, slots=True)
class Where:
    """Where a group's instances are to come from: `types` in order, the zone of each subnet ("" for
    unknown), and the training plan with its status and the zones of its capacity.
    """

    types: tuple[str, ...] = ()
    zones: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    plan_status: str = ""
    plan_zones: tuple[str, ...] = ()


def understand(message: str, where: Where | None = None) -> Trouble:
    """What a failure of a node means; `where` its group looks for instances."""
    cause = cause_of(message)
    if cause is Cause.CAPACITY:
        return _capacity(where or Where())
    return Trouble(cause, _MEANING[cause], _MEND[cause])


def _capacity(where: Where) -> Trouble:
    types = where.types or ("of this type",)
    wanted = f"none of {', '.join(types)}" if len(types) > 1 else f"no {types[0]}"
    places = ", ".join(f"{s} ({z})" if z else s for s, z in where.zones.items())
    meaning = f"AWS has {wanted} to give in {places or 'the subnets of the group'}"
    if where.plan:
        meaning += f", from training plan {where.plan}"
        return Trouble(Cause.CAPACITY, meaning, _of_plan(where))
    if len(types) > 1:
        alternatives = f"the spec's order was tried to its end ({' then '.join(types)}): add a type"
    else:
        alternatives = "name alternatives in the spec's order (instance_types, in a new group)"
    mend = (
        f"{alternatives}, try a subnet in another Availability Zone, reserve capacity (a training "
        "plan), or wait: with Continuous provisioning the service goes on trying"
    )
    return Trouble(Cause.CAPACITY, meaning, mend)


def _of_plan(where: Where) -> str:
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
        "group's subnets: `hpctl capacity` shows who has it"
    )


def where_of_group(aws: Aws, group: Mapping[str, Any], described: Mapping[str, Any]) -> Where:
    """Where a described group of a described cluster looks for its instances."""
    vpc = group.get("OverrideVpcConfig") or described.get("VpcConfig") or {}
    zones = zones_of_subnets(aws, tuple(vpc.get("Subnets", ())))
    plan = str(group.get("TrainingPlanArn", "")).rpartition("/")[2]
    if not plan:
        return Where(types_of(group), zones)
    try:
        said = aws.service("sagemaker").read("describe_training_plan", TrainingPlanName=plan)
    except HpctlError:
        return Where(types_of(group), zones, plan)
    held = [str(r.get("AvailabilityZone", "")) for r in said.get("ReservedCapacitySummaries", ())]
    return Where(
        types_of(group),
        zones,
        plan,
        str(said.get("Status", "")),
        tuple(dict.fromkeys(zone for zone in held if zone)),
    )


def zones_of_subnets(aws: Aws, subnets: Sequence[str]) -> dict[str, str]:
    """The zone of each subnet, "" where nobody told."""
    zones = dict.fromkeys(subnets, "")
    if not subnets:
        return zones
    try:
        told = aws.service("ec2").read("describe_subnets", SubnetIds=list(subnets))
    except HpctlError:
        return zones
    return zones | {str(s["SubnetId"]): str(s["AvailabilityZone"]) for s in told["Subnets"]}


def types_of(group: Mapping[str, Any]) -> tuple[str, ...]:
    """The instance types that a described group may have, in the order of preference."""
    flexible = group.get("InstanceRequirements") or {}
    listed = flexible.get("DesiredInstanceTypes") or flexible.get("CurrentInstanceTypes") or ()
    plain = group.get("InstanceType")
    return tuple(str(t) for t in (listed or ((plain,) if plain else ())))
