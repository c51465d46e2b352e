"""`hpctl cluster list`: the HyperPod clusters of an account in a region."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import click

from hpctl.cli import output
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.cli.output import Exit


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """One cluster, as ListClusters tells of it."""

    name: str
    status: str
    created: datetime | None
    arn: str
    training_plans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterListView:
    """What `hpctl cluster list` shows."""

    as_of: datetime
    region: str
    clusters: tuple[ClusterLine, ...]


@click.command("list")
@output.json_option
@aws_options
def list_clusters(
    as_json: bool, profile: str | None, region: str | None, endpoint_url: str | None
) -> None:
    """The clusters of an account in a region.

    Exit code: 0, or 1 where a cluster has failed.
    """
    from hpctl.cli import render_cluster

    aws = open_aws(profile, region, endpoint_url)
    found = aws.service("sagemaker").pages(
        "list_clusters", "ClusterSummaries", MaxResults=100, SortBy="NAME", SortOrder="Ascending"
    )
    lines = tuple(
        ClusterLine(
            name=str(c["ClusterName"]),
            status=str(c["ClusterStatus"]),
            created=c.get("CreationTime"),
            arn=str(c["ClusterArn"]),
            training_plans=tuple(c.get("TrainingPlanArns", ())),
        )
        for c in found
    )
    view = ClusterListView(output.now(), aws.region, lines)
    output.show("cluster-list", view, as_json, render_cluster.clusters)
    output.leave(Exit.PROBLEM if any(c.status == "Failed" for c in lines) else Exit.FINE)
