"""Training plans: what is offered, what it costs, what is reserved, and how it is bought once.

Neither CreateTrainingPlan nor ExtendTrainingPlan has a client token, and nothing takes them back
(SageMaker guide, "Training plans extension"). So each is sent once, after a look that finds
nothing of it, and an order without an answer is looked for and not repeated (ADR 0041).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct

from hpctl.clusters.apply import Patience, seen
from hpctl.clusters.capacity import plan_name
from hpctl.errors import Absent, HpctlError, InDoubt, Refused
from hpctl.ports import Aws

TARGET: Final = "hyperpod-cluster"
"""A training plan serves what it was made for and nothing else."""

Plan = Mapping[str, Any]
"""DescribeTrainingPlan's answer. See `plan`."""

_MENDS = {
    "ResourceInUse": "a plan has this name: choose another one",
    "ResourceNotFound": "offerings come and go: `hpctl capacity offers` shows what there is now",
    "ResourceLimitExceeded": "ask Service Quotas for more reserved capacity of SageMaker",
}


class Offer(Struct, frozen=True):
    """What can be bought, until it is gone. `extends`: the plan that it is for, "" for a new one.

    `fee` is in `currency`, up front. `parts`: how many reserved capacities it has; between them
    there may be gaps.
    """

    id: str
    extends: str
    instance_type: str
    instances: int
    ultra_servers: int
    zones: tuple[str, ...]
    starts: datetime | None
    ends: datetime | None
    hours: int
    parts: int
    fee: str
    currency: str


def plans(aws: Aws) -> Iterator[Plan]:
    """Every plan of the account in the region, the latest first. Raises as `read` does."""
    return aws.service("sagemaker").pages(
        "list_training_plans", "TrainingPlanSummaries", SortBy="StartTime", SortOrder="Descending"
    )


def plan(aws: Aws, name: str) -> tuple[Plan, tuple[str, ...]]:
    """A plan by name or ARN, and what of it could not be read. Raises Absent with the nearest.

    Its reserved capacities are DescribeReservedCapacity's, with `UltraServers`; beside them stand
    the `TrainingPlanExtensions`.
    """
    sagemaker, unknown, parts = aws.service("sagemaker"), list[str](), []
    answer = described(aws, name)
    if answer is None:
        every = [str(one["TrainingPlanName"]) for one in plans(aws)]
        near = get_close_matches(plan_name(name), every, n=2) or every[:5]
        there = f"is it {' or '.join(near)}?" if near else "there is none at all"
        hint = f"{there} (region {aws.region}; another one: --region, --profile)"
        raise Absent(f"there is no training plan {name!r}", hint)
    for part in answer.get("ReservedCapacitySummaries", ()):
        arn = {"ReservedCapacityArn": part["ReservedCapacityArn"]}
        more: dict[str, Any] = {}
        try:
            more |= sagemaker.read("describe_reserved_capacity", **arn)
            if part.get("ReservedCapacityType") == "UltraServer":
                operation = "list_ultra_servers_by_reserved_capacity"
                more["UltraServers"] = list(sagemaker.pages(operation, "UltraServers", **arn))
        except HpctlError as error:
            unknown.append(f"{arn['ReservedCapacityArn']}: {error}")
        parts.append({**part, **_plain(more)})
    whole = {**_plain(answer), "ReservedCapacitySummaries": parts}
    try:
        whole["TrainingPlanExtensions"] = extensions(aws, answer)
    except HpctlError as error:
        unknown.append(f"its extensions: {error}")
    return whole, tuple(unknown)


def described(aws: Aws, name: str) -> Plan | None:
    """DescribeTrainingPlan's answer; None where there is no such plan."""
    try:
        return aws.service("sagemaker").read(
            "describe_training_plan", TrainingPlanName=plan_name(name)
        )
    except Absent:
        return None


def extensions(aws: Aws, of: Plan) -> list[Mapping[str, Any]]:
    """Every extension of a plan that was bought. Raises as `read` does."""
    operation, arn = "describe_training_plan_extension_history", of["TrainingPlanArn"]
    found = aws.service("sagemaker").pages(operation, "TrainingPlanExtensions", TrainingPlanArn=arn)
    return list(found)


