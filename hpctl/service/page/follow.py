"""The newest world, for all who look: the daemon's own, or one that is read at a pace.

Where a daemon answers, a look takes its world and costs nothing while that is the same. Where none
does, journal, Slurm and cloud are read no sooner than a share of one processor allows. Reading has
a separate thread: no reader waits for what is slow.
"""

import logging
import os
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hpctl.engine.adapters import build_fault_rules_with_overrides, make_slurm_command_client
from hpctl.engine.config import Config
from hpctl.engine.journal.state import EngineState, InconsistentEventError
from hpctl.engine.world import World
from hpctl.engine.world_offline import read_source_if_requested
from hpctl.engine.world_reader import WorldReader
from hpctl.engine.world_wire import get_world_socket_path
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import get_current_utc_time
from hpctl.vocabulary.identity import NodeName

log = logging.getLogger(__name__)

SHARE = 100.0
"""What took a second of a processor is done again after so many seconds."""
SOON_S = 0.5
"""How long a look waits for a daemon's answer; what comes later is for the next look."""
OFFLINE_S = (30.0, 60.0)
"""The shortest and the longest interval of reading where no daemon answers: it asks the cloud."""
LEAVES_S = 600.0
"""How often the topology is read of Slurm, where no daemon has read it."""
AFRESH_S = 3600.0
"""After so long a journal is read from its start: what was retired leaves memory."""

LATE_S = 30.0
"""How long a reading may take before the page says that what it shows is old."""


class StatusPagePoller:
    """What `hpctl status` would know now. For one thread."""

    def __init__(self, config: Config, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises HpctlError where the rules cannot be had, or only a copy of the journal."""
        self._monotonic = monotonic
        self.config, self.rules = config, build_fault_rules_with_overrides(config)
        journal = config.state_dir / "journal.db"
        mine = (journal, get_world_socket_path(config.state_dir))
        here = not config.database_url and journal.exists()
        if here and not any(os.access(path, os.W_OK) for path in mine):
            raise HpctlError(
                f"cannot serve the status page: this user may not read the journal {journal}",
                "run the command as root or the daemon's user, or let the daemon serve the page: "
                "set page.listen in hpctl.yaml",
            )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="page-read")
        self._reading: Future[World] | None = None
        self._scheduler = make_slurm_command_client(config)
        self.leaves: Mapping[NodeName, str] = {}
        """The leaf switch or block of each node, as far as Slurm has reported it."""
        self._reader = WorldReader(config)
        self._afresh = self._next = self._due = self._leaves_due = self._spent = 0.0
        self._begun = 0.0
        """When the reading that is under way began, on the monotonic clock."""
        self.world = World(
            get_current_utc_time(), config.policy(), EngineState(), config.cluster.name
        )
        self.trouble = "the journal was not read yet"
        """Why what is here is not what it is now; empty: it is."""

    def look(self, wait_s: float = SOON_S) -> bool:
        """Take what is new, if it is time; whether anything is. Reading has `wait_s` to end."""
        if self._monotonic() < self._next:
            return False
        begun, old = time.process_time(), self.trouble
        try:
            changed = self._refresh_cluster_state(wait_s)
        # What no isolation caught is shown as well, and tried again: the page outlives it.
        except Exception as error:
            if not isinstance(error, HpctlError | InconsistentEventError):
                log.exception("the page cannot look")
            changed, self.trouble = False, f"{error}. {getattr(error, 'hint', '')}".strip()
            self._afresh = 0.0
        self._next = self._monotonic() + SHARE / 2 * (time.process_time() - begun)
        return changed or old != self.trouble

    def _refresh_cluster_state(self, wait_s: float) -> bool:
        if self._reading is None and self._monotonic() >= self._due:
            self._reading, self._begun = (
                self._pool.submit(self._read_due_cluster_state),
                self._monotonic(),
            )
        if self._reading is None:
            return False
        if self._reading not in wait((self._reading,), wait_s).done:
            if self._monotonic() - self._begun > LATE_S:
                self.trouble = f"the daemon, the journal or Slurm has not answered for {LATE_S:g} s"
            return False
        reading, self._reading = self._reading, None
        self._schedule_next_state_read()
        before, self.world = self.world, reading.result()
        self.trouble = ""
        if self.world.computed:
            return True
        self._due = 0.0
        return self.world.number != before.number

    def _read_due_cluster_state(self) -> World:
        """Read what is due."""
        at = self._monotonic()
        if at >= self._afresh:
            self._reader, self._afresh = WorldReader(self.config), at + AFRESH_S
        world = self._reader.read(get_current_utc_time(), slurm=True, cloud=True, placement=True)
        if world.leaves is not None:
            self.leaves = world.leaves
        elif at >= self._leaves_due:
            self._leaves_due = at + LEAVES_S
            self.leaves = read_source_if_requested(True, self._scheduler.leaves)[0] or {}
        return world

    def _schedule_next_state_read(self) -> None:
        """Read again the later, the more of a processor went into all since the last time, the
        commands of Slurm among it."""
        ran = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = time.process_time() + ran.ru_utime + ran.ru_stime
        soonest, latest = OFFLINE_S
        pause = min(max(soonest, SHARE * (spent - self._spent)), latest)
        self._due, self._spent = self._monotonic() + pause, spent

    def close(self) -> None:
        """Begin no further reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
