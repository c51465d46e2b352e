"""`hpctl cluster wait`: pick up whatever goes on with a cluster, and follow it to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hpctl.cli import output
from hpctl.cli.arguments import CLUSTER
from hpctl.cli.cluster.at_hand import complete_cluster, no_cluster, place, place_options
from hpctl.cli.cluster.change_view import ClusterChangeView, followed
from hpctl.cli.cluster.following import Waiting, follow, looking_options, tell
from hpctl.errors import Absent


@click.command()
@click.argument(
    "name", metavar="[CLUSTER]", type=CLUSTER, required=False, shell_complete=complete_cluster
)
@click.option("--deleted", is_flag=True, help="Wait until the cluster is gone.")
@looking_options
@output.json_option
@place_options
def wait(
    name: str | None,
    deleted: bool,
    waiting: Waiting,
    as_json: bool,
    cluster: str | None,
    **where: Any,
) -> None:
    """Follow a cluster until it is in service with all its nodes, or gone.

    A cluster that is being deleted is followed to its end. Exit code: 0 there, 1 failed, 3 not
    there in time, 130 interrupted by Ctrl-C.
    """
    from hpctl.clusters import progress
    from hpctl.clusters.progress import DELETED
    from hpctl.clusters.watch import look

    here = place(cluster=name or cluster, **where)
    first = look(here.aws, here.cluster, output.now())
    if first.status == DELETED and not deleted:
        absent = Absent(f"there is no cluster {here.cluster!r}", code="ResourceNotFound")
        raise no_cluster(here.aws, here.cluster, absent)
    going = deleted or first.status == "Deleting"
    judge = progress.deleted if going else progress.in_service(None, waiting.patience_s)
    last = follow(here.aws, here.cluster, judge, waiting)
    last = replace(last, arn=last.arn or first.arn)
    short = here.cluster.rpartition("/")[2]
    if first.status == DELETED:
        gone = no_cluster(here.aws, here.cluster, Absent(f"there is no cluster {short!r}"))
        last = replace(last, why="; ".join(filter(None, (str(gone), gone.hint))))
    view = ClusterChangeView(
        as_of=output.now(),
        command="wait",
        cluster=last.cluster or short,
        pick_up=f"hpctl cluster wait {here.cluster}" + " --deleted" * going,
        **followed(last),
    )
    tell(view, as_json)
