"""The configuration in the journal: by which settings the daemon acts, and who wrote them."""

from pathlib import Path

from hpctl.engine.journal.events import ConfigurationTaken
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.vocabulary.ports import Clock


class ConfigurationChangeRecorder:
    """Appends the configuration in force where it is not the one in the journal."""

    def __init__(self, path: Path, live: LiveConfig, memory: JournaledState, clock: Clock) -> None:
        """`path`: the configuration file, whose owner is recorded."""
        self._path, self._live, self._memory, self._clock = path, live, memory, clock
        self._due = False

    def request(self) -> None:
        """Have it written with the next `write_configuration_if_requested`."""
        self._due = True

    def write_configuration_if_requested(self) -> None:
        """Write it where that was asked for. Raises as `write` does."""
        if self._due:
            self.write()

    def write(self) -> None:
        """Write it now, where it is news. Raises LeaseLostError, OSError, Unavailable."""
        settings = self._live.config.list_non_default_settings()
        known = self._memory.state.configuration
        if known is None or known.settings != settings:
            taken = ConfigurationTaken(self._clock.now(), settings, find_file_owner(self._path))
            self._memory.append([taken])
        self._due = False


def find_file_owner(path: Path) -> str:
    """Return who owns a file, by name; empty where that is not known."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return ""
