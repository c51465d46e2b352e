"""Asks for training plans, and for the zones that offer an instance type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hpctl.clusters.validate.ask import ask, rows
from hpctl.clusters.validate.network_facts import Listed, listed
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.core.compat import UTC
from hpctl.ports import Aws


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    """Training plans by ARN (None: there is none), and zone names by instance type."""

    plans: Mapping[str, Mapping[str, Any] | Unanswered | None] = field(default_factory=dict)
    zones: Mapping[str, frozenset[str]] | Unanswered = field(default_factory=dict)
    images: Listed = field(default_factory=dict)
    """EC2's own entries of the AMIs that groups name."""
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)


def gather(aws: Aws, wanted: Wanted) -> CapacityFacts:
    """A call for each plan and one for all types."""
    sagemaker = aws.service("sagemaker")
    arns = sorted({group.training_plan for group in wanted.groups if group.training_plan})
    plans = {
        arn: ask(sagemaker.read, "describe_training_plan", TrainingPlanName=arn.rpartition("/")[2])
        for arn in arns
    }
    return CapacityFacts(plans, _zones(aws, wanted), _images(aws, wanted), datetime.now(UTC))


def _images(aws: Aws, wanted: Wanted) -> Listed:
    named = {str(group.raw.get("ImageId") or "default") for group in wanted.groups} - {"default"}
    if not named:
        return {}
    ec2 = aws.service("ec2")
    return listed(ec2, "describe_images", "Images", "ImageId", "image-id", sorted(named))


def _zones(aws: Aws, wanted: Wanted) -> Mapping[str, frozenset[str]] | Unanswered:
    """EC2 offers `p5.48xlarge` where SageMaker says `ml.p5.48xlarge`."""
    types = sorted({kind.removeprefix("ml.") for group in wanted.groups for kind in group.types})
    if not types:
        return {}
    ec2 = aws.service("ec2")
    filters = [{"Name": "instance-type", "Values": types}]
    found = rows(
        ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    if isinstance(found, Unanswered):
        return found
    zones: dict[str, set[str]] = {f"ml.{kind}": set() for kind in types}
    for offering in found:
        zones[f"ml.{offering['InstanceType']}"].add(str(offering["Location"]))
    return {kind: frozenset(names) for kind, names in zones.items()}
