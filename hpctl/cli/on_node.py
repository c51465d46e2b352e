"""The group `hpctl agent`: a prolog that calls `verdict` must not pay for the agent's imports."""

from __future__ import annotations

import click


class _OnNode(click.Group):
    """The agent's commands, and one that is imported without them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        from hpctl.cli.agent import agent

        return [*agent.list_commands(ctx), "verdict"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one that was asked for."""
        if cmd_name == "verdict":
            from hpctl.cli.report import verdict

            return verdict
        from hpctl.cli.agent import agent

        return agent.get_command(ctx, cmd_name)


@click.group(cls=_OnNode)
def agent() -> None:
    """The node agent."""
