"""`hpctl cluster ssh`: a shell on a node, through Systems Manager, by any of its names."""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import click

from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    add_cluster_options,
    complete_node_name,
    read_existing_cluster_fleet,
    resolve_cluster_context,
)
from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.node_lookup import resolve_node_by_name
from hpctl.toolkit import output
from hpctl.toolkit.arguments import NODES
from hpctl.toolkit.errors import HpctlError

PLUGIN = "session-manager-plugin"
DOCUMENT = "AWS-StartNonInteractiveCommand"
"""Runs one command and ends: its output is the session's."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("node", type=NODES, shell_complete=complete_node_name)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--print", "show", is_flag=True, help="Print the command; run nothing.")
@add_cluster_options
def ssh(node: str, command: tuple[str, ...], show: bool, **where: Any) -> None:
    """A shell on a node through Systems Manager, or one COMMAND after `--`.

    No SSH key and no open port is needed, but the AWS CLI, its Session Manager plugin, and a node
    group whose role allows Systems Manager. You are root there.
    """
    options = {key: where[key] for key in ("profile", "region", "endpoint_url")}
    here = resolve_cluster_context(**where)
    fleet = read_existing_cluster_fleet(here)
    row = resolve_node_by_name(_add_instance_names(fleet.rows, here), node)
    args = build_ssm_session_command(
        make_ssm_target_id(str(fleet.description["ClusterArn"]), row),
        region=here.aws.region,
        profile=options["profile"] or (here.config.cluster.profile if here.config else None),
        command=command,
    )
    if show:
        output.echo(shlex.join(args))
        return
    _require_ssm_session_programs()
    # The session owns the terminal from here on: its signals, its exit code.
    os.execvp(args[0], args)  # noqa: S606 -- a list of words, and no shell


def make_ssm_target_id(arn: str, row: NodeRow) -> str:
    """Return what Systems Manager calls a HyperPod node: by the cluster's id, not by its name."""
    if not row.instance_id:
        raise HpctlError(
            f"cannot open a session on {row.display_name}: it has no instance yet",
            "wait for the instance: hpctl cluster wait",
        )
    return f"sagemaker-cluster:{arn.rpartition('/')[2]}_{row.group}-{row.instance_id}"


def build_ssm_session_command(
    to: str, *, region: str, profile: str | None = None, command: Sequence[str] = ()
) -> list[str]:
    """`aws ssm start-session` as a list of words."""
    args = ["aws", "ssm", "start-session", "--target", to, "--region", region]
    args += ["--profile", profile] if profile else []
    if command:
        text = command[0] if len(command) == 1 else shlex.join(command)
        parameters = json.dumps({"command": [text]})
        args += ["--document-name", DOCUMENT, "--parameters", parameters]
    return args


def _add_instance_names(
    rows: tuple[NodeRow, ...], here: ClusterCommandContext
) -> tuple[NodeRow, ...]:
    from hpctl.clusters.fleet_joining import add_instance_names_to_rows

    return (
        rows
        if here.resource_config is None
        else add_instance_names_to_rows(rows, here.resource_config)
    )


def _require_ssm_session_programs() -> None:
    """Raise with what to install where something is missing."""
    missing = [name for name in ("aws", PLUGIN) if shutil.which(name) is None]
    if missing:
        raise HpctlError(
            "cannot open a session: these programs are not installed on this machine: "
            f"{' and '.join(missing)}",
            "install them: the AWS CLI (`pip install awscli`) and its plugin, the"
            " package session-manager-plugin: https://docs.aws.amazon.com/systems-manager/latest/"
            "userguide/session-manager-working-with-install-plugin.html; --print shows the command",
        )