def offers(aws: Aws, request: Mapping[str, Any], of: Plan | None = None) -> tuple[Offer, ...]:
    """What SearchTrainingPlanOfferings finds, of extensions of a plan where it is given.

    Raises Refused, Unavailable.
    """
    more = (
        {"TargetResources": [TARGET]} if of is None else {"TrainingPlanArn": of["TrainingPlanArn"]}
    )
    answer = aws.service("sagemaker").read("search_training_plan_offerings", **more, **request)
    if of is None:
        return tuple(
            _offer(one, one["TrainingPlanOfferingId"], one.get("ReservedCapacityOfferings", ()))
            for one in answer["TrainingPlanOfferings"]
        )
    part = dict((of.get("ReservedCapacitySummaries") or ({},))[0])
    part["InstanceCount"] = of.get("TotalInstanceCount", 0)
    found = []
    for one in answer.get("TrainingPlanExtensionOfferings", ()):
        part |= {"StartTime": one.get("StartDate"), "EndTime": one.get("EndDate")}
        part |= {"AvailabilityZone": one.get("AvailabilityZone", part.get("AvailabilityZone"))}
        name = one["TrainingPlanExtensionOfferingId"]
        found.append(_offer(one, name, [part], str(of["TrainingPlanName"])))
    return tuple(found)


def buy(aws: Aws, name: str, offer: Offer, patience: Patience) -> None:
    """CreateTrainingPlan, once. Who calls has seen that no plan has this name.

    Raises Refused; InDoubt where it has no answer and nothing of it is to be seen.
    """
    request = {"TrainingPlanName": name, "TrainingPlanOfferingId": offer.id}
    taken = lambda: described(aws, name) is not None  # noqa: E731
    _once(aws, "create_training_plan", request, taken, patience, name)


def extend(aws: Aws, of: Plan, offer: Offer, patience: Patience) -> None:
    """ExtendTrainingPlan, once. Who calls has asked `unfit` and `bought`. Raises as `buy` does."""
    request = {"TrainingPlanExtensionOfferingId": offer.id}
    taken = lambda: bought(extensions(aws, of), offer.id) is not None  # noqa: E731
    _once(aws, "extend_training_plan", request, taken, patience, str(of["TrainingPlanName"]))


def bought(done: Sequence[Mapping[str, Any]], offer: str) -> Mapping[str, Any] | None:
    """The extension that an offer has become; one whose payment failed can be bought again."""
    mine = [one for one in done if one["TrainingPlanExtensionOfferingId"] == offer]
    paid = [one for one in mine if "Failed" not in (one.get("Status"), one.get("PaymentStatus"))]
    return paid[-1] if paid else None


def unfit(of: Plan) -> str:
    """Why a plan cannot be extended now; "" where it can (guide, "Training plans extension")."""
    if of["Status"] not in ("Active", "Scheduled"):
        return f"it is {of['Status']}: only an Active or Scheduled plan is extended"
    done = of.get("TrainingPlanExtensions", ())
    pending = any("Pending" in one.get("PaymentStatus", "") for one in done)
    return "the payment of an extension is pending: wait for that" if pending else ""


def _once(
    aws: Aws,
    operation: str,
    request: Mapping[str, Any],
    taken: Callable[[], bool],
    patience: Patience,
    name: str,
) -> None:
    try:
        aws.service("sagemaker").order(operation, **request)
    except Refused as error:
        hint = error.hint or _MENDS.get(error.code, "")
        raise type(error)(str(error), hint, code=error.code) from error
    except InDoubt as error:
        if not seen(taken, patience):
            raise InDoubt(
                f"{error}; nothing of it is to be seen, and it is not sent again: it costs money",
                f"`hpctl capacity plans {name}` shows later whether it was bought; the same "
                "command looks there first",
            ) from error


def _offer(answer: Mapping[str, Any], name: str, parts: Any, extends: str = "") -> Offer:
    times = [[part[key] for part in parts if part.get(key)] for key in ("StartTime", "EndTime")]
    return Offer(
        id=name,
        extends=extends,
        instance_type=", ".join(dict.fromkeys(str(p.get("InstanceType", "")) for p in parts)),
        instances=max((int(part.get("InstanceCount", 0)) for part in parts), default=0),
        ultra_servers=max((int(part.get("UltraServerCount", 0)) for part in parts), default=0),
        zones=tuple(dict.fromkeys(str(part.get("AvailabilityZone") or "-") for part in parts)),
        starts=min(times[0], default=None),
        ends=max(times[1], default=None),
        hours=int(answer.get("DurationHours", 0)),
        parts=len(parts),
        fee=str(answer.get("UpfrontFee", "")),
        currency=str(answer.get("CurrencyCode", "")),
    )


def _plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without what boto3 adds."""
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
