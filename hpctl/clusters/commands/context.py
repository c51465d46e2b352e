"""What a command of `hpctl cluster` works on: cluster, account, and what is on this machine.

On a head node nothing need be named: the daemon's configuration tells the cluster, its region and
its Slurm; without it the node's own resource_config.json does. Anywhere else there is the API
alone, and what only Slurm or the daemon could say is said to be unknown.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import CLUSTER, GROUP, NODES, aws_options
from hpctl.toolkit.errors import HpctlError, ResourceNotFound
from hpctl.toolkit.output import DEFAULT_CONFIG
from hpctl.vocabulary.ports import AwsClientFactory

if TYPE_CHECKING:
    from hpctl.clusters.fleet import Fleet, NodeRow
    from hpctl.engine.config import Config
    from hpctl.engine.world import World
    from hpctl.vocabulary.slurm_facts import SchedulerView

F = TypeVar("F", bound=Callable[..., Any])

RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
"""HyperPod's list of the instances of a cluster, on each of its nodes."""

ELSEWHERE = "neither Slurm nor hpctl's daemon is reachable: they are on the cluster's head node"


class ClusterCommandContext(Struct, frozen=True):
    """`config` and `resource_config` are None where this machine's are of another cluster."""

    cluster: str
    aws: AwsClientFactory
    config: Config | None = None
    resource_config: Mapping[str, Any] | None = None

    @property
    def slurm(self) -> bool:
        """Return whether the Slurm of this machine is this cluster's."""
        here = self.resource_config is not None and shutil.which("scontrol") is not None
        return self.config is not None or here

    def settings(self) -> Config:
        """Return the daemon's configuration, or its defaults."""
        from hpctl.engine.config import Config

        return self.config or Config()


class LocalClusterState(Struct, frozen=True):
    """What Slurm and the daemon's journal say here; None with the reason where they say nothing."""

    slurm: SchedulerView | None = None
    slurm_error: str = ""
    world: World | None = None
    health_error: str = ""

    def join(self, rows: tuple[NodeRow, ...], place: ClusterCommandContext) -> tuple[NodeRow, ...]:
        """Return the rows with all that is known here."""
        from hpctl.clusters.fleet_joining import (
            add_health_to_node_rows,
            add_instance_names_to_rows,
            add_slurm_states_to_node_rows,
        )

        if place.resource_config is not None:
            rows = add_instance_names_to_rows(rows, place.resource_config)
        protected = place.config.cluster.protected_groups if place.config is not None else ()
        rows = tuple(
            replace(row, role="controller") if not row.role and row.group in protected else row
            for row in rows
        )
        if self.slurm is not None:
            rows = add_slurm_states_to_node_rows(rows, self.slurm)
        if self.world is not None:
            rows = add_health_to_node_rows(rows, self.world.assessments)
        return rows


def add_aws_options(command: F) -> F:
    """`--config` and the AWS options, for commands that name their cluster otherwise."""
    return output.config_option(aws_options(command))


def add_cluster_options(command: F) -> F:
    """`--cluster` and the `add_aws_options`; give their values to `place`."""
    return click.option(
        "--cluster",
        metavar="NAME",
        type=CLUSTER,
        envvar="HPCTL_CLUSTER",
        show_envvar=True,
        shell_complete=complete_cluster_name,
        help="The cluster, by name or ARN. On a head node: its own.",
    )(add_aws_options(command))


def resolve_cluster_context(
    cluster: str | None,
    config: str,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
) -> ClusterCommandContext:
    """Return what it works on. Raises UsageError where nothing names a cluster, HpctlError.

    A head node's file says where its cluster is, and its daemon goes by it: an option
    outweighs it, the environment, which is about no cluster, does not.
    """
    loaded = read_daemon_config(config)
    resources = _read_resource_config()
    own = resources.get("ClusterConfig", {}) if resources else {}
    named = cluster or (loaded.cluster.name if loaded else "") or str(own.get("ClusterName", ""))
    if not named:
        raise click.UsageError(
            "the command names no cluster: give --cluster NAME or set the environment variable "
            "HPCTL_CLUSTER"
            " (`hpctl cluster list` lists the clusters)"
        )
    short = named.rpartition("/")[2]
    ours = loaded is not None and loaded.cluster.name in (named, short)
    here = named in (own.get("ClusterName"), own.get("ClusterArn"))
    if loaded is not None and ours:
        profile = profile or loaded.cluster.profile
        region = region or loaded.cluster.region
        endpoint_url = endpoint_url or loaded.cluster.endpoint_url
    return ClusterCommandContext(
        cluster=named,
        aws=make_aws_client_for_command(profile, region, endpoint_url),
        config=loaded if ours else None,
        resource_config=resources if here or ours else None,
    )


def read_daemon_config(path: str) -> Config | None:
    """Read the daemon's configuration; None where the default path has none. Raises ConfigError."""
    if path == DEFAULT_CONFIG and not os.access(path, os.R_OK):
        return None
    from hpctl.engine.config import read_config_file

    return read_config_file(path)


