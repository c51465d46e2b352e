"""Where the user already spoke to sbatch: command line, SBATCH_* variable, or #SBATCH line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpctl.jobs.options import CommandLine
from hpctl.jobs.script import Script

# The names that do not follow from the option's (sbatch(1), INPUT ENVIRONMENT VARIABLES).
_VARIABLES = {"array": "SBATCH_ARRAY_INX", "time": "SBATCH_TIMELIMIT"}
# Options that sbatch reads from no variable, whatever its name would be.
_NO_VARIABLE = frozenset({"comment", "nodes", "nodelist", "ntasks", "ntasks-per-node"})
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class Said:
    """sbatch's options from all three places, in sbatch's own order of precedence."""

    def __init__(
        self, line: CommandLine, script: Script | None, environment: Mapping[str, str]
    ) -> None:
        self._line = line
        self._script = script
        self._environment = environment

    def value(self, option: str) -> str | None:
        """The value of an option (long name) that is obeyed, "" for a flag; None if not given."""
        if option in self._line.given:
            return self._line.given[option]
        variable = _VARIABLES.get(option, "SBATCH_" + option.upper().replace("-", "_"))
        if option not in _NO_VARIABLE and variable in self._environment:
            return self._environment[variable]
        return self._script.given.get(option) if self._script is not None else None

    def has(self, option: str) -> bool:
        """Whether an option (long name) is given anywhere."""
        return self.value(option) is not None


def nodes(text: str) -> tuple[int, int | None] | None:
    """`--nodes`: least and most (None where only one number stands); None if it is neither."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if found is None:
        return None
    return int(found[1]), int(found[2]) if found[2] else None


def seconds(text: str) -> float | None:
    """`--time` in seconds; infinity for no limit, None for what is no time."""
    if text.strip().upper() in ("UNLIMITED", "INFINITE", "-1"):
        return float("inf")
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in found.groups())
    if found[1] is not None:  # days-hours[:minutes[:seconds]]
        return days * 86400.0 + first * 3600.0 + second * 60.0 + third
    if found[4] is not None:  # hours:minutes:seconds
        return first * 3600.0 + second * 60.0 + third
    return first * 60.0 + second  # minutes[:seconds]
