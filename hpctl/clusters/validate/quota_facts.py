"""Asks Service Quotas what the account may have, and SageMaker what it has already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from hpctl.clusters.validate.ask import ask
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws, Service

CLUSTERS = 100
"""Clusters whose instances are counted; an account has fewer."""


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """`limits` by the quota's name. `elsewhere`: what other clusters have, by instance type."""

    limits: Mapping[str, float] | Unanswered = field(default_factory=dict)
    elsewhere: Mapping[str, int] | Unanswered = field(default_factory=dict)


PER_CLUSTER = "Maximum number instances allowed per SageMaker HyperPod cluster"
IN_ALL = "Total number of instances allowed across SageMaker HyperPod clusters"
EBS_SIZE = "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance"


def usage(kind: str, *, spot: bool) -> str:
    """The name of the quota for an instance type, as Service Quotas has it."""
    return f"{kind} for cluster {'spot instance ' if spot else ''}usage"


def gather(aws: Aws, wanted: Wanted) -> QuotaFacts:
    """The quotas that matter (some pages out of many), and a call for each other cluster."""
    names = {usage(kind, spot=group.spot) for group in wanted.groups for kind in group.types}
    names |= {PER_CLUSTER, IN_ALL, EBS_SIZE}
    return QuotaFacts(_limits(aws.service("service-quotas"), names), _elsewhere(aws, wanted.name))


def _limits(quotas: Service, names: Set[str]) -> Mapping[str, float] | Unanswered:
    """SageMaker has thousands of quotas: what is not asked for is passed over.

    What the account was given comes first; the defaults fill in what that does not list.
    """
    limits: dict[str, float] = {}
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        if names <= limits.keys():
            break
        found = ask(_named, quotas, operation, names - limits.keys())
        if isinstance(found, Unanswered):
            return found
        limits |= found or {}
    return limits


def _named(quotas: Service, operation: str, names: Set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for quota in quotas.pages(operation, "Quotas", ServiceCode="sagemaker"):
        if quota["QuotaName"] in names:
            found[str(quota["QuotaName"])] = float(quota["Value"])
            if len(found) == len(names):
                break
    return found


def _elsewhere(aws: Aws, name: str) -> Mapping[str, int] | Unanswered:
    sagemaker = aws.service("sagemaker")

    def counted() -> Mapping[str, int]:
        total: Counter[str] = Counter()
        listed = sagemaker.pages("list_clusters", "ClusterSummaries")
        others = [str(c["ClusterName"]) for c in listed if c["ClusterName"] != name]
        for other in others[:CLUSTERS]:
            for group in _groups(sagemaker, other):
                total[str(group.get("InstanceType", ""))] += int(group.get("CurrentCount") or 0)
        return total

    answer = ask(counted)
    return {} if answer is None else answer


def _groups(sagemaker: Service, cluster: str) -> tuple[Any, ...]:
    """A cluster's groups; none where it went away meanwhile."""
    found = ask(sagemaker.read, "describe_cluster", ClusterName=cluster)
    if found is None or isinstance(found, Unanswered):
        return ()
    return tuple(found.get("InstanceGroups") or ())
