"""`hpctl accept`: test nodes now, and look at what tests have found."""

from __future__ import annotations

import click

from hpctl.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    table={
        "culprit": (
            "hpctl.cli.accept_culprit:culprit",
            "Name the node of a group that is slow or hangs.",
        )
    },
)
def accept() -> None:
    """Test nodes, and see what tests have found."""
