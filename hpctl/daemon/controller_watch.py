"""Read where slurmctld is active, on a separate thread: an answer may take long."""

import threading
import time
from typing import Protocol

CONTROLLERS_S = 15.0
"""How often Slurm is asked where it is active, in seconds."""


class ActiveControllerSource(Protocol):
    """Slurm, as far as this watch asks it."""

    def find_active_controller(self) -> str:
        """Return the host of the slurmctld that answers; empty where that is not known."""


class ControllerListener(Protocol):
    """Takes what the watch learns."""

    def set_active_controller(self, host: str) -> None:
        """Take the host of the active slurmctld; empty: not known. Any thread."""


class ActiveControllerPoller(threading.Thread):
    """Asks Slurm for its active controller again and again, until the process ends."""

    def __init__(self, slurm: ActiveControllerSource, listener: ControllerListener) -> None:
        """Nothing is asked before `start`."""
        super().__init__(name="controllers", daemon=True)
        self._slurm, self._listener = slurm, listener

    def run(self) -> None:
        """Ask, pass the answer on, sleep, and repeat."""
        while True:
            self._listener.set_active_controller(self._slurm.find_active_controller())
            time.sleep(CONTROLLERS_S)
