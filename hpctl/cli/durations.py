"""Durations on the command line: one way to write them for every command."""

from __future__ import annotations

import click

from hpctl.core.bounds import duration_s


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A length of time, such as `90s`, `30min` or `3h`; in seconds. A bare number is seconds."""

    name = "duration"

    def __init__(self, least: str = "0s", most: str = "") -> None:
        self._least, self._most = least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds. Fails with exit code 2, examples and the bounds."""
        found = float(value) if isinstance(value, int | float) else duration_s(str(value))
        least, most = duration_s(self._least) or 0.0, duration_s(self._most)
        if found is None:
            self.fail(f"{value!r} is no duration: write 90s, 30min or 3h", param, ctx)
        if found < least or (most is not None and found > most):
            bounds = (
                f"from {self._least} to {self._most}" if self._most else f"{self._least} or more"
            )
            self.fail(f"{value!r} is out of bounds: {bounds}", param, ctx)
        return found
