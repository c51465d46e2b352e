"""A batch script as hpctl sees it: its leading comment block, and the place after it.

sbatch reads `#SBATCH` lines up to the first line that is neither blank nor a comment; `#HPCTL`
lines are read from the same block. What is put in goes right after it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from hpctl.errors import HpctlError
from hpctl.jobs import sbatch_options
from hpctl.jobs.sbatch_options import OptionValue, parse_command_line

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh"})
_HET = re.compile(r"\s*(hetjob|packjob)(\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A script's text and what its leading block asks for.

    `given` is its `#SBATCH` options by long name, `own` what its `#HPCTL` lines say, `late` the
    lines of `#HPCTL` that come after the first command, which nobody reads.
    """

    name: str
    lines: tuple[str, ...]
    block: int
    given: dict[str, str]
    own: dict[str, tuple[OptionValue, ...]]
    het: bool
    late: tuple[int, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.lines)

    @property
    def shell(self) -> str:
        """The interpreter's name in the `#!` line, seen through env; "" where there is none."""
        first = self.lines[0] if self.lines else ""
        if not first.startswith("#!"):
            return ""
        parts = [w.rpartition("/")[2] for w in first[2:].split()]
        if parts[:1] == ["env"]:
            parts = [w for w in parts[1:] if not w.startswith("-") and "=" not in w]
        return parts[0] if parts else ""

    def with_inserted(self, text: str) -> str:
        """The script with `text` put in before its first command."""
        head = "".join(self.lines[: self.block])
        if head and not head.endswith("\n"):
            head += "\n"
        return head + text + "".join(self.lines[self.block :])


def read(name: str, text: str) -> BatchScript:
    """Read a script. Raises HpctlError, with the line, for an `#HPCTL` line that means nothing."""
    # Not splitlines: it also breaks at a form feed, a lone \r or U+2028. In the middle of a comment
    # the rest of that line would become a command, and the #SBATCH lines below it be lost.
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    block = _block(lines)
    options: list[str] = []
    own: dict[str, tuple[OptionValue, ...]] = {}
    het = False
    for number, line in enumerate(lines[:block], start=1):
        if line.startswith("#SBATCH"):
            het = het or _HET.match(line[7:]) is not None
            options += _split(line[7:])
        elif line.startswith("#HPCTL"):
            for option, values in _directive(f"{name}:{number}", line[6:]).items():
                own[option] = (*own.get(option, ()), *values)
    return BatchScript(
        name=name,
        lines=tuple(lines),
        block=block,
        given=parse_command_line(options).given,
        own=own,
        het=het,
        late=tuple(
            number
            for number, line in enumerate(lines[block:], start=block + 1)
            if line.startswith("#HPCTL")
        ),
    )


def _block(lines: list[str]) -> int:
    for index, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return index
    return len(lines)


def _split(rest: str) -> list[str]:
    try:
        return shlex.split(rest, comments=True)
    except ValueError:
        return []  # an open quote: sbatch names file and line itself


def _directive(place: str, rest: str) -> dict[str, tuple[OptionValue, ...]]:
    try:
        options = shlex.split(rest, comments=True)
    except ValueError as error:
        raise HpctlError(
            f"{place}: #HPCTL{rest.rstrip()}: {error}", "Close the quotation mark."
        ) from None
    return sbatch_options.parse_directive(options, place)


def wrapped(command: str) -> BatchScript:
    """The script that sbatch itself makes of `--wrap` (src/sbatch/sbatch.c, script_wrap)."""
    text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"
    lines = tuple(text.splitlines(keepends=True))
    return BatchScript("wrap", lines, block=3, given={}, own={}, het=False, late=())
