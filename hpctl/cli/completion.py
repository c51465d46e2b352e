"""`hpctl completion`: the shell's completion script."""

from __future__ import annotations

import click

from hpctl.cli import output


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    bash: eval "$(hpctl completion bash)" in ~/.bashrc (bash 4.4 or newer)
    zsh:  eval "$(hpctl completion zsh)" in ~/.zshrc
    fish: hpctl completion fish > ~/.config/fish/completions/hpctl.fish
    """
    from click.shell_completion import get_completion_class

    from hpctl.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None
    output.echo(script(cli, {}, "hpctl", "_HPCTL_COMPLETE").source())
