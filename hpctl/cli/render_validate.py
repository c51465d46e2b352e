"""How `hpctl cluster validate` is shown to people."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, zip_longest
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.padding import Padding
from rich.text import Text

from hpctl.cli.render import DIM, word

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.cluster.validate import ValidateView, VerdictView

_COLOURS = {"OK": "ok", "UNKNOWN": "unknown", "WARN": "warn", "FAIL": "fail"}
_SHOWN = {"OK": "ok", "UNKNOWN": "CANNOT TELL", "WARN": "WARN", "FAIL": "FAIL"}


class Gathering:
    """One line on a terminal that says what is awaited; nothing anywhere else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out if out.isatty() else None

    def __enter__(self) -> Gathering:
        self._say("asking AWS ...")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say("")

    def told(self, part: str, done: int, parts: int) -> None:
        """A part has answered."""
        self._say(f"asking AWS: {done} of {parts} ({part})")

    def _say(self, text: str) -> None:
        if self._out:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()


def verdicts(out: Console, view: ValidateView, verbose: bool) -> None:
    """A paragraph for each family that has something to say, then the sum."""
    reasons: set[tuple[str, str]] = set()
    for family, group in groupby(view.verdicts, key=lambda v: v.family):
        found = list(group)
        worth = found if verbose else [v for v in found if v.level != "OK"]
        out.print(Text.assemble((family, "bold"), "  ", _sum(Counter(v.level for v in found))))
        for verdict, after in zip_longest(worth, worth[1:]):
            # One mend for several in a row stands below the last of them.
            mended = after is None or after.mend != verdict.mend
            _verdict(out, verdict, reasons, mended=mended)
    if view.verdicts:
        out.print()
    name = f"{view.file} ({view.cluster})" if view.cluster else view.file
    out.print(Text.assemble(f"{name}: ", _sum(Counter(view.counts)) or "nothing was checked"))
    if view.partial:
        out.print(Text("The rest was checked as far as the file can be read.", DIM))
    elif not view.cluster:
        out.print(Text("Everything else is checked once the file can be read.", DIM))
    elif view.offline:
        out.print(Text("Only what needs no credentials was checked (--offline).", DIM))


def _verdict(
    out: Console, verdict: VerdictView, reasons: set[tuple[str, str]], *, mended: bool
) -> None:
    """`reasons`: why checks before this one could not tell; each is told once."""
    head = Text.assemble(word(_COLOURS[verdict.level], _SHOWN[verdict.level]), f"  {verdict.check}")
    if verdict.place:
        head.append(f"  {verdict.place}")
    if verdict.line:
        head.append(f" (line {verdict.line})")
    out.print(Padding(head, (0, 0, 0, 2)))
    reason = (verdict.what.rpartition(": ")[2], verdict.mend)
    if verdict.level == "UNKNOWN" and reason in reasons:
        out.print(Padding(Text("for the same reason as above", DIM), (0, 0, 0, 6)))
        return
    reasons |= {reason} if verdict.level == "UNKNOWN" else set()
    out.print(Padding(Text(verdict.what), (0, 0, 0, 6)))
    shown = mended or verdict.level == "UNKNOWN"
    if shown and verdict.mend and verdict.level != "OK":
        out.print(Padding(Text(f"mend: {verdict.mend}", DIM), (0, 0, 0, 6)))


def _sum(counts: Counter[str]) -> Text:
    parts = [
        Text.assemble(f"{counts[level]} ", word(_COLOURS[level], _SHOWN[level]))
        for level in ("FAIL", "UNKNOWN", "WARN", "OK")
        if counts[level]
    ]
    return Text(", ").join(parts)
