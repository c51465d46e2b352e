"""Every command is there, has a help, and is written about."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hpctl.cli.main import ALIASES, COMMANDS, RARE, SECTIONS, START, SUBCOMMANDS, cli
from tests.architecture.source import text, tracked


def load(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def walk(name, command):
    """A command and its visible subcommands, each with the words that call it."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            if not found.hidden:
                yield from walk(f"{name} {child}", found)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says_of_itself(name: str) -> None:
    assert load(name).get_short_help_str(limit=1000) == COMMANDS[name][1]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, rows in SUBCOMMANDS.items() for name in rows]
)
def test_the_rows_added_to_a_group_say_what_the_commands_say(group: str, name: str) -> None:
    command = load(group)
    assert isinstance(command, click.Group)
    found = command.get_command(click.Context(command), name)
    assert found is not None
    assert found.get_short_help_str(limit=1000) == SUBCOMMANDS[group][name][1]


MOST = 36
"""So many commands a person can choose from at most, under five headings."""


def test_the_help_has_every_command_of_the_short_list_once_under_its_heading() -> None:
    shown = cli.get_help(click.Context(cli, info_name="hpctl", terminal_width=100))
    headings = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Start here", "Options", "Watch", "Act", "Jobs", "Cluster", "Setup"]
    assert list(SECTIONS) == headings[2:]
    listed = [line.split()[0] for line in shown.partition("Watch:")[2].splitlines() if line]
    commands = [word for word in listed if word in COMMANDS]
    assert commands == [name for rows in SECTIONS.values() for name in rows]
    assert len(commands) == len(set(commands)) <= MOST
    assert not set(commands) & RARE.keys()


def test_the_help_begins_with_what_says_what_is_wrong_and_why() -> None:
    shown = cli.get_help(click.Context(cli, info_name="hpctl", terminal_width=80))
    first = shown.partition("Options:")[0].splitlines()
    commands = [line.split("  ")[1] for line in first if line.startswith("  hpctl ")]
    assert commands == [*START][:3] == ["hpctl status", "hpctl explain NODE", "hpctl help COMMAND"]


def follow(words: list[str]) -> click.Command:
    """The command that words lead to, as from the shell."""
    command: click.Command = cli
    while words:
        assert isinstance(command, click.Group)
        _, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
    return command


OLD = {
    "return": "undrain",
    "accept": "acceptance",
    "progress": "checkpoint progress",
    "logs": "policy",
    "logs test": "policy test-logs",
    "logs preset": "policy log-rules",
    "capacity": "cluster capacity",
    "autoscale": "cluster autoscale",
    "forecast": "cluster forecast",
    "iam": "cluster iam",
    "lifecycle": "cluster lifecycle",
    "storage": "cluster storage",
    "audit": "journal audit",
    "failover": "daemon failover",
    "triage": "agent triage",
    "cluster nodes": "cluster instances",
}
"""What scripts may call for good, and what that is today."""


def test_no_earlier_name_is_forgotten() -> None:
    assert OLD.keys() == {*ALIASES, "cluster nodes"}


@pytest.mark.parametrize("old", OLD)
def test_an_earlier_name_is_the_command_of_today_and_is_not_listed(old: str) -> None:
    today = follow(OLD[old].split())
    assert follow(old.split()).callback is today.callback
    parent, name = (cli, old.split()[0]) if old in ALIASES else (follow(["cluster"]), "nodes")
    assert isinstance(parent, click.Group)
    assert name not in parent.list_commands(click.Context(parent))


CALL = re.compile(rf"(?<![\w./-])hpctl ({'|'.join(sorted(OLD, key=len, reverse=True))})(?![-\w:])")
TELLS = ("hpctl/", "docs/", "docgen/", "lifecycle_scripts/", "slurm_plugins/", "README.md")
IS_NO_CALL = ("hpctl audit trail 1", "docs/adr/0103-")


def test_texts_call_commands_by_their_names_of_today() -> None:
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in tracked()
        if str(path).startswith(TELLS)
        for number, line in _lines_and_strings(path)
        if CALL.search(line) and not any(one in f"{path} {line}" for one in IS_NO_CALL)
    ]
    assert wrong == []


def _lines_and_strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line, and of Python each string whole: a command may be split between lines."""
    yield from enumerate(text(path).splitlines(), 1)
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


PROSE = "\n".join(text(path) for path in tracked() if path.suffix == ".md")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help_and_every_command_is_written_about(name: str) -> None:
    wrong = []
    for words, command in walk(name, load(name)):
        options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        wrong += [f"{words} {option.opts[-1]}: no help" for option in options if not option.help]
        if not command.help or not re.search(rf"(hpctl |\*\*`){words}\b", PROSE):
            wrong.append(f"{words}: no help, or no page has it")
        if isinstance(command, click.Group):
            # click leaves two columns of a terminal's 80 free.
            shown = command.get_help(click.Context(command, info_name=words, terminal_width=78))
            listed = shown.partition("Commands:")[2].splitlines()
            wrong += [f"{words}: cut off: {line}" for line in listed if line.endswith("...")]
    assert wrong == []
