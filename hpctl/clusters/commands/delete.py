"""`hpctl cluster delete`: end a cluster, after saying what is lost; or nodes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpctl.clusters.commands.change_view import (
    ApiCallView,
    print_outcome_and_exit,
    select_wait_result_fields,
)
from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    add_aws_options,
    complete_cluster_name,
    make_missing_cluster_error,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.clusters.commands.waiting import (
    WaitOptions,
    add_wait_and_timing_options,
    ask_confirmation,
    dry_run_option,
    exit_unconfirmed,
    follow_cluster_progress,
    yes_option,
)
from hpctl.clusters.progress import DELETED
from hpctl.toolkit import output
from hpctl.toolkit.arguments import CLUSTER
from hpctl.toolkit.errors import ResourceNotFound

if TYPE_CHECKING:
    from hpctl.clusters.progress import ClusterProgress

JOBS_SHOWN = 10


class _DeleteCommand(click.Command):
    """`delete NODE...` is `delete-nodes NODE...`, recognized by what the words look like.

    By nothing else, so that no cluster is ended where a node was meant: a cluster that is called
    as a node is deleted by its ARN.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """That of the command which these words are for."""
        from hpctl.clusters.fleet_joining import looks_like_node_name

        if not any(looks_like_node_name(word) for word in args):
            return super().make_context(info_name, args, parent, **extra)
        from hpctl.clusters.commands.node_orders import delete_nodes

        return delete_nodes.make_context(info_name, args, parent, **extra)


@click.command(cls=_DeleteCommand)
@click.argument("name", metavar="CLUSTER", type=CLUSTER, shell_complete=complete_cluster_name)
@click.option(
    "--if-exists",
    is_flag=True,
    help="Exit with 0 if the cluster does not exist, for scripts that repeat.",
)
@dry_run_option
@yes_option
@add_wait_and_timing_options
@output.json_option
@add_aws_options
def delete(
    name: str,
    if_exists: bool,
    dry_run: bool,
    yes: bool,
    waiting: WaitOptions,
    as_json: bool,
    **where: Any,
) -> None:
    """Delete a cluster with all its instances.

    Given nodes (instance ids, ip-... names, addresses), it is hpctl cluster delete-nodes. Of a
    cluster nothing is drained: jobs that run end. Without --yes the cluster's name has to be
    typed. Exit code: 0 gone (or ordered), 1 failed, refused or no such cluster (--if-exists: 0),
    3 not gone in time, 130 interrupted.
    """
    from hpctl.clusters import apply, progress
    from hpctl.clusters.watch import read_cluster_progress

    here = resolve_cluster_context(cluster=name, **where)
    first = read_cluster_progress(here.aws, here.cluster, output.get_current_utc_time())
    if first.status == DELETED:
        absent = make_missing_cluster_error(
            here.aws,
            name,
            ResourceNotFound(
                f"AWS has no HyperPod cluster {name!r} in this account and region",
                "check the name, --region and --profile: hpctl cluster list",
            ),
        )
        if not if_exists:
            raise absent
        why = "; ".join(filter(None, ("there is no such cluster", absent.hint)))
        return print_outcome_and_exit("delete", name, as_json, outcome="unchanged", why=why)
    for line in describe_cluster_deletion_effects(first, here):
        output.echo(output.wrap_text_to_screen(line), err=True)
    if dry_run:
        order = ApiCallView("DeleteCluster", {"ClusterName": here.cluster})
        return print_outcome_and_exit("delete", name, as_json, outcome="dry_run", orders=(order,))
    if not yes and first.status != "Deleting":
        _confirm_cluster_deletion(first.cluster)
    apply.delete_cluster(here.aws, here.cluster, waiting.patience)
    last = (
        follow_cluster_progress(
            here.aws, here.cluster, progress.evaluate_cluster_deletion_progress, waiting
        )
        if waiting.wait
        else None
    )
    fields = {**select_wait_result_fields(last), "arn": first.arn}
    fields["pick_up"] = f"hpctl cluster wait {first.cluster} --deleted"
    return print_outcome_and_exit("delete", first.cluster, as_json, **fields)


def describe_cluster_deletion_effects(
    first: ClusterProgress, here: ClusterCommandContext
) -> list[str]:
    """Return what a deletion takes with it, and what it leaves."""
    lines = [f"Deleting cluster {first.cluster} ends {len(first.nodes)} instance(s):"]
    for g in first.groups:
        there = sum(node.group == g.name for node in first.nodes)
        lines.append(f"  {g.name}: {there} x {' or '.join(g.instance_types)}")
    lines.append(
        "Lost: root and EBS volumes, local NVMe, Slurm's state and accounting on the controller."
    )
    lines.append("Kept: file systems (FSx), S3 buckets, roles, the VPC.")
    answer = read_local_cluster_state(here)
    if answer.slurm is None:
        return [*lines, f"Running jobs: unknown ({answer.slurm_error})"]
    jobs = [job for job in answer.slurm.jobs.values() if job.running]
    lines.append(f"Running jobs, which end: {len(jobs) or 'none'}")
    for job in jobs[:JOBS_SHOWN]:
        lines.append(f"  {job.shown} {job.name} of {job.user} on {len(job.nodes)} node(s)")
    if len(jobs) > JOBS_SHOWN:
        lines.append(f"  and {len(jobs) - JOBS_SHOWN} more")
    return lines


def _confirm_cluster_deletion(cluster: str) -> None:
    def prompt_cluster_name() -> bool:
        question = "Type the cluster's name to delete it"
        typed: str = output.prompt(question, default="", show_default=False)
        return typed.strip() == cluster

    if not ask_confirmation(prompt_cluster_name):
        exit_unconfirmed()
