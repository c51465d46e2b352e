"""No text view lets a terminal obey what others wrote, whichever of its fields they wrote it in."""

import re

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobReported, RequestTaken
from hpctl.toolkit import output
from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import DeviceVerdict, Finding
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.cli import worlds
from tests.cli.test_golden import COMMANDS
from tests.cli.test_json_contract import SHOWS

pytestmark = pytest.mark.integration

EVIL = "\x1b]0;owned\x07\x9b31m\u202egnp\r\x1b[2J"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
GOLDEN = [line for fixture, _, line in COMMANDS.values() if fixture == "history"]
VIEWS = sorted({*GOLDEN, *(line for lines in SHOWS.values() for line in lines)})


def hostile(value):
    """The value with every text in it ending in what terminals obey."""
    if isinstance(value, str) and not isinstance(value, StrEnum):
        return value + EVIL if re.search(r"[ .:/-]", value) else value
    if isinstance(value, Struct):
        changes = {n: hostile(getattr(value, n)) for n in value.__struct_fields__}
        return replace(value, **changes)
    if isinstance(value, tuple | list):
        return type(value)(map(hostile, value)) if not hasattr(value, "_fields") else value
    if isinstance(value, dict):
        return {name: hostile(one) for name, one in value.items()}
    return value


@pytest.mark.parametrize("line", VIEWS)
def test_no_field_of_a_view_is_obeyed(history, line, monkeypatch):
    draw = output._draw_view_on_console
    monkeypatch.setattr(
        output, "_draw_view_on_console", lambda on, how, view: draw(on, how, hostile(view))
    )
    real = click.echo
    lines: list[str] = []

    def echo(message=None, *args, **options) -> None:
        lines.append(str(message))
        real(message, *args, **options)

    # What click is given: it takes some escape sequences out where no terminal reads.
    monkeypatch.setattr(click, "echo", echo)
    result = history.run(*line.split(), width=200)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert lines
    assert not OBEYED.search("".join(lines))


def test_no_word_of_the_journal_is_obeyed(head):
    trouble = Trouble(
        TroubleKind.CRASH, worlds.at(2), "why" + EVIL, "s" + EVIL, evidence="e" + EVIL
    )
    text = JobReport(4545, 0, trouble, why="told" + EVIL)
    args = [
        GateBlocked(worlds.at(1), "ip-10-1-0-5", "paused", "held" + EVIL, "xid-79"),
        JobReported(worlds.at(2), text, 1000),
        RequestTaken(worlds.at(3), 7, "pause", "", "eve" + EVIL, "done" + EVIL, True),
    ]
    head.write(worlds.healed(), worlds.troubled(), args)
    for line in ("status", "jobs --all", "recoveries --all", "explain 4545", "journal audit"):
        for more in ((), ("--json",)):
            assert not OBEYED.search(head.run(*line.split(), *more, width=200).stdout)


def test_no_error_is_obeyed():
    @click.command()
    @click.argument("name")
    def one(name: str) -> None:
        raise click.ClickException(name) if name.startswith("x") else click.UsageError(name)

    group = LazyCommandGroup("hpctl", table={"one": ("", "")})
    group.get_command = lambda *_: one
    for word in ("x" + EVIL, "y" + EVIL):
        result = CliRunner().invoke(group, ["one", word], color=True)
        assert word[0] in result.output
        assert not OBEYED.search(result.output)
    assert not OBEYED.search(CliRunner().invoke(group, ["one", "--x" + EVIL], color=True).output)


def test_neither_echo_nor_questions_are_obeyed():
    @click.command()
    def ask() -> None:
        output.echo(EVIL)
        output.print_exact_text("/a/path\x1b[2J")
        output.confirm("Delete " + EVIL)
        output.prompt("Type " + EVIL)

    result = CliRunner().invoke(ask, input="y\nx\n", color=True)
    # Who reads a path by program gets it byte by byte.
    assert "/a/path\x1b[2J\n" in result.output
    assert not OBEYED.search(result.output.replace("/a/path\x1b[2J", ""))


@pytest.mark.parametrize(("answer", "code"), [("", 1), ("n\n", 1), ("y\n", 0)])
def test_a_question_that_is_not_answered_with_yes_says_what_confirms(answer, code):
    @click.command()
    def ask() -> None:
        output.confirm("Replace one node?", abort=True)

    result = CliRunner().invoke(ask, input=answer)
    assert result.exit_code == code
    assert (output.NOT_CONFIRMED in result.output) is bool(code)


def test_what_is_kept_of_findings_and_troubles_is_clean():
    at = worlds.T0
    found = Finding("kernel.xid", DeviceVerdict.FAIL, at, at, EVIL, EVIL, EVIL, "a\nb\t" + EVIL)
    assert found.evidence.startswith("a\nb\t")
    assert not OBEYED.search(found.device + found.code + found.detail + found.evidence)
