"""A group of commands that imports each of them only when it is called for."""

from collections.abc import Iterable, Mapping
from copy import copy
from importlib import import_module
from typing import Any

import click

from hpctl.toolkit.interrupts import is_ctrl_c_abort

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended."""


class _FastHelpFormatter(click.HelpFormatter):
    """click's, which wraps text by a module that takes a tenth of `hpctl --help`, where every line
    fits as it is."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """The line of the usage."""
        line = f"{prefix or 'Usage: '}{prog} {args}"
        if not self._are_lines_within_width([line]):
            super().write_usage(prog, args, prefix)
            return
        self.write(f"{'':{self.current_indent}}{line}\n")

    def write_text(self, text: str) -> None:
        """A paragraph."""
        if not self._are_lines_within_width([text]):
            super().write_text(text)
            return
        self.write(f"{'':{self.current_indent}}{text}\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Names and what they mean."""
        rows = list(rows)
        first = max((len(name) for name, _ in rows), default=0) + col_spacing
        lines = [f"{name:{first}}{text}" for name, text in rows]
        if first > col_max or not self._are_lines_within_width(lines):
            super().write_dl(rows, col_max, col_spacing)
            return
        self.write("".join(f"{'':{self.current_indent}}{line}\n" for line in lines))

    def _are_lines_within_width(self, lines: Iterable[str]) -> bool:
        width = self.width - self.current_indent
        return all(len(line) <= width and line.isprintable() for line in lines)


class _FastHelpContext(click.Context):
    formatter_class = _FastHelpFormatter


class LazyCommandGroup(click.Group):
    """A group by a table: name to (module:attribute, one-line help), in the help's order.

    Commands may be added as to any group, too. `sections`: the headings of the help, each with its
    commands' names; a command of the table that no section names is rare, and left out of the help.
    `extras`: how to install the commands that come with an extra. `subcommands`: by the name of a
    group of the table, the rows that other rooms add to that group's table. `aliases`: old words to
    the words of today, such as `logs test` to `policy test-logs`; they are resolved silently, and
    neither listed nor completed.
    """

    context_class = _FastHelpContext

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Iterable[str]] | None = None,
        extras: Mapping[str, str] | None = None,
        subcommands: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
        aliases: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.table = table or {}
        self.sections = sections
        self.extras = extras or {}
        self.subcommands = subcommands or {}
        self.aliases = aliases or {}

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C that no command has an answer to is 130 everywhere, as a shell has it."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            from hpctl.toolkit.bounds import make_printable

            # click itself prints it, and a usage error quotes what was given.
            vars(error)["message"] = make_printable(error.message, lines=True)
            raise
        except KeyboardInterrupt:
            click.echo("hpctl: interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.Abort as abort:
            if not is_ctrl_c_abort(abort):
                raise
            # The cursor stands behind the question still.
            click.echo("\nhpctl: interrupted, nothing was done", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The table's order is the order of the help."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that was asked for.

        Raises ClickException for a command whose extra is not installed. Shell completion gets None
        for it, as for a command that does not exist.
        """
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        if cmd_name in self.extras and not self._is_command_installed(cmd_name):
            if ctx.resilient_parsing:
                return None
            raise click.ClickException(f"{cmd_name} is not installed: {self.extras[cmd_name]}")
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        if cmd_name in self.subcommands:
            assert isinstance(command, LazyCommandGroup)
            return command.extend(self.subcommands[cmd_name])
        return command

    def extend(self, rows: Mapping[str, tuple[str, str]]) -> "LazyCommandGroup":
        """Return this group with more rows in its table."""
        extended = copy(self)
        extended.table = {**self.table, **rows}
        return extended

    def _is_command_installed(self, command: str) -> bool:
        from importlib.util import find_spec

        package = self.table[command][0].rpartition(".")[0]
        return find_spec(package) is not None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its words of today or an old alias of them.

        Raises UsageError for a mistyped command, with the nearest ones.
        """
        args = self._replace_command_alias(args)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from hpctl.toolkit.output import suggest_similar_names

            known = self.list_commands(ctx)
            hint = suggest_similar_names(args[0], known, f"see {ctx.command_path} --help", n=2)
            raise click.UsageError(f"{error.message} {hint[0].upper()}{hint[1:]}", ctx) from None

    def _replace_command_alias(self, args: list[str]) -> list[str]:
        """The longest alias that the words begin with gives way to the words of today."""
        most = max((alias.count(" ") + 1 for alias in self.aliases), default=0)
        for length in range(most, 0, -1):
            today = self.aliases.get(" ".join(args[:length]))
            if today is not None and len(args) >= length:
                return [*today.split(), *args[length:]]
        return args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the table's own helps: asking each command for its help would import it."""
        helps = {name: text for name, (_, text) in self.table.items()}
        helps |= {name: each.get_short_help_str(80) for name, each in sorted(self.commands.items())}
        for title, names in (self.sections or {"Commands": helps}).items():
            with formatter.section(title):
                # A room that was removed takes its commands along.
                formatter.write_dl([(name, helps[name]) for name in names if name in helps])
