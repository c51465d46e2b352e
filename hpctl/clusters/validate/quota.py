"""Service quotas: what the account may have of each type, in one cluster and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.quota_facts import EBS_SIZE, IN_ALL, PER_CLUSTER, usage
from hpctl.clusters.validate.verdict import (
    Check,
    Family,
    Finding,
    Place,
    Unanswered,
    fail,
    ok,
    unknown,
    warn,
)
from hpctl.clusters.validate.wanted import Wanted

GROUPS: Place = ("InstanceGroups",)


def of_types(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """`<type> for cluster usage` covers the groups, and what other clusters have."""
    limits, elsewhere = facts.quota.limits, facts.quota.elsewhere
    if isinstance(limits, Unanswered):
        yield unknown(GROUPS, limits)
        return
    counts: Counter[tuple[str, bool]] = Counter()
    places: dict[tuple[str, bool], Place] = {}
    for group in wanted.groups:
        # Capacity of a training plan is paid for and has its own limit.
        if group.training_plan or len(group.types) != 1:
            continue
        key = group.types[0], group.spot
        counts[key] += group.count
        places.setdefault(key, group.at_types)
    if isinstance(elsewhere, Unanswered):
        yield unknown(GROUPS, elsewhere)
    for (kind, spot), count in counts.items():
        name = usage(kind, spot=spot)
        others = 0 if isinstance(elsewhere, Unanswered) or spot else elsewhere.get(kind, 0)
        yield _held(name, limits.get(name), count, others, places[kind, spot])


def in_all(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The cluster's instances, and those of all clusters together, are within their quotas."""
    limits, elsewhere = facts.quota.limits, facts.quota.elsewhere
    if isinstance(limits, Unanswered):
        return
    count = sum(group.count for group in wanted.groups)
    others = 0 if isinstance(elsewhere, Unanswered) else sum(elsewhere.values())
    yield _held(PER_CLUSTER, limits.get(PER_CLUSTER), count, 0, GROUPS)
    yield _held(IN_ALL, limits.get(IN_ALL), count, others, GROUPS)


def volumes(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """No EBS volume is larger than the account's quota."""
    limits = facts.quota.limits
    if isinstance(limits, Unanswered) or EBS_SIZE not in limits:
        return
    for group in wanted.groups:
        for at, config in enumerate(group.raw.get("InstanceStorageConfigs") or ()):
            size = config.get("EbsVolumeConfig", {}).get("VolumeSizeInGB")
            if size is not None:
                place = group.at("InstanceStorageConfigs", at, "EbsVolumeConfig", "VolumeSizeInGB")
                yield _held(EBS_SIZE, limits[EBS_SIZE], int(size), 0, place)


def _held(name: str, limit: float | None, count: int, others: int, place: Place) -> Finding:
    beside = f" beside {others} in other clusters" if others else ""
    if limit is None:
        return warn(
            place,
            f"there is no quota {name!r}: the type may not be offered in this region",
            "check the type and the region",
        )
    if count + others > limit:
        return fail(
            place,
            f"the quota {name!r} is {limit:g}, and the file wants {count}{beside}",
            "ask for more in the Service Quotas console (it takes days), or want less",
        )
    return ok(f"{name}: {count}{beside} of {limit:g}", place)


FAMILY = Family(
    "quotas",
    "Service quotas of the account.",
    ("quota",),
    (
        Check("types", "`<type> for cluster usage` covers what is wanted of each type.", of_types),
        Check("instances", "The quotas of instances in a cluster, and in all, cover it.", in_all),
        Check("volumes", "No EBS volume is larger than the quota.", volumes),
    ),
)
