"""`hpctl status`: the cluster and the daemon in one screen."""

from __future__ import annotations

import click

from hpctl.engine import config_loading
from hpctl.engine.status_view import seen, verdict
from hpctl.toolkit import output


@click.command()
@output.json_option
@output.config_option
def status(config: str, as_json: bool) -> None:
    """The cluster and the daemon in one screen.

    Exit code: 0 all is well, 1 something is wrong (in treatment, blocked by a gate or waiting for
    a person), 3 the daemon or Slurm does not answer, so this may be out of date.
    """
    view = seen(config_loading.load_config(config))
    output.show("status", view, as_json)
    output.leave(verdict(view))
