"""The daemon's desk for job reports, with the observer, the state and the journal behind it."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hpctl.engine.clock import SystemClock
from hpctl.engine.config import ClusterSection, Config
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import EngineState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.jobs.report_intake import JobReportHandler
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

OWN = Config(mode=OperatingMode.OWN, cluster=ClusterSection(name="ml"))
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


class Desk:
    """What was written, how often the loop was woken, and the jobs that Slurm has."""

    state = EngineState()

    def __init__(self, disk: Path | None = None) -> None:
        self.stored: list[Event] = []
        self.full = ""
        self.shut = ""
        self.poked = 0
        self.uid = os.geteuid()
        self.view: SchedulerView | None = None
        self.sees(7)
        here: Any = self
        self.live = LiveConfig(OWN)
        port = RecoveryLoopAccess(here, here, SystemClock(), self.poke)
        self.desk = JobReportHandler(here, port, self.live, disk)

    def append(self, events: Sequence[Event]) -> None:
        if self.full:
            raise OSError(self.full)
        self.stored += events

    def sees(self, *jobs: int, restarts: int = 0) -> None:
        known = {n: SlurmJob(n, "RUNNING", NOON, restarts, user="ada", uid=self.uid) for n in jobs}
        self.view = SchedulerView(datetime.now(UTC), {}, known)

    def find_kill_switch_reason(self) -> str:
        return self.shut

    def get_latest_slurm_view(self) -> SchedulerView:
        if self.view is None:
            raise ServiceUnavailable("Slurm has not answered yet", "try again in a moment")
        return self.view

    def poke(self) -> None:
        self.poked += 1
