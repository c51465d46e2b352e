"""`hpctl cluster provisioning-parameters`: provisioning_parameters.json from cluster.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpctl.cli import output
from hpctl.cli.cluster.file import may_write, write
from hpctl.cli.cluster.spec_file import spec_argument


@click.command(
    "provisioning-parameters", short_help="Print provisioning_parameters.json of cluster.yaml."
)
@spec_argument
@click.option(
    "-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path),
    help="Write this file instead of standard output.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print it with --output, too: it is JSON.")
def provisioning_parameters(path: str, target: Path | None, force: bool, as_json: bool) -> None:
    """Print provisioning_parameters.json, as the lifecycle scripts read it from their directory.

    For clusters with `slurm_config: provisioning_parameters`; `hpctl lifecycle bundle` takes the
    file along.
    """
    from hpctl.clusters.provisioning import render
    from hpctl.clusters.spec import read

    if target:
        may_write(target, force)
    text = json.dumps(render(read(path)), indent=2) + "\n"
    if target:
        write(target, text)
    if as_json or not target:
        output.echo(text, nl=False)
