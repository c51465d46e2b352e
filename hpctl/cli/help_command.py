"""`hpctl help`: the help of a command, or the list of every command."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hpctl.cli.main import SECTIONS
from hpctl.toolkit import output

REST = "More"
"""The heading of the commands that the short list leaves out."""


def find_command_context(root: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return the context of the command that words, of today or earlier, name.

    Raises UsageError where there is no such command.
    """
    context, left = root, [*words]
    while left:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"the command {context.command_path} has no subcommands", root)
        name, command, left = group.resolve_command(context, left)
        if command is None:
            raise click.UsageError(f"hpctl has no such command: {' '.join(words)}", root)
        context = make_command_context(context, str(name), command)
    return context


def make_command_context(parent: click.Context, name: str, command: click.Command) -> click.Context:
    """Return the context of a command of a group, in which nothing is run."""
    return command.context_class(
        command, info_name=name, parent=parent, resilient_parsing=True, **command.context_settings
    )


def list_leaf_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield what a command holds that can be run, itself included."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    if group.invoke_without_command:
        yield context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield from list_leaf_commands(make_command_context(context, name, command))


def _complete_command_words(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[str]:
    context = find_command_context(ctx.find_root(), tuple(ctx.params.get("words") or ()))
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return [name for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete_command_words)
@click.option("--all", "lists_all", is_flag=True, help="List every command, one line each.")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...], lists_all: bool) -> None:
    """Print a command's help, or list every command.

    `hpctl help cluster scale` is `hpctl cluster scale --help`; without COMMAND the short list is
    printed. Names that commands had earlier are understood.
    """
    root = ctx.find_root()
    context = find_command_context(root, words)
    if not lists_all:
        output.echo(context.get_help())
        return
    formatter = context.make_formatter()
    for title, found in _group_leaf_commands_by_heading(root, context):
        with formatter.section(title):
            rows = [(one.command_path, one.command.get_short_help_str(100)) for one in found]
            formatter.write_dl(rows, col_max=50)
    output.echo(formatter.getvalue().strip("\n"))


def _group_leaf_commands_by_heading(
    root: click.Context, context: click.Context
) -> Iterator[tuple[str, list[click.Context]]]:
    """Yield the headings of the short list, each with every command below it."""
    if context is not root:
        yield context.command_path, [*list_leaf_commands(context)]
        return
    titles: dict[str, str] = {}
    for title, names in SECTIONS.items():
        titles |= dict.fromkeys(names, title)
    found: dict[str, list[click.Context]] = {title: [] for title in (*SECTIONS, REST)}
    for leaf in list_leaf_commands(root):
        name = leaf.command_path.split()[1]
        found[titles.get(name, REST)].append(leaf)
    yield from found.items()
