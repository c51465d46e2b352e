"""`hpctl daemon run`: the head-node daemon in the foreground, as systemd wants it."""

from __future__ import annotations

import click

from hpctl.cli import output
from hpctl.cli.output import config_option


@click.group(short_help="The head-node daemon.")
def daemon() -> None:
    """The head-node daemon."""


@daemon.command()
@config_option
@click.option("--log-level", default="info", show_default=True, help="debug, info or warning.")
def run(config: str, log_level: str) -> None:
    """Run the daemon until SIGTERM. SIGHUP reads the configuration again."""
    import logging

    from hpctl.daemon.main import run as run_daemon

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    raise SystemExit(run_daemon(config, lambda line: output.echo(f"hpctl: {line}", err=True)))
