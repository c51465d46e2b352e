"""Where the instances come from: training plans, spot, and the zones that offer a type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.verdict import (
    Check,
    Family,
    Finding,
    Unanswered,
    fail,
    ok,
    settled,
    unknown,
    warn,
)
from hpctl.clusters.validate.wanted import Group, Wanted

TARGET = "hyperpod-cluster"
"""TargetResources' word for HyperPod."""

SOON = timedelta(days=1)

Plan = Mapping[str, Any]


def plan_usable(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Each training plan is there, is for HyperPod, and is not over."""
    for group in wanted.groups:
        if not group.training_plan:
            continue
        place = group.at("TrainingPlanArn")
        plan = facts.capacity.plans.get(group.training_plan)
        if isinstance(plan, Unanswered):
            yield unknown(place, plan)
        elif plan is None:
            yield fail(
                place,
                f"there is no training plan {group.training_plan}",
                "`aws sagemaker list-training-plans` lists yours",
            )
        else:
            found = _usable(group, plan, facts)
            yield from settled(found, f"{group.name}: plan {_name(plan)} is Active", place)


def plan_fits(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The plan has the group's type, and instances for it."""
    needed: Counter[str] = Counter()
    for group in wanted.groups:
        needed[group.training_plan] += facts.new_nodes(group)
    for group, plan in _plans(wanted, facts):
        place = group.at("TrainingPlanArn")
        types = {str(r.get("InstanceType")) for r in plan.get("ReservedCapacitySummaries") or ()}
        if types and not types & set(group.types):
            yield fail(
                group.at_types,
                f"{group.name} is of {', '.join(group.types)}; plan {_name(plan)} has "
                f"{', '.join(sorted(types))}",
                "use the plan's type, or another plan",
            )
            continue
        free = plan.get("AvailableInstanceCount")
        new = needed[group.training_plan]
        if free is not None and new > free:
            yield fail(
                place,
                f"plan {_name(plan)} has {free} instances left, and the file wants {new} new ones",
                "lower the count, or extend the plan",
            )
        else:
            yield ok(f"{group.name}: plan {_name(plan)} has room", place)


def plan_zone(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The group's subnet is in the plan's zone: else the service says `insufficient capacity`."""
    for group, plan in _plans(wanted, facts):
        place = (*group.network.place, "Subnets")
        zones = facts.network.zones(group.network.subnets)
        reserved = plan.get("ReservedCapacitySummaries") or ()
        names = {str(r["AvailabilityZone"]) for r in reserved if r.get("AvailabilityZone")}
        ids = {str(r["AvailabilityZoneId"]) for r in reserved if r.get("AvailabilityZoneId")}
        if not zones or not (names or ids):
            continue
        agreeing = {name for name, id_ in zones if name in names or id_ in ids}
        shown = ", ".join(sorted(names or ids))
        have = ", ".join(sorted(name for name, _ in zones))
        if not agreeing:
            yield fail(
                place,
                f"{group.name} has subnets in {have}, and plan {_name(plan)} is in {shown}: the "
                "service would call it insufficient capacity",
                f"name a subnet in {shown}",
            )
        elif len(agreeing) < len(zones):
            yield warn(
                place,
                f"{group.name} has subnets in {have}, and plan {_name(plan)} only in {shown}",
                f"name only subnets in {shown} for {group.name}",
            )
        else:
            yield ok(f"{group.name} is in the plan's zone, {shown}", place)


def offered(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The zone of a group's subnets offers its type, as far as EC2 says."""
    zones = facts.capacity.zones
    if isinstance(zones, Unanswered):
        yield unknown(("InstanceGroups",), zones)
        return
    for group in wanted.groups:
        here = {name for name, _ in facts.network.zones(group.network.subnets)}
        if group.training_plan or not here:
            continue
        for kind in group.types:
            there = zones.get(kind, frozenset())
            if here & there:
                yield ok(f"{kind} is offered in {', '.join(sorted(here & there))}", group.place)
                continue
            offer = ", ".join(sorted(there))
            yield warn(
                group.at_types,
                f"{group.name} has subnets in {', '.join(sorted(here))}, and EC2 offers {kind} in "
                f"{offer or f'no zone of {facts.region}'}",
                "name subnets in one of them; capacity that AWS reserved for you may be elsewhere"
                if offer
                else "check the type and --region",
            )


def images(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """An AMI of your own is there."""
    found = facts.capacity.images
    for group in wanted.groups:
        image = str(group.raw.get("ImageId") or "default")
        place = group.at("ImageId")
        if image == "default":
            continue
        if isinstance(found, Unanswered):
            yield unknown(place, found)
        elif image not in found:
            yield fail(
                place,
                f"there is no AMI {image} in {facts.region} that you may use",
                "check the id and --region; an AMI is of one region",
            )
        elif found[image].get("State") != "available":
            yield fail(place, f"{image} is {found[image].get('State')}", "wait for it")
        else:
            yield ok(f"{group.name}: {image} is there", place)


def _usable(group: Group, plan: Plan, facts: Facts) -> Iterator[Finding]:
    place = group.at("TrainingPlanArn")
    status, name = str(plan.get("Status", "")), _name(plan)
    if TARGET not in (plan.get("TargetResources") or (TARGET,)):
        targets = ", ".join(plan["TargetResources"])
        yield fail(place, f"plan {name} is for {targets}", "buy one for HyperPod clusters")
    if status in ("Expired", "Failed"):
        why = plan.get("StatusMessage")
        yield fail(place, f"plan {name} is {status}{f': {why}' if why else ''}", "name another")
    elif status in ("Pending", "Scheduled"):
        start = plan.get("StartTime")
        begins = f" and begins {start:%Y-%m-%d %H:%M} UTC" if start else ""
        yield warn(
            place,
            f"plan {name} is {status}{begins}: until then {group.name} gets no instances",
            "wait for it, or begin with count 0",
        )
    end = plan.get("EndTime")
    if status == "Active" and end is not None and end - facts.capacity.now < SOON:
        yield warn(
            place,
            f"plan {name} ends {end:%Y-%m-%d %H:%M} UTC, and takes {group.name}'s instances along",
            "extend it, or use another plan",
        )


def _plans(wanted: Wanted, facts: Facts) -> Iterator[tuple[Group, Plan]]:
    for group in wanted.groups:
        plan = facts.capacity.plans.get(group.training_plan)
        if plan is not None and not isinstance(plan, Unanswered):
            yield group, plan


def _name(plan: Plan) -> str:
    return str(plan.get("TrainingPlanName", ""))


FAMILY = Family(
    "capacity",
    "Training plans and zones.",
    ("capacity", "network", "living"),
    (
        Check("plan", "The training plan is there, for HyperPod, and not over.", plan_usable),
        Check("plan-fits", "The plan has the group's type, and instances left for it.", plan_fits),
        Check(
            "plan-zone", "The group's subnets are in the zone of the plan's capacity.", plan_zone
        ),
        Check("image", "An AMI of your own is there.", images),
        Check("offered", "EC2 offers the type in the zone of the group's subnets.", offered),
    ),
)
