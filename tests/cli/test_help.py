"""`hpctl help`: the help of a command by its names of today and earlier, and every command."""

import os

import click
import pytest
from click.testing import CliRunner

from hpctl.cli.main import ALIASES, SECTIONS, cli
from tests.fakes.command_line import run

pytestmark = pytest.mark.integration


def leaves(command, words):
    """The words of everything that can be run."""
    if not isinstance(command, click.Group):
        yield words
        return
    context = click.Context(command)
    if command.invoke_without_command:
        yield words
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        if not found.hidden:
            yield from leaves(found, f"{words} {name}")


def test_help_all_lists_every_command_and_no_earlier_name():
    result = run("help", "--all", width=100)
    assert result.exit_code == 0, result.output
    listed = {line.split("  ")[1] for line in result.stdout.splitlines() if line[:8] == "  hpctl "}
    assert listed == set(leaves(cli, "hpctl"))
    headings = [line[:-1] for line in result.stdout.splitlines() if line[:1].isalpha()]
    assert headings == [*SECTIONS, "More"]
    assert not listed & {f"hpctl {old}" for old in ALIASES}


@pytest.mark.parametrize(
    "words",
    [(), ("status",), ("cluster", "scale"), ("cluster", "instances"), ("checkpoint",), ("sbatch",)],
)
def test_help_of_a_command_is_what_the_command_prints(words):
    assert run("help", *words).stdout == run(*words, "--help").stdout


@pytest.mark.parametrize("old", [*ALIASES, "cluster nodes"])
def test_help_understands_earlier_names(old):
    result = run("help", *old.split())
    today = ALIASES.get(old, "cluster instances")
    assert result.stdout.startswith(f"Usage: hpctl {today} ")
    assert run(*old.split(), "--help").stdout == result.stdout


def test_help_all_of_a_group_lists_its_commands_alone():
    lines = run("help", "--all", "cluster", "capacity").stdout.splitlines()
    listed = [line.split("  ")[1] for line in lines if line.startswith("  hpctl ")]
    assert listed == ["hpctl cluster capacity", "hpctl cluster capacity plans"]


@pytest.mark.parametrize("words", [("sttus",), ("cluster", "scal"), ("status", "more")])
def test_help_of_what_is_no_command_is_a_usage_error(words):
    result = run("help", *words)
    assert (result.exit_code, result.stdout) == (2, "")


def test_help_completes_the_names_of_commands():
    env = {"_HPCTL_COMPLETE": "bash_complete", "COMP_WORDS": "hpctl help cluster inst"}
    env["COMP_CWORD"] = "3"
    assert CliRunner(env=env).invoke(cli, [], prog_name="hpctl").stdout == "plain,instances\n"


def test_earlier_names_are_not_completed():
    env = {**os.environ, "_HPCTL_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    for start in ("retu", "accept", "audi"):
        ran = CliRunner(env={**env, "COMP_WORDS": f"hpctl {start}"}).invoke(cli, [])
        assert {line.partition(",")[2] for line in ran.stdout.split()} <= {"acceptance"}


def test_an_option_of_an_earlier_name_still_counts(history):
    """Scripts that call a command by its earlier name get the same JSON."""
    for old, today in (("audit", "journal audit"), ("cluster nodes", "cluster instances")):
        before = history.run(*old.split(), "--json")
        assert before.exit_code == 0
        assert before.stdout == history.run(*today.split(), "--json").stdout
        assert before.stderr == ""
