"""`hpctl cluster schema`: the JSON schema of cluster.yaml, for editors."""

from __future__ import annotations

import click

from hpctl.cli import output


@click.command(short_help="Print the JSON schema of cluster.yaml.")
@output.json_anyway_option
def schema(as_json: bool) -> None:  # noqa: ARG001 -- JSON either way
    """Print the JSON schema of cluster.yaml, for editors that complete and check while you type.

    With the YAML language server, as a first line of the file:

    # yaml-language-server: $schema=cluster.schema.json
    """
    from hpctl.clusters.spec.reading import schema_text

    output.echo(schema_text(), nl=False)
