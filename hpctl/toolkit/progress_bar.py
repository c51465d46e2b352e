"""The bar that shows how far a transfer of bytes is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpctl.toolkit import output


@contextmanager
def show_transfer_progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr, where that is a terminal; yield what takes it further: the
    bytes that have come since the last call, and of how many. None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars

    with bars.Progress(
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
        console=output.make_console(err=True),
        transient=True,
    ) as shown:
        task = shown.add_task("")

        def update_bar(done: int, total: int) -> None:
            shown.update(task, advance=done, total=total)

        yield update_bar
