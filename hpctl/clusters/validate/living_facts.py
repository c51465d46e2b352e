"""Asks SageMaker whether the cluster is there already, and for its accounting secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctl.clusters.validate.ask import ask
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws

Entry = Mapping[str, Any] | None | Unanswered
"""An answer, None where the thing is not there."""


@dataclass(frozen=True, slots=True)
class LivingFacts:
    """DescribeCluster by the wanted name, and the accounting database's secret."""

    cluster: Entry = None
    secret: Entry = None

    def count(self, group: str) -> int:
        """How many instances the living cluster has in a group."""
        return sum(
            int(entry.get("CurrentCount") or 0)
            for entry in self.groups
            if entry.get("InstanceGroupName") == group
        )

    @property
    def legacy(self) -> bool:
        """Whether a cluster lives that has its roles in provisioning_parameters.json."""
        return bool(self.groups) and not any("SlurmConfig" in group for group in self.groups)

    @property
    def groups(self) -> tuple[Mapping[str, Any], ...]:
        """The living cluster's instance groups."""
        if self.cluster is None or isinstance(self.cluster, Unanswered):
            return ()
        return tuple(self.cluster.get("InstanceGroups") or ())


def gather(aws: Aws, wanted: Wanted) -> LivingFacts:
    """One call, two with a database."""
    sagemaker = aws.service("sagemaker")
    arn = wanted.secret
    return LivingFacts(
        cluster=ask(sagemaker.read, "describe_cluster", ClusterName=wanted.name),
        secret=ask(aws.service("secretsmanager").read, "describe_secret", SecretId=arn)
        if arn
        else None,
    )
