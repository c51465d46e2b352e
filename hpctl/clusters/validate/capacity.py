"""Where the instances come from: training plans, spot, and the zones that offer a type."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from hpctl.clusters.validate.facts import (
    CapacityFacts,
    Ec2ListOperation,
    Listed,
    ServiceQuotaFacts,
    SpecCheckFamily,
    SpecValidationFacts,
    call_aws_or_return_none_if_missing,
    list_ec2_resources_by_id,
    read_aws_list_entries,
)
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    Place,
    RequestedCluster,
    RequestedInstanceGroup,
    SpecFinding,
    list_findings_or_ok,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
    make_warning_finding,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

CAPACITY = SpecCheckFamily(
    "capacity", "Training plans and zones.", ("capacity", "network", "living")
)
QUOTAS = SpecCheckFamily("quotas", "Service quotas of the account.", ("quota",))


def gather_capacity_facts(aws: AwsClientFactory, wanted: RequestedCluster) -> CapacityFacts:
    """A call for each plan and one for all types."""
    sagemaker = aws.service("sagemaker")
    arns = sorted({group.training_plan for group in wanted.groups if group.training_plan})
    plans = {
        arn: call_aws_or_return_none_if_missing(
            sagemaker.read, "describe_training_plan", TrainingPlanName=arn.rpartition("/")[2]
        )
        for arn in arns
    }
    return CapacityFacts(
        plans,
        _read_zones_offering_instance_types(aws, wanted),
        _read_custom_images(aws, wanted),
        datetime.now(UTC),
    )


def _read_custom_images(aws: AwsClientFactory, wanted: RequestedCluster) -> Listed:
    named = {str(group.raw.get("ImageId") or "default") for group in wanted.groups} - {"default"}
    if not named:
        return {}
    ec2 = aws.service("ec2")
    return list_ec2_resources_by_id(
        ec2, Ec2ListOperation("describe_images", "Images", "ImageId", "image-id"), sorted(named)
    )


def _read_zones_offering_instance_types(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> Mapping[str, frozenset[str]] | FailedAwsCall:
    """EC2 offers `p5.48xlarge` where SageMaker says `ml.p5.48xlarge`."""
    kinds = chain.from_iterable(group.types for group in wanted.groups)
    types = sorted({kind.removeprefix("ml.") for kind in kinds})
    if not types:
        return {}
    ec2 = aws.service("ec2")
    filters = [{"Name": "instance-type", "Values": types}]
    found = read_aws_list_entries(
        ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    if isinstance(found, FailedAwsCall):
        return found
    zones: dict[str, set[str]] = {f"ml.{kind}": set() for kind in types}
    for offering in found:
        zones[f"ml.{offering['InstanceType']}"].add(str(offering["Location"]))
    return {kind: frozenset(names) for kind, names in zones.items()}


TARGET = "hyperpod-cluster"
"""TargetResources' word for HyperPod."""

SOON = timedelta(days=1)

Plan = Mapping[str, Any]


