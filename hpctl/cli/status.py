"""`hpctl status`: the cluster and the daemon in one screen."""

from __future__ import annotations

import gc
import sys
import time

import click

from hpctl.engine import config_loading
from hpctl.engine.status_view import (
    choose_cluster_status_exit_code,
    read_cluster_status_with_reader,
)
from hpctl.engine.world_reader import WorldReader
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.output import ExitCode

WATCH_S = "2"
"""How long `--watch` pauses by default, in seconds."""


@click.command()
@click.option(
    "--watch", is_flag=False, flag_value=WATCH_S, default=None, metavar="[SECONDS]",
    type=DurationType("0.5s", "1h"), help="Print it again and again until Ctrl-C. [default: 2 s]",
)  # fmt: skip
@output.json_option
@output.config_option
def status(watch: float | None, config: str, as_json: bool) -> None:
    """The cluster and the daemon in one screen.

    Exit code: 0 all is well, 1 something is wrong (in treatment, blocked by a gate or waiting for
    a person), 3 the daemon or Slurm does not answer, so this may be out of date. Of --watch it is
    that of the last screen.
    """
    loaded = config_loading.load_config(config)
    reader = WorldReader(loaded, recent=True)
    last = (
        _watch_status(reader, watch, as_json)
        if watch is not None
        else _print_status(reader, as_json)
    )
    output.exit_with_code(last)


def _print_status(reader: WorldReader, as_json: bool, *, clears: bool = False) -> ExitCode:
    view = read_cluster_status_with_reader(reader)
    if clears:
        click.clear()
    output.show_view("status", view, as_json)
    return choose_cluster_status_exit_code(view)


def _watch_status(reader: WorldReader, every_s: float, as_json: bool) -> ExitCode:
    """Print the status until Ctrl-C; the verdict of the last one.

    A terminal is cleared before each; elsewhere, and as JSON, each follows the one before.
    """
    gc.enable()
    clears = sys.stdout.isatty() and not as_json
    last = ExitCode.CANNOT_TELL
    try:
        while True:
            last = _print_status(reader, as_json, clears=clears)
            sys.stdout.flush()
            time.sleep(every_s)
    except KeyboardInterrupt:
        return last
