"""`hpctl lifecycle show`."""

from __future__ import annotations

from pathlib import Path

import click

from hpctl.cli import output
from hpctl.cli.arguments import ThereType
from hpctl.cli.output import Exit, json_option, leave


@click.command()
@click.option(
    "--root",
    type=ThereType(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Where the node's files are, if not at / (a sandbox's node).",
)
@json_option
def show(root: Path, as_json: bool) -> None:
    """What became of each step on this node."""
    from hpctl.cli import render_lifecycle
    from hpctl.clusters.bundle_trial import state_of
    from hpctl.errors import Unavailable

    run = state_of(root)
    if run is None:
        raise Unavailable(
            "no lifecycle script of hpctl's has run on this machine",
            "HyperPod's own log of it: /var/log/provision/provisioning.log",
        )
    output.show("lifecycle-show", run, as_json, render_lifecycle.show)
    leave(Exit.PROBLEM if run.state == "failed" else Exit.FINE)
