"""Lengths of time on the command line: one way to write them for every command."""

from __future__ import annotations

import re

import click

_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w|)")
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds_of(text: str) -> float | None:
    """`90`, `90s`, `30min`, `1.5h`, `1d`, `2w` in seconds; None for anything else."""
    match = _TEXT.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A length of time, such as `90s`, `30min` or `3h`; in seconds. A bare number is seconds."""

    name = "duration"

    def __init__(self, least: str = "0s", most: str = "") -> None:
        self._least, self._most = least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds. Fails with exit code 2, examples and the bounds."""
        found = float(value) if isinstance(value, int | float) else seconds_of(str(value))
        least, most = seconds_of(self._least) or 0.0, seconds_of(self._most)
        if found is None:
            self.fail(f"{value!r} is no duration: write 90s, 30min or 3h", param, ctx)
        if found < least or (most is not None and found > most):
            bounds = (
                f"from {self._least} to {self._most}" if self._most else f"{self._least} or more"
            )
            self.fail(f"{value!r} is out of bounds: {bounds}", param, ctx)
        return found
