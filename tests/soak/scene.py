"""Where a fault may strike, and what a kind of fault is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.daemon.chaos import Chaos
from tests.engine.journal.servers import Server
from tests.soak.jobs import Job
from tests.soak.status import Struck

STATE_SAVE_S = 10.0
"""slurmctld writes its jobs down up to 5 s late (SAVE_MAX_WAIT): killed before, it forgets a job
that it has just accepted, and gives its number to the next one. No one could heal that."""


PROVE_S = 8.0
"""A restarted run has proved itself after so many seconds, as the soak configures hpctl. slurmctld
has saved by then that there is one (SAVE_MAX_WAIT, 5 s)."""


class Surroundings(Struct, frozen=True):
    """What hpctl stands on besides Slurm. `disk`: the file system of the state directory, if it is
    one of its own. `database`: the server of the journal, if it is in no file. `away_s`: the
    longest that a part of the head is away, in seconds."""

    disk: Path | None = None
    database: Server | None = None
    away_s: float = 20.0


class Scene(Struct, frozen=True):
    """Where a fault may strike."""

    live: Chaos
    jobs: list[Job]
    chance: random.Random
    around: Surroundings = Surroundings()
    marked: bool = False
    """HyperPod's health agent has marked a node, or is about to."""

    def slurm_has_saved(self) -> bool:
        """Whether slurmctld has written down every job that it was given."""
        return all(time.time() - job.submitted >= STATE_SAVE_S for job in self.jobs)

    def node_of_a_job(self) -> str:
        """A node in service with a running job on it, else any in service, else ""."""
        view = self.live.scheduler.view()
        fine = {n for n, node in view.nodes.items() if node.in_service and node.responding}
        mine = {job.number for job in self.jobs}
        busy = {n for j in view.jobs.values() if j.running and int(j.id) in mine for n in j.nodes}
        pool = sorted(fine & busy) or sorted(fine)
        return str(self.chance.choice(pool)) if pool else ""

    def job_in_slurm(self, job: Job) -> SlurmJob | None:
        """Return a job as Slurm has it now; None where it has none, or does not answer."""
        try:
            record = self.live.scheduler.job(JobId(job.number))
        except ServiceUnavailable:
            return None
        return None if record is None else record.job

    def restarts_of(self, job: Job) -> int:
        """Return how often Slurm has started a job again so far; 0 where Slurm does not answer."""
        seen = self.job_in_slurm(job)
        return 0 if seen is None else seen.restarts

    def rank(self, *, missed: bool = False) -> tuple[Job | None, int]:
        """A random job and the pid of a random rank of it, None where none runs. `missed`: of a
        job in which somebody misses it, a supervisor or another rank."""
        jobs = [job for job in self.jobs if job.shape.ranks > 1 or not missed]
        pids = [(job, pid) for job in jobs for pid in ranks_of(job)]
        return self.chance.choice(pids) if pids else (None, 0)


Strike = Callable[[Scene], Struck | None]


def ranks_of(job: Job) -> list[int]:
    """The training processes of a job, found by the checkpoint directory that they were given."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        environment = environment_of(int(entry.name))
        # srun and `hpctl run` have the environment and the arguments, too; a rank is the
        # interpreter that runs the training itself.
        python = b"python" in arguments[0].rpartition(b"/")[2]
        training = arguments[1:3] == [b"-m", b"hpctl.sandbox.training"]
        mine = environment.get("HPCTL_CHECKPOINT_DIR") == str(job.directory)
        if python and training and mine and "SLURM_PROCID" in environment:
            found.append(int(entry.name))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """A process's environment; empty where it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if pair)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind, and how often it comes beside the others."""

    name: str
    weight: int
    strike: Strike
    latent: bool = False
    """Nobody can see it at first, before somebody has been silent for a while."""
    of_head: bool = False
    """It takes something from the daemon: one at a time."""
