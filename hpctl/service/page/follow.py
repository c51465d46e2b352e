"""The newest world, for everybody who looks: the journal is followed, all else read at a pace.

The first look replays the journal, each later one takes its new events alone. The agents' facts,
Slurm and the cloud are read again no sooner than a share of one processor allows, the two slow ones
on a thread of their own: nobody who looks waits for them.
"""

import logging
import os
import resource
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import cache

from msgspec.structs import replace

from hpctl.engine.adapters import make_provider, make_rules, make_scheduler, open_reader
from hpctl.engine.config import Config
from hpctl.engine.journal.state import Corrupt, State
from hpctl.engine.world import Followed, World, attempt, judged, leader, stored, waits_for_cloud
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import now
from hpctl.vocabulary.cloud_facts import ProviderView
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView

log = logging.getLogger(__name__)

SHARE = 100.0
"""What took a second of a processor is done again after so many seconds."""
FACTS_S = (5.0, 60.0)
"""The shortest and the longest interval at which Slurm and the agents' facts are read."""
CLOUD_S, CLOUD_BUSY_S, LEAVES_S = 300.0, 30.0, 600.0
"""The page wants the cloud for the names of the groups, and where a recovery waits for it: the
daemon asks often enough by itself."""
AFRESH_S = 3600.0
"""After so long the journal is read from its start: what was retired leaves memory."""


class Follower:
    """What `hpctl status` would know now. For one thread."""

    def __init__(self, config: Config) -> None:
        """Raises HpctlError where the rules cannot be had, or only a copy of the journal."""
        self.config, self.rules = config, make_rules(config)
        journal = config.state_dir / "journal.db"
        if not config.database_url and journal.exists() and not os.access(journal, os.W_OK):
            raise HpctlError(
                f"{journal} is another user's: the daemon would copy it for each look",
                "run this as root or the daemon's user, or set page.listen in hpctl.yaml",
            )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="page-read")
        self._reading: Future[None] | None = None
        self._scheduler, self._provider = (
            make_scheduler(config),
            cache(lambda: make_provider(config)),
        )
        self._slurm: tuple[SchedulerView | None, str] = (None, "not asked yet")
        self._cloud: tuple[ProviderView | None, str] = (None, "not asked yet")
        self._due = dict.fromkeys(("slurm", "cloud", "leaves"), 0.0)
        self.leaves: Mapping[NodeName, str] = {}
        """The leaf switch or block of each node, as far as Slurm has told."""
        self._journal = Followed(None)
        self._afresh = self._next = self._spent = 0.0
        self.world = World(now(), config.policy(), State(), config.cluster.name)
        self.trouble = "the journal was not read yet"
        """Why the journal, and with it everything here, is not what it is now; empty: it is."""

    def look(self, wait_s: float = 0.0) -> bool:
        """Take what is new, if it is time; whether anything is. Slurm has `wait_s` to answer."""
        if time.monotonic() < self._next:
            return False
        begun, old = time.process_time(), self.trouble
        try:
            changed, self.trouble = self._look(wait_s), ""
        # What no wall held is shown as well, and tried again: the page outlives it.
        except Exception as error:
            if not isinstance(error, HpctlError | Corrupt):
                log.exception("the page cannot look")
            changed, self.trouble = False, f"{error}. {getattr(error, 'hint', '')}".strip()
            self._afresh = 0.0
        self._next = time.monotonic() + SHARE / 2 * (time.process_time() - begun)
        return changed or old != self.trouble

    def _look(self, wait_s: float) -> bool:
        arrived = self._arrived(wait_s)
        if time.monotonic() >= self._afresh:
            self._journal, self._afresh = Followed(None), time.monotonic() + AFRESH_S
        with closing(open_reader(self.config)) as store:
            news = sum(1 for _ in self._journal.news(store))
            if arrived:
                world = stored(self.config, store, self._journal.state, now())
                world = judged(world, self.config, self._slurm, self._cloud)
            else:
                daemon = leader(store, at := now(), wait=self.world.shared)
                world = replace(self.world, now=at, daemon=daemon, state=self._journal.state)
        changed = news > 0 or arrived or world.daemon_alive != self.world.daemon_alive
        self.world = world
        return changed

    def _arrived(self, wait_s: float) -> bool:
        """Have Slurm and the cloud read where it is time; whether there are new answers."""
        if self._reading is None and time.monotonic() >= self._due["slurm"]:
            self._reading = self._pool.submit(self._read, waits_for_cloud(self.world))
        if self._reading is None or self._reading not in wait((self._reading,), wait_s).done:
            return False
        error, self._reading = self._reading.exception(), None
        if error is not None:
            self._slurm = (None, f"{error}")
        self._pace()
        return True

    def _read(self, busy: bool) -> None:
        """Read what is due; nothing here is looked at before it has ended."""
        at, due = time.monotonic(), self._due
        if at >= due["leaves"]:
            due["leaves"] = at + LEAVES_S
            self.leaves = attempt(True, self._scheduler.leaves)[0] or {}
        if at >= due["cloud"] - (CLOUD_S - CLOUD_BUSY_S) * busy:
            due["cloud"] = at + CLOUD_S
            self._cloud = attempt(True, lambda: self._provider().view())
        self._slurm = attempt(True, self._scheduler.view)

    def _pace(self) -> None:
        """Read the facts again the later, the more of a processor went into all since the last
        time, the commands of Slurm among it."""
        ran = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = time.process_time() + ran.ru_utime + ran.ru_stime
        soonest, latest = FACTS_S
        pause = min(max(soonest, SHARE * (spent - self._spent)), latest)
        self._due["slurm"], self._spent = time.monotonic() + pause, spent

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
