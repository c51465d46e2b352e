"""`hpctl cluster create`: a cluster from its spec, once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hpctl.cli import output
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.cli.cluster.change_view import CallView, ClusterChangeView, followed
from hpctl.cli.cluster.following import (
    Waiting,
    confirm,
    dry_run_option,
    follow,
    tell,
    wait_options,
    yes_option,
)
from hpctl.cli.cluster.spec_file import spec_argument, validate_option


@click.command()
@spec_argument
@validate_option
@dry_run_option
@yes_option
@wait_options
@output.json_option
@aws_options
def create(
    path: str,
    validate: bool,
    dry_run: bool,
    yes: bool,
    waiting: Waiting,
    as_json: bool,
    **where: Any,
) -> None:
    """Create the cluster of a spec, or go on with a create that was interrupted.

    FILE is the cluster file. Exit code: 0 in service (or ordered), 1 failed or refused, 3 not
    there in time, 130 interrupted by Ctrl-C: the service goes on.
    """
    from hpctl.cli.cluster.validate import before_spending
    from hpctl.clusters import apply, spec
    from hpctl.clusters.ordering import described
    from hpctl.clusters.progress import in_service
    from hpctl.clusters.request import create_request

    read = spec.read(path)
    request = create_request(read)
    name = str(request["ClusterName"])
    aws = open_aws(**where)
    found = described(aws, name)
    if found is None and validate:
        before_spending(path, read, aws)
    if dry_run:
        if found is not None:
            apply.adopt(request, found)
        orders = () if found else (CallView("CreateCluster", request),)
        outcome = "dry_run" if orders else "unchanged"
        return tell(
            ClusterChangeView(output.now(), "create", name, outcome, orders=orders), as_json
        )
    if found is None:
        confirm(f"Create cluster {name} with {_bill(request)}? They are paid for from now on.", yes)
    made = apply.create(aws, request, waiting.patience)
    if made.adopted:
        output.echo(f"cluster {name} is there already, made from this spec: going on", err=True)
    judge = in_service(apply.counts(request), waiting.patience_s)
    last = follow(aws, name, judge, waiting) if waiting.wait else None
    view = ClusterChangeView(
        as_of=output.now(),
        command="create",
        cluster=name,
        pick_up=f"hpctl cluster wait {name}",
        **{"arn": made.arn, **followed(last)},
    )
    return tell(view, as_json)


def _bill(request: Mapping[str, Any]) -> str:
    """What is bought, group by group."""
    from hpctl.clusters.diff import types_of

    groups = request["InstanceGroups"]
    return ", ".join(f"{g['InstanceCount']} x {types_of(g, ' or ')}" for g in groups)