@CAPACITY.check("plan")
def check_training_plan_usable(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The training plan is there, for HyperPod, and not over."""
    for group in wanted.groups:
        if not group.training_plan:
            continue
        place = group.at("TrainingPlanArn")
        plan = facts.capacity.plans.get(group.training_plan)
        if isinstance(plan, FailedAwsCall):
            yield make_unknown_finding(place, plan)
        elif plan is None:
            yield make_failure_finding(
                place,
                f"there is no training plan {group.training_plan}",
                "`aws sagemaker list-training-plans` lists yours",
            )
        else:
            found = _check_training_plan(group, plan, facts)
            yield from list_findings_or_ok(
                found, f"{group.name}: plan {_format_training_plan(plan)} is Active", place
            )


@CAPACITY.check("plan-fits")
def check_training_plan_capacity(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The plan has the group's type, and instances left for it."""
    needed: Counter[str] = Counter()
    for group in wanted.groups:
        needed[group.training_plan] += facts.new_nodes(group)
    for group, plan in _find_group_training_plans(wanted, facts):
        place = group.at("TrainingPlanArn")
        types = {str(r.get("InstanceType")) for r in plan.get("ReservedCapacitySummaries") or ()}
        if types and not types & set(group.types):
            yield make_failure_finding(
                group.instance_type_request_path,
                f"{group.name} is of {', '.join(group.types)}; plan"
                f" {_format_training_plan(plan)} has "
                f"{', '.join(sorted(types))}",
                "use the plan's type, or another plan",
            )
            continue
        free = plan.get("AvailableInstanceCount")
        new = needed[group.training_plan]
        if free is not None and new > free:
            yield make_failure_finding(
                place,
                f"plan {_format_training_plan(plan)} has {free} instances left, and the file wants"
                f" {new} new ones",
                "lower the count, or extend the plan",
            )
        else:
            yield make_ok_finding(
                f"{group.name}: plan {_format_training_plan(plan)} has room", place
            )


@CAPACITY.check("plan-zone")
def check_training_plan_zone(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The group's subnets are in the zone of the plan's capacity.

    Else the service says `insufficient capacity`.
    """
    for group, plan in _find_group_training_plans(wanted, facts):
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
            yield make_failure_finding(
                place,
                f"{group.name} has subnets in {have}, and plan {_format_training_plan(plan)} is"
                f" in {shown}: "
                "the service would call it insufficient capacity",
                f"name a subnet in {shown}",
            )
        elif len(agreeing) < len(zones):
            yield make_warning_finding(
                place,
                f"{group.name} has subnets in {have}, and plan {_format_training_plan(plan)}"
                " only in"
                f" {shown}",
                f"name only subnets in {shown} for {group.name}",
            )
        else:
            yield make_ok_finding(f"{group.name} is in the plan's zone, {shown}", place)


@CAPACITY.check("image")
def check_custom_images(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """An AMI of your own is there."""
    found = facts.capacity.images
    for group in wanted.groups:
        image = str(group.raw.get("ImageId") or "default")
        place = group.at("ImageId")
        if image == "default":
            continue
        if isinstance(found, FailedAwsCall):
            yield make_unknown_finding(place, found)
        elif image not in found:
            yield make_failure_finding(
                place,
                f"there is no AMI {image} in {facts.region} that you may use",
                "check the id and --region; an AMI is of one region",
            )
        elif found[image].get("State") != "available":
            yield make_failure_finding(
                place, f"{image} is {found[image].get('State')}", "wait for it"
            )
        else:
            yield make_ok_finding(f"{group.name}: {image} is there", place)


@CAPACITY.check("offered")
def check_instance_type_zone_offerings(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """EC2 offers the type in the zone of the group's subnets."""
    zones = facts.capacity.zones
    if isinstance(zones, FailedAwsCall):
        yield make_unknown_finding(("InstanceGroups",), zones)
        return
    for group in wanted.groups:
        here = {name for name, _ in facts.network.zones(group.network.subnets)}
        if group.training_plan or not here:
            continue
        for kind in group.types:
            there = zones.get(kind, frozenset())
            if here & there:
                yield make_ok_finding(
                    f"{kind} is offered in {', '.join(sorted(here & there))}", group.place
                )
                continue
            offer = ", ".join(sorted(there))
            yield make_warning_finding(
                group.instance_type_request_path,
                f"{group.name} has subnets in {', '.join(sorted(here))}, and EC2 offers {kind} in "
                f"{offer or f'no zone of {facts.region}'}",
                "name subnets in one of them; capacity that AWS reserved for you may be elsewhere"
                if offer
                else "check the type and --region",
            )


def _check_training_plan(
    group: RequestedInstanceGroup, plan: Plan, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    place = group.at("TrainingPlanArn")
    status, name = str(plan.get("Status", "")), _format_training_plan(plan)
    if TARGET not in (plan.get("TargetResources") or (TARGET,)):
        targets = ", ".join(plan["TargetResources"])
        yield make_failure_finding(
            place, f"plan {name} is for {targets}", "buy one for HyperPod clusters"
        )
    if status in ("Expired", "Failed"):
        why = plan.get("StatusMessage")
        yield make_failure_finding(
            place, f"plan {name} is {status}{f': {why}' if why else ''}", "name another"
        )
    elif status in ("Pending", "Scheduled"):
        start = plan.get("StartTime")
        begins = f" and begins {start:%Y-%m-%d %H:%M} UTC" if start else ""
        yield make_warning_finding(
            place,
            f"plan {name} is {status}{begins}: until then {group.name} gets no instances",
            "wait for it, or begin with count 0",
        )
    end = plan.get("EndTime")
    if status == "Active" and end is not None and end - facts.capacity.now < SOON:
        yield make_warning_finding(
            place,
            f"plan {name} ends {end:%Y-%m-%d %H:%M} UTC, and takes {group.name}'s instances along",
            "extend it, or use another plan",
        )


def _find_group_training_plans(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[tuple[RequestedInstanceGroup, Plan]]:
    for group in wanted.groups:
        plan = facts.capacity.plans.get(group.training_plan)
        if plan is not None and not isinstance(plan, FailedAwsCall):
            yield group, plan


def _format_training_plan(plan: Plan) -> str:
    return str(plan.get("TrainingPlanName", ""))


CLUSTERS = 100
"""Clusters whose instances are counted; an account has fewer."""


PER_CLUSTER = "Maximum number instances allowed per SageMaker HyperPod cluster"
IN_ALL = "Total number of instances allowed across SageMaker HyperPod clusters"
EBS_SIZE = "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance"


def format_cluster_usage_quota_name(kind: str, *, spot: bool) -> str:
    """The name of the quota for an instance type, as Service Quotas has it."""
    return f"{kind} for cluster {'spot instance ' if spot else ''}usage"


def gather_service_quota_facts(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> ServiceQuotaFacts:
    """The quotas that matter (some pages out of many), and a call for each other cluster."""
    names = {PER_CLUSTER, IN_ALL, EBS_SIZE}
    for group in wanted.groups:
        names.update(format_cluster_usage_quota_name(kind, spot=group.spot) for kind in group.types)
    return ServiceQuotaFacts(
        _read_quota_limits(aws.service("service-quotas"), names),
        _count_instances_of_other_clusters(aws, wanted.name),
    )


def _read_quota_limits(
    quotas: AwsServiceClient, names: Set[str]
) -> Mapping[str, float] | FailedAwsCall:
    """SageMaker has thousands of quotas: what is not asked for is passed over.

    What the account was given comes first; the defaults fill in what that does not list.
    """
    limits: dict[str, float] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        if names <= limits.keys():
            break
        found = call_aws_or_return_none_if_missing(
            _read_named_quotas, quotas, operation, names - limits.keys()
        )
        if isinstance(found, FailedAwsCall):
            return found
        limits |= found or {}
    return limits


def _read_named_quotas(
    quotas: AwsServiceClient, operation: str, names: Set[str]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for quota in quotas.pages(operation, "Quotas", ServiceCode="sagemaker"):
        if quota["QuotaName"] in names:
            found[str(quota["QuotaName"])] = float(quota["Value"])
            if len(found) == len(names):
                break
    return found


def _count_instances_of_other_clusters(
    aws: AwsClientFactory, name: str
) -> Mapping[str, int] | FailedAwsCall:
    sagemaker = aws.service("sagemaker")

    def count_instances_by_type() -> Mapping[str, int]:
        total: Counter[str] = Counter()
        listed = sagemaker.pages("list_clusters", "ClusterSummaries")
        others = [str(c["ClusterName"]) for c in listed if c["ClusterName"] != name]
        for other in others[:CLUSTERS]:
            for group in _read_cluster_instance_groups(sagemaker, other):
                total[str(group.get("InstanceType", ""))] += int(group.get("CurrentCount") or 0)
        return total

    answer = call_aws_or_return_none_if_missing(count_instances_by_type)
    return {} if answer is None else answer


def _read_cluster_instance_groups(sagemaker: AwsServiceClient, cluster: str) -> tuple[Any, ...]:
    """A cluster's groups; none where it went away meanwhile."""
    found = call_aws_or_return_none_if_missing(
        sagemaker.read, "describe_cluster", ClusterName=cluster
    )
    if found is None or isinstance(found, FailedAwsCall):
        return ()
    return tuple(found.get("InstanceGroups") or ())


GROUPS: Place = ("InstanceGroups",)


@QUOTAS.check("types")
def check_instance_type_quotas(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """`<type> for cluster usage` covers what is wanted of each type."""
    limits, elsewhere = facts.quota.limits, facts.quota.elsewhere
    if isinstance(limits, FailedAwsCall):
        yield make_unknown_finding(GROUPS, limits)
        return
    counts: Counter[tuple[str, bool]] = Counter()
    places: dict[tuple[str, bool], Place] = {}
    for group in wanted.groups:
        # Capacity of a training plan is paid for and has its own limit.
        if group.training_plan or len(group.types) != 1:
            continue
        key = group.types[0], group.spot
        counts[key] += group.count
        places.setdefault(key, group.instance_type_request_path)
    if isinstance(elsewhere, FailedAwsCall):
        yield make_unknown_finding(GROUPS, elsewhere)
    for (kind, spot), count in counts.items():
        name = format_cluster_usage_quota_name(kind, spot=spot)
        others = 0 if isinstance(elsewhere, FailedAwsCall) or spot else elsewhere.get(kind, 0)
        yield _check_quota_limit(name, limits.get(name), count, others, places[kind, spot])


@QUOTAS.check("instances")
def check_total_instance_quotas(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The quotas of instances in a cluster, and in all, cover it."""
    limits, elsewhere = facts.quota.limits, facts.quota.elsewhere
    if isinstance(limits, FailedAwsCall):
        return
    count = sum(group.count for group in wanted.groups)
    others = 0 if isinstance(elsewhere, FailedAwsCall) else sum(elsewhere.values())
    yield _check_quota_limit(PER_CLUSTER, limits.get(PER_CLUSTER), count, 0, GROUPS)
    yield _check_quota_limit(IN_ALL, limits.get(IN_ALL), count, others, GROUPS)


@QUOTAS.check("volumes")
def check_ebs_volume_size_quota(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """No EBS volume is larger than the quota."""
    limits = facts.quota.limits
    if isinstance(limits, FailedAwsCall) or EBS_SIZE not in limits:
        return
    for group in wanted.groups:
        for at, config in enumerate(group.raw.get("InstanceStorageConfigs") or ()):
            size = config.get("EbsVolumeConfig", {}).get("VolumeSizeInGB")
            if size is not None:
                place = group.at("InstanceStorageConfigs", at, "EbsVolumeConfig", "VolumeSizeInGB")
                yield _check_quota_limit(EBS_SIZE, limits[EBS_SIZE], int(size), 0, place)


def _check_quota_limit(
    name: str, limit: float | None, count: int, others: int, place: Place
) -> SpecFinding:
    beside = f" beside {others} in other clusters" if others else ""
    if limit is None:
        return make_warning_finding(
            place,
            f"there is no quota {name!r}: the type may not be offered in this region",
            "check the type and the region",
        )
    if count + others > limit:
        return make_failure_finding(
            place,
            f"the quota {name!r} is {limit:g}, and the file wants {count}{beside}",
            "ask for more in the Service Quotas console (it takes days), or want less",
        )
    return make_ok_finding(f"{name}: {count}{beside} of {limit:g}", place)
