"""SIGHUP: the configuration is read again, and accepted or rejected as a whole."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hpctl.daemon.configuration_audit import ConfigurationChangeRecorder
from hpctl.engine.config import Config, read_config_file
from hpctl.engine.live_config import LiveConfig
from hpctl.toolkit.errors import HpctlError

log = logging.getLogger("hpctl.daemon")

NEEDS_RESTART = (
    "state_dir",
    "database_url",
    "cluster",
    "slurm",
    "intake",
    "alerts",
    "metrics",
    "notify",
    "page",
)
"""The sections that are read at the start alone. Every other one takes effect with a reload."""


class LeadershipState(Protocol):
    """Knows whether this daemon leads."""

    @property
    def leads(self) -> bool:
        """Return whether this daemon may act, now."""


class Reloadable(Protocol):
    """A process that reads the configuration itself."""

    def reload(self) -> None:
        """Start again, by the configuration as it is now."""


class ConfigReload:
    """Puts the file's configuration in force; on an error the last good one stays."""

    def __init__(
        self,
        path: Path,
        live: LiveConfig,
        leadership: LeadershipState,
        audit: ConfigurationChangeRecorder,
        processes: Sequence[Reloadable] = (),
    ) -> None:
        """`path`: the configuration file. A leader has each configuration written by `audit`;
        each of `processes` reads it again after this daemon has taken it."""
        self._path, self._live, self._processes = path, live, processes
        self._leadership, self._audit = leadership, audit
        self.trouble = ""
        """Why the file is not in force, or which sections wait for a restart."""

    def run(self) -> None:
        """Read the file, and take it. Raises nothing: what is wrong with it is `trouble`."""
        before = self._live.config
        try:
            fresh = read_config_file(self._path)
            fresh.list_non_default_settings()  # as the journal is to have it
            self._live.replace(fresh)
        # It was written by hand: whatever is wrong with it, the one before stays in force.
        except (HpctlError, OSError, ArithmeticError, TypeError, ValueError) as error:
            self.trouble = f"configuration not reloaded: {error}"
            return
        moved = list_sections_needing_restart(before, fresh)
        self.trouble = f"restart to change: {', '.join(moved)}" if moved else ""
        for process in self._processes:
            process.reload()
        if self._leadership.leads:
            self._audit.request()
        log.info("configuration reloaded mode=%s", fresh.mode)


def list_sections_needing_restart(before: Config, fresh: Config) -> list[str]:
    """Return the sections of NEEDS_RESTART that differ."""
    return [name for name in NEEDS_RESTART if getattr(before, name) != getattr(fresh, name)]
