"""Checkpoints as text and as JSON: one shape for every subcommand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from hpctl.cli import output
from hpctl.jobs.checkpoints.search import Checkpoint, PassedOver, Search


@dataclass(frozen=True, slots=True)
class RowView:
    """One checkpoint, or one that is none; docs/cli-json.md says what each field means."""

    path: str
    complete: bool | None
    step: int | None
    world_size: int | None
    format: str | None
    digests_checked: bool
    claimed: bool
    why: str
    fetched_from: str


@dataclass(frozen=True, slots=True)
class UnseenView:
    """A place that could not be looked at."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class LsView:
    """What `hpctl checkpoint ls` and `verify` found. `why`: nothing could be looked at."""

    place: str
    checkpoints: tuple[RowView, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class LastView:
    """What `hpctl checkpoint last` found."""

    verdict: str
    found: RowView | None
    passed_over: tuple[RowView, ...]
    unseen: tuple[UnseenView, ...]


def row(each: Checkpoint | PassedOver) -> RowView:
    """One of them."""
    if isinstance(each, Checkpoint):
        origin = str(each.origin) if each.origin else ""
        return RowView(
            str(each.path),
            True,
            each.step,
            each.world_size,
            each.format,
            each.deep,
            True,
            "",
            origin,
        )
    complete = None if each.unreadable else False
    return RowView(
        str(each.path), complete, None, None, each.format, False, each.claimed, str(each.why), ""
    )


def search(result: Search) -> LastView:
    """A whole search."""
    return LastView(
        result.verdict,
        row(result.found) if result.found else None,
        tuple(row(each) for each in result.passed_over),
        tuple(UnseenView(str(each.place), str(each.why)) for each in result.unseen),
    )


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, where somebody watches it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(err=True), transient=True) as shown:
        task = shown.add_task("")

        def progress(done: int, total: int) -> None:
            shown.update(task, advance=done, total=total)

        yield progress


def text(each: Checkpoint | PassedOver, *, deep: bool) -> str:
    """The same in one line."""
    if isinstance(each, Checkpoint):
        how = "digests match" if each.deep else "sizes match"
        if deep and not each.deep:
            how += "; the format has no digests"
        step = "step unknown" if each.step is None else f"step {each.step}"
        ranks = "" if each.world_size is None else f"{each.world_size} ranks  "
        return f"{each.path}  {step}  {ranks}{each.format}  complete ({how})"
    if each.holds:
        return f"{each.path}  {each.why}"
    form = f"{each.format}  " if each.format else ""
    return f"{each.path}  {form}{'unreadable' if each.unreadable else 'not complete'}: {each.why}"


def code(rows: list[Checkpoint | PassedOver]) -> int:
    """0: one is whole; 3: none, and some cannot be read; 1: none."""
    if any(isinstance(each, Checkpoint) for each in rows):
        return 0
    return 3 if any(isinstance(each, PassedOver) and each.unreadable for each in rows) else 1


def print_json(schema: str, view: object) -> None:
    """A document on stdout."""
    output.echo(output.to_json(schema, view))


def cannot_read(place: str, why: str, schema: str | None) -> NoReturn:
    """Not being able to look is exit code 3, never "none". `schema`: JSON is wanted."""
    if schema:
        print_json(schema, LsView(place, (), why))
    else:
        output.echo(f"hpctl: {why}", err=True)
    sys.exit(3)
