"""Which running jobs stand still: what the agents say of them, looked at every few seconds.

In memory only: after a restart a run is watched anew, and its pauses are learned again.
"""

import threading
from collections.abc import Mapping
from datetime import datetime

from hpctl.core.hangs import Hang, Track, judge, of_node
from hpctl.core.model import JobId, NodeName, SchedulerView, SlurmJob
from hpctl.core.policy import HangPolicy
from hpctl.core.walls import Flaw, each

LOOK_SHARE = 12.0
"""Looks in `floor_s`: one each 10 s by default, as often as agents count."""
MOST_SAMPLES = 16
"""Of one node between two looks; later ones are left out."""


class HangWatch:
    """Gauges in, hangs out. `hear` runs on the intake's threads, `look` on the loop's."""

    def __init__(self, policy: HangPolicy | None = None) -> None:
        self.policy = policy or HangPolicy()
        self.flaws: tuple[Flaw, ...] = ()
        self._lock = threading.Lock()
        self._heard: dict[NodeName, list[Mapping[str, float]]] = {}
        self._tracks: dict[JobId, Track] = {}
        self._looked: datetime | None = None

    def hear(self, node: NodeName, gauges: Mapping[str, float]) -> None:
        """Take in what an agent sent."""
        with self._lock:
            heard = self._heard.setdefault(node, [])
            if len(heard) < MOST_SAMPLES:
                heard.append(gauges)

    def look(self, slurm: SchedulerView, now: datetime) -> Mapping[JobId, Hang]:
        """The jobs that hang. Judges anew where the last time is long enough ago."""
        passed_s = (now - self._looked).total_seconds() if self._looked else None
        if passed_s is None or not 0 <= passed_s < self.policy.floor_s / LOOK_SHARE:
            self._looked = now
            self._judge(slurm, now)
        return {job: track.hang for job, track in self._tracks.items() if track.hang}

    def _judge(self, slurm: SchedulerView, now: datetime) -> None:
        with self._lock:
            heard, self._heard = self._heard, {}
        said = {node: of_node(samples) for node, samples in heard.items()}

        def one(job: SlurmJob) -> tuple[JobId, Track]:
            # A node says what it likes, but only of the jobs that Slurm has put there.
            told = ((n, said[n].get(job.id)) for n in job.nodes if n in said)
            mine = {n: activity for n, activity in told if activity is not None}
            return job.id, judge(job, mine, self._tracks.get(job.id), self.policy, now)

        running = [job for job in slurm.jobs.values() if job.running]
        tracks, flaws = each("hangs", running, lambda job: job.id, one)
        self._tracks, self.flaws = dict(tracks), tuple(flaws)
