"""What every command takes that reads a cluster file, or acts on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def spec_argument(command: F) -> F:
    """`[FILE]`: the cluster file, as `path`."""
    return click.argument(
        "path", metavar="[FILE]", default="cluster.yaml", type=click.Path(dir_okay=False)
    )(command)


def validate_option(command: F) -> F:
    """`--validate/--no-validate`, as `validate`: for what may cost money."""
    return click.option(
        "--validate/--no-validate",
        default=True,
        show_default=True,
        help="Check everything that can be known before money is spent.",
    )(command)
