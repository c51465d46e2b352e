"""`hpctl cluster` and its neighbors: one module for each command or pair of commands.

COMMANDS below names the commands of `hpctl cluster`; a module is imported when its command is
called. `hpctl.cli.main` adds `capacity`, `iam`, `lifecycle` and `storage`, and what other rooms
have. SECTIONS groups all of them for the help. `context` finds the
cluster and the account, `make_capacity_change_view` shows what a change did, `waiting` follows it
and defines what Ctrl-C means.
"""

import click

from hpctl.toolkit.lazy_commands import LazyCommandGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("hpctl.clusters.commands.init_import:init", "Write a first cluster.yaml."),
    "import": (
        "hpctl.clusters.commands.init_import:import_",
        "Write cluster.yaml from a living cluster or a request.",
    ),
    "provisioning-parameters": (
        "hpctl.clusters.commands.init_import:provisioning_parameters",
        "Print provisioning_parameters.json of cluster.yaml.",
    ),
    "schema": (
        "hpctl.clusters.commands.init_import:schema",
        "Print the JSON schema of cluster.yaml.",
    ),
    "create": (
        "hpctl.clusters.commands.create_update:create",
        "Create the cluster of a spec, or go on with a create that was interrupted.",
    ),
    "update": (
        "hpctl.clusters.commands.create_update:update",
        "Make a cluster as its spec says, after showing the difference.",
    ),
    "scale": ("hpctl.clusters.commands.scale:scale", "Give an instance group N instances."),
    "delete": ("hpctl.clusters.commands.delete:delete", "Delete a cluster with all its instances."),
    "wait": (
        "hpctl.clusters.commands.waiting:wait",
        "Follow a cluster until it is in service with all its nodes, or gone.",
    ),
    "list": (
        "hpctl.clusters.commands.describe:list_clusters",
        "The clusters of an account in a region.",
    ),
    "describe": (
        "hpctl.clusters.commands.describe:describe",
        "A cluster, its instance groups, and what is wrong with it.",
    ),
    "instances": (
        "hpctl.clusters.commands.instances:instances",
        "Every node by all its names, and what the API, Slurm and hpctl say of it.",
    ),
    "events": (
        "hpctl.clusters.commands.events:events",
        "What the service did to a cluster, and why it failed.",
    ),
    "replace": (
        "hpctl.clusters.commands.node_orders:replace",
        "Replace nodes' instances: drained first, given back to Slurm when the new ones are there.",
    ),
    "reboot": (
        "hpctl.clusters.commands.node_orders:reboot",
        "Reboot nodes' instances: drained first, given back to Slurm when they have come up.",
    ),
    "delete-nodes": (
        "hpctl.clusters.commands.node_orders:delete_nodes",
        "Delete nodes for good: drained first; their groups' counts go down with them.",
    ),
    "software-update": (
        "hpctl.clusters.commands.maintenance:software_update",
        "Give groups the newest image, in rolling batches.",
    ),
    "health-check": (
        "hpctl.clusters.commands.maintenance:health_check",
        "Run HyperPod's deep health checks on nodes or groups: one to two hours.",
    ),
    "ssh": (
        "hpctl.clusters.commands.ssh:ssh",
        "A shell on a node through Systems Manager, or one COMMAND after `--`.",
    ),
    "validate": (
        "hpctl.clusters.commands.validate:validate",
        "Check a cluster's file before it costs money.",
    ),
}

SECTIONS: dict[str, tuple[str, ...]] = {
    "Look": (
        "list", "describe", "instances", "events", "capacity", "autoscale", "forecast", "wait",
    ),
    "Change": (
        "create", "update", "scale", "delete", "replace", "reboot", "delete-nodes",
        "software-update", "health-check", "ssh",
    ),
    "Prepare": ("init", "import", "validate", "iam", "lifecycle", "storage"),
}  # fmt: skip
"""The commands by the headings of the help. What prints a schema or a file of HyperPod's own is
rare, and in `hpctl help --all` alone."""


@click.command(
    cls=LazyCommandGroup,
    table=COMMANDS,
    sections=SECTIONS,
    aliases={"nodes": "instances"},
    epilog="Exit codes: 0 done or fine, 1 problem found or refused, 2 usage, 3 cannot tell.",
)
def cluster() -> None:
    """Create, operate and retire a HyperPod cluster."""