def _read_resource_config() -> Mapping[str, Any] | None:
    path = Path(os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", RESOURCE_CONFIG))
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        # Not a HyperPod node, or not for this user to read: the API knows all but <group>-<n>.
        return None
    return found if isinstance(found, dict) else None


def read_local_cluster_state(
    place: ClusterCommandContext, *, live: bool = True, placement: bool = False
) -> LocalClusterState:
    """Ask Slurm and hpctl's daemon, where they are this cluster's.

    `live`: Slurm is asked now, whatever the daemon knows, because an order follows. `placement`:
    the daemon is asked for Slurm's reservations and topology as well.
    """
    slurm, slurm_error, world, health_error = None, "", None, ""
    if place.config is not None:
        from hpctl.engine.world_reader import WorldReader

        try:
            world = WorldReader(place.config).read(
                output.get_current_utc_time(), placement=placement
            )
        except HpctlError as error:
            health_error = "; ".join(filter(None, (str(error), error.hint)))
    else:
        health_error = ELSEWHERE
    if not live and place.slurm and world is not None:
        slurm = world.slurm
    if not place.slurm:
        slurm_error = ELSEWHERE
    elif slurm is None:
        from hpctl.engine.adapters import make_slurm_command_client

        try:
            slurm = make_slurm_command_client(place.settings()).view()
        except HpctlError as error:
            slurm_error = "; ".join(filter(None, (str(error), error.hint)))
    return LocalClusterState(slurm, slurm_error, world, health_error)


def read_existing_cluster_fleet(here: ClusterCommandContext, *, details: bool = False) -> Fleet:
    """Return the cluster and its nodes. Raises ResourceNotFound with the nearest where it is not
    there."""
    from hpctl.clusters.fleet_reading import read_fleet

    try:
        return read_fleet(here.aws, here.cluster, details=details)
    except ResourceNotFound as error:
        raise make_missing_cluster_error(here.aws, here.cluster, error) from error


def make_missing_cluster_error(
    aws: AwsClientFactory, name: str, error: ResourceNotFound
) -> HpctlError:
    """Return the error for a cluster that is not there, with the nearest that is."""
    from difflib import get_close_matches

    try:
        listed = aws.service("sagemaker").pages("list_clusters", "ClusterSummaries")
        names = [str(c["ClusterName"]) for c in listed]
    except HpctlError:
        return error
    near = get_close_matches(name, names, n=2) or names[:5]
    there = f"is it {' or '.join(near)}?" if near else "there is no cluster at all"
    hint = f"{there} (region {aws.region}; another one: --region, --profile)"
    return ResourceNotFound(f"there is no cluster {name!r}", hint, code=error.code)


def complete_cluster_name(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return the clusters of the account that the options before name."""
    try:
        aws = make_aws_client_for_command(
            *(ctx.params.get(key) for key in ("profile", "region", "endpoint_url"))
        )
        listed = aws.service("sagemaker").pages("list_clusters", "ClusterSummaries", MaxResults=100)
        return [str(c["ClusterName"]) for c in listed if c["ClusterName"].startswith(incomplete)]
    except HpctlError:
        return []


def complete_node_name(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return every name of every node that begins so; node names alone until something is typed."""
    from hpctl.clusters.fleet_reading import read_node_rows

    try:
        here = resolve_cluster_context_for_completion(ctx)
        rows = read_node_rows(here.aws, here.cluster, details=False)
    except (HpctlError, click.UsageError):
        return []
    names: list[str] = []
    for row in rows:
        names += row.names if incomplete else row.names[:1]
    return [name for name in names if name.startswith(incomplete)]


def complete_group_name(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return the cluster's instance groups."""
    try:
        here = resolve_cluster_context_for_completion(ctx)
        answer = here.aws.service("sagemaker").read("describe_cluster", ClusterName=here.cluster)
    except (HpctlError, click.UsageError):
        return []
    names = [str(group["InstanceGroupName"]) for group in answer.get("InstanceGroups", ())]
    return [name for name in names if name.startswith(incomplete)]


def resolve_cluster_context_for_completion(ctx: click.Context) -> ClusterCommandContext:
    """Return the place that the options name which stand on the line already. Raises as `place`
    does."""
    keys = ("cluster", "config", "profile", "region", "endpoint_url")
    given = {key: ctx.params.get(key) for key in keys}
    given["config"] = given["config"] or os.environ.get("HPCTL_CONFIG") or DEFAULT_CONFIG
    named = given["cluster"] or ctx.params.get("name")
    given["cluster"] = named or os.environ.get("HPCTL_CLUSTER")
    return resolve_cluster_context(**given)  # type: ignore[arg-type]


cluster_argument = click.argument(
    "name", metavar="[CLUSTER]", type=CLUSTER, required=False, shell_complete=complete_cluster_name
)
nodes_argument = click.argument(
    "names", metavar="[NODE]...", type=NODES, nargs=-1, shell_complete=complete_node_name
)


def add_groups_option(text: str) -> Callable[[F], F]:
    """`--group`, any number of times, as `groups`."""
    return click.option(
        "--group",
        "groups",
        type=GROUP,
        multiple=True,
        shell_complete=complete_group_name,
        help=text,
    )
