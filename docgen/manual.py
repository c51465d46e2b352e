"""docs/man: the manual pages, one of hpctl and one of each of its commands, from the commands.

A page of a group holds all commands of the group. What is a separate distribution has none.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

import click

from hpctl import __version__
from hpctl.cli.help_command import list_leaf_commands, make_command_context
from hpctl.cli.main import COMMANDS, EXTRAS, RARE, SECTIONS, START, cli

EXITS = """\
.SH EXIT STATUS
0: fine. 1: a problem was found, or the command was refused or failed. 2: wrong usage.
3: cannot tell, or in doubt. 130: interrupted.
"""
FILES = """\
.SH FILES
.TP
.I /etc/hpctl/hpctl.yaml
The daemon\\(aqs configuration;
.B hpctl config show
prints what is in effect.
.SH ENVIRONMENT
.TP
.B HPCTL_CONFIG
Another configuration file.
"""


def list_pages() -> Mapping[str, str]:
    """Return every page by its file's name. Raises ValueError for a command without a help."""
    root = click.Context(cli, info_name="hpctl", **cli.context_settings)
    names = [name for name in COMMANDS if name not in EXTRAS]
    found = {"hpctl.1": "\n".join(_describe_program(root, names)) + "\n"}
    for name in names:
        command = cli.get_command(root, name)
        assert command is not None
        context = make_command_context(root, name, command)
        found[f"hpctl-{name}.1"] = "\n".join(_describe_page(context)) + "\n"
    return found


def _describe_program(root: click.Context, names: Sequence[str]) -> Iterator[str]:
    yield _make_title("hpctl")
    yield from (".SH NAME", f"hpctl \\- {_escape_troff(_first_line(root.command))}")
    yield from (".SH SYNOPSIS", ".B hpctl", _escape_troff(" ".join(_format_usage(root))))
    yield from (".SH DESCRIPTION", *_format_help(root.command))
    for words, text in START.items():
        yield from _format_item(f"\\fB{_escape_troff(words)}\\fR", text)
    yield from (".SH OPTIONS", *_format_options(root))
    for title, section in (*SECTIONS.items(), ("More", RARE)):
        yield f'.SH "{title.upper()}"'
        for name, (_, text) in section.items():
            yield from _format_item(f"\\fB{_escape_troff(name)}\\fR", text)
    yield EXITS + FILES.rstrip("\n")
    *others, last = [f".BR {_escape_troff(f'hpctl-{name}')} (1)" for name in names]
    yield from (".SH SEE ALSO", *(f"{other}," for other in others), last)


def _describe_page(context: click.Context) -> Iterator[str]:
    name = context.command_path.replace(" ", "-")
    yield _make_title(name)
    yield from (
        ".SH NAME",
        f"{_escape_troff(name)} \\- {_escape_troff(_first_line(context.command))}",
    )
    leaves = list(list_leaf_commands(context))
    yield ".SH SYNOPSIS"
    for number, leaf in enumerate(leaves):
        yield from ([".br"] if number else [])
        yield from (
            f".B {_escape_troff(leaf.command_path)}",
            _escape_troff(" ".join(_format_usage(leaf))),
        )
    yield from (".SH DESCRIPTION", *_format_help(context.command))
    if leaves == [context]:
        options = list(_format_options(context))
        yield from ([".SH OPTIONS", *options] if options else ())
    else:
        yield ".SH COMMANDS"
        for leaf in leaves:
            yield f'.SS "{_escape_troff(leaf.command_path)}"'
            yield from (
                *(_format_help(leaf.command) if leaf is not context else ()),
                *_format_options(leaf),
            )
    yield EXITS.rstrip("\n")
    yield from (".SH SEE ALSO", ".BR hpctl (1)")


def _make_title(name: str) -> str:
    return f'.TH "{_escape_troff(name.upper())}" "1" "" "hpctl {__version__}" "hpctl manual"'


def _format_usage(context: click.Context) -> list[str]:
    return context.command.collect_usage_pieces(context)


def _first_line(command: click.Command) -> str:
    if not command.help:
        raise ValueError(f"{command.name} has no help")
    return command.get_short_help_str(200).rstrip(".")


def _format_help(command: click.Command) -> Iterator[str]:
    """Yield the help's paragraphs; those that click leaves as they are keep their lines."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield from (".PP", ".nf", *(_escape_troff(line) for line in lines[1:]), ".fi")
        elif paragraph.strip():
            yield from (".PP", _mark_code(_escape_troff(" ".join(lines))))


def _format_options(context: click.Context) -> Iterator[str]:
    """Yield the options; `--help` is said of hpctl alone."""
    is_program = context.parent is None
    for option in context.command.get_params(context) if is_program else context.command.params:
        if isinstance(option, click.Option) and not option.hidden:
            record = option.get_help_record(context)
            assert record is not None
            yield from _format_item(f"\\fB{_escape_troff(record[0])}\\fR", record[1])


def _format_item(head: str, text: str) -> Iterator[str]:
    yield from (".TP", head, _mark_code(_escape_troff(" ".join(text.split()))))


def _mark_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)


def _escape_troff(text: str) -> str:
    """Return text of which troff takes nothing for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("'", "\\(aq")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith(".") else text
