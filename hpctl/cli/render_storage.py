"""How `hpctl storage` is shown to people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.output import DRY_RUN, console
from hpctl.cli.render import columns, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.storage.link import LinkView
    from hpctl.cli.storage.ls import LinksView
    from hpctl.cli.storage.lustre import Preload
    from hpctl.clusters.storage import Link

WIDE = 120
"""From so many columns on a table shows what else there is."""


def link(out: Console, view: LinkView) -> None:
    """What is linked to what, and what that means for the first reader."""
    one = view.link
    what = f"{one.file_system}{one.path} to {one.s3}"
    if view.dry_run and not one.id:
        out.print(Text(f"Would link {what}"))
        out.print(Text(DRY_RUN))
        return
    said = "linked" if view.made else "was linked already"
    out.print(Text(f"{one.id}: {what} {said}, {one.lifecycle}"))
    if one.why:
        out.print(Text(f"  {one.why}"))
    if one.lifecycle == "AVAILABLE":
        out.print(
            Text(
                "The names are there; contents come from S3 at the first read."
                f" Load them ahead: hpctl storage preload MOUNT{one.path}"
            )
        )
    elif not one.settled:
        out.print(Text(f"It goes on by itself: hpctl storage ls {one.file_system}"))
    if view.dry_run:
        out.print(Text(DRY_RUN))


def links(out: Console, view: LinksView) -> None:
    """One row a link."""
    if not view.links:
        which = view.file_system or "No file system here"
        linked = "is not linked to S3" if view.file_system else "is linked to S3"
        out.print(Text(f"{which} {linked}."))
        return
    more = ("IMPORT", "EXPORT", "ID") if out.width >= WIDE else ()
    rows = columns("FILE SYSTEM", "PATH", wrapped("S3"), "STATE", *more)
    for one in view.links:
        cells: list[str | Text] = [one.file_system, Text(one.path), Text(one.s3), one.lifecycle]
        if more:
            cells += [_events(one.auto_import), _events(one.auto_export), one.id]
        rows.add_row(*cells)
    out.print(rows)
    for one in view.links:
        if one.why:
            out.print(Text(f"{_named(one)}: {one.why}"))


def preloaded(out: Console, view: Preload) -> None:
    """How much was loaded, and what was not."""
    loaded = f"{view.loaded} loaded ({size(view.loaded_bytes)})"
    here = view.files - view.released
    out.print(Text(f"{view.path}: {view.files} files, {here} were here, {loaded}"))
    left = view.released - view.loaded - len(view.failed)
    if left:
        out.print(Text(f"{left} are in S3 alone"))
    for name, why in view.failed:
        out.print(Text(f"  {name}: {why}"), soft_wrap=True)


def follow(looks: Iterator[Preload], *, quiet: bool) -> Preload:
    """Go through the looks under a bar on standard error; the last one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    err = console(err=True)
    bar = Progress(
        TextColumn("loading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loaded]}"),
        Left(),
        console=err,
        disable=quiet or not err.is_terminal,
    )
    last = next(looks)
    with bar:
        task = bar.add_task("", total=last.released, loaded="")
        for last in looks:
            done = last.loaded + len(last.failed)
            bar.update(task, completed=done, loaded=size(last.loaded_bytes))
    return last


def size(count: int) -> str:
    """`3 B`, `1.5 GiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _events(events: tuple[str, ...]) -> str:
    return ",".join(event.lower() for event in events) or "-"


def _named(one: Link) -> str:
    return f"{one.file_system}{one.path} ({one.id})"
