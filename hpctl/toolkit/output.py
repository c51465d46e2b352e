"""What every command shares: its options, its exit codes, and how a view becomes output.

A view is a frozen struct whose fields are the stable JSON contract (docs/cli-json.md); the
human text is made from the same view, so the two cannot tell different stories.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar, overload

import click

from hpctl.toolkit.bounds import (
    add_seconds_within_bounds,
    convert_to_utc,
    escape_json_for_terminal,
    make_printable,
    parse_duration,
)
from hpctl.toolkit.compat import UTC, parse_iso_time
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.interrupts import is_ctrl_c_abort

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.toolkit.declared_view import DeclaredView


DEFAULT_CONFIG = "/etc/hpctl/hpctl.yaml"


DRY_RUN = "Dry run: nothing was done."
"""The last line of every `--dry-run`."""


NOT_CONFIRMED = "Not confirmed, so nothing was done (--yes confirms beforehand)."
"""The last line where a question was not answered with yes."""


F = TypeVar("F", bound=Callable[..., Any])


V = TypeVar("V")


class ExitCode(IntEnum):
    """What the exit code of every command means."""

    FINE = 0
    PROBLEM = 1
    USAGE = 2
    CANNOT_TELL = 3


def combine_click_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""
    return lambda command: functools.reduce(lambda f, option: option(f), reversed(options), command)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (docs/cli-json.md)."
)


json_anyway_option = click.option(
    "--json", "as_json", is_flag=True, help="Changes nothing: it prints JSON anyway."
)


config_option = click.option(
    "--config",
    "config",
    metavar="PATH",
    envvar="HPCTL_CONFIG",
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="The daemon's configuration file.",
)


def get_current_utc_time() -> datetime:
    """Return the wall clock; the only one that read commands look at."""
    return datetime.now(UTC)


def format_view_json(schema: str, view: object) -> str:
    """Return a view as the documented JSON object: `schema` first, times ISO 8601 in UTC."""
    import msgspec

    body = {"schema": f"hpctl.{schema}/1", **msgspec.to_builtins(view, str_keys=True)}
    return escape_json_for_terminal(
        msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
    )


@overload
def show_view(schema: str, view: DeclaredView, as_json: bool) -> None: ...


@overload
def show_view(schema: str, view: V, as_json: bool, draw: Callable[[Console, V], None]) -> None: ...


def show_view(
    schema: str, view: Any, as_json: bool, draw: Callable[[Console, Any], None] | None = None
) -> None:
    """Print a view: as JSON, or as text on a console as wide as the terminal.

    The text is what the view declares (`hpctl.toolkit.declared_view`); `draw` is for the few views
    whose text is not made of facts, tables and lines.
    """
    if as_json:
        echo(format_view_json(schema, view))
    else:
        _draw_view_on_console(make_console(), draw or draw_declared_view, view)


def draw_value_on_stderr(draw: Callable[[Console, V], None], value: V) -> None:
    """Draw where questions are asked: standard output is for the result."""
    # As wide as the result, so that both read alike.
    _draw_view_on_console(make_console(err=True, width=make_console().width), draw, value)


def draw_declared_view(out: Console, view: DeclaredView) -> None:
    """Draw a view as it declares itself; rich is imported here."""
    from hpctl.toolkit.view_drawing import draw_view

    draw_view(out, view)


def _draw_view_on_console(on: Console, draw: Callable[[Console, V], None], value: V) -> None:
    with on.capture() as drawn:
        draw(on, value)
    # rich fills table cells up with blanks, which are noise in a log or a mail.
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    click.echo("\n".join(lines), err=on.stderr, color=on.is_terminal, nl=bool(lines))


def make_console(*, err: bool = False, width: int | None = None) -> Console:
    """Standard output, or standard error, for rich: colours on a terminal only, `COLUMNS` respected
    on standard output. Whatever text is drawn on it is cleaned."""
    if err:
        return _make_sanitizing_console_class()(stderr=True, width=width)
    out = sys.stdout
    wide = os.environ.get("COLUMNS", "")
    # Where nothing says how wide the reader's screen is, 80 would cut what `grep` looks for.
    width = int(wide) if wide.isdecimal() else (None if out.isatty() else 200)
    return _make_sanitizing_console_class()(file=out, width=width)


@functools.cache
def _make_sanitizing_console_class() -> type[Console]:
    """Return a Console that writes no escape sequences but its own: whatever text is drawn on
    it, users' words among it, passes through `make_printable` here."""
    from rich.console import Console
    from rich.segment import Segment

    class SanitizingConsole(Console):
        def __init__(self, **how: Any) -> None:
            # Text is data: brackets and colons in it mean nothing.
            super().__init__(markup=False, highlight=False, emoji=False, **how)

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else make_printable(text, lines=True), style, control)

    return SanitizingConsole


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, cleaned of what a terminal obeys: a part of it may be what others wrote."""
    click.echo(make_printable(text, lines=True), err=err, nl=nl)


def print_exact_text(text: str, *, nl: bool = True) -> None:
    """Print what a program reads, as a path: to a program byte by byte, to a terminal cleaned."""
    if sys.stdout.isatty():
        echo(text, nl=nl)
    else:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=nl)


def confirm(question: str, *, abort: bool = False) -> bool:
    """Ask yes or no on standard error.

    With `abort`, leaves with exit code 1 unless the answer is yes, also where the input has ended.
    Raises click.Abort for Ctrl-C, and without `abort` for an input that has ended.
    """
    try:
        return click.confirm(make_printable(question, lines=True), abort=abort, err=True)
    except click.Abort as aborted:
        if not abort or is_ctrl_c_abort(aborted):
            raise
        echo("\n" + NOT_CONFIRMED, err=True)
        raise click.exceptions.Exit(ExitCode.PROBLEM) from None


def prompt(question: str, **how: Any) -> Any:
    """Ask for a word on standard error, see click.prompt. Raises click.Abort."""
    return click.prompt(make_printable(question, lines=True), err=True, **how)


def wrap_text_to_screen(text: str, more: int = 0) -> str:
    """Return text broken between words where the reader's screen ends; `more` letters follow its
    end."""
    from textwrap import wrap

    return "\n".join(
        wrap(
            text + "\0" * more, make_console().width, break_long_words=False, break_on_hyphens=False
        )
    ).rstrip("\0")


def choose_worst_exit_code(verdicts: Iterable[str]) -> ExitCode:
    """Return the worst exit: a failure outweighs an unknown; warnings and notes only are fine."""
    found = set(verdicts)
    if "fail" in found:
        return ExitCode.PROBLEM
    return ExitCode.CANNOT_TELL if "unknown" in found else ExitCode.FINE


def exit_with_code(code: ExitCode) -> None:
    """End the command with its exit code; plain success just returns."""
    if code is not ExitCode.FINE:
        raise click.exceptions.Exit(code)


class PastTimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in the past: `30min`, `12h`, `7d`, or ISO 8601 (UTC where no offset is given)."""

    name = "since"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the moment meant. Fails with exit code 2 and examples."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        ago = None if text[-1:].isdecimal() else parse_duration(text)
        if ago is not None:
            return get_current_utc_time() - timedelta(seconds=ago)
        try:
            at = parse_iso_time(text)
        except ValueError:
            self.fail(
                f"{text!r} is no time: write 30min, 12h, 7d or 2026-01-31T12:00:00Z", param, ctx
            )
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


class FutureTimeType(click.ParamType):  # type: ignore[type-arg]
    """A time to come: `+30min`, `+2h`, or ISO 8601 (UTC where no offset is given)."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the moment meant. Fails with exit code 2 and examples."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        if text == "now":
            return get_current_utc_time()
        after = parse_duration(text[1:]) if text[:1] == "+" and not text[-1:].isdecimal() else None
        if after is not None:
            return add_seconds_within_bounds(get_current_utc_time(), after)
        try:
            at = parse_iso_time(text)
        except ValueError:
            self.fail(f"{text!r} is no time: write +2h, or 2026-01-31T12:00:00Z", param, ctx)
        return convert_to_utc(at)


def suggest_similar_names(name: str, known: Iterable[str], otherwise: str, *, n: int = 3) -> str:
    """`did you mean a or b?`, of what there is; `otherwise` where nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, [*known], n=n)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def make_not_found_error(what: str, name: str, known: Iterable[str]) -> HpctlError:
    """Return the error for a name that nothing has, with the nearest ones that something has."""
    hint = suggest_similar_names(name, known, f"Run `hpctl {what}` to see the names.")
    return HpctlError(f"`hpctl {what}` lists no {name!r}", hint)
