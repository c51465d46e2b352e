"""Where instances are to come from: the zones of subnets, and those of a training plan.

For telling what a shortage means. Nothing here raises: what cannot be found out stays unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctl.clusters.trouble import Where
from hpctl.errors import HpctlError
from hpctl.ports import Aws


def of_group(aws: Aws, group: Mapping[str, Any], described: Mapping[str, Any]) -> Where:
    """Where a described group of a described cluster looks for its instances."""
    vpc = group.get("OverrideVpcConfig") or described.get("VpcConfig") or {}
    zones = of_subnets(aws, tuple(vpc.get("Subnets", ())))
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


def of_subnets(aws: Aws, subnets: Sequence[str]) -> dict[str, str]:
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
