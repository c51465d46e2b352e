"""What slurmctld says of our own job, by two questions that cost the same at any cluster size.

`show job ID` is answered for that job alone, and names the nodes that are left after an
excision. `show node LIST` is asked only when a step is to be launched: Slurm's client fetches
the whole node table for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.model import JobId, NodeName, SlurmJob, SlurmNode
from hpctl.errors import Unavailable
from hpctl.slurm.read import Reader
from hpctl.slurm.run import Runner


class NoSuchJob(Unavailable):
    """slurmctld answered, and does not know our job."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job now. `command_id` names it, and no other task of an array, to Slurm's commands."""

    job: SlurmJob
    command_id: str

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes that the job still has."""
        return self.job.nodes

    @property
    def lives(self) -> bool:
        """Whether steps can still be launched in it."""
        return self.job.running and not self.job.completing

    def left_s(self, now: datetime) -> float | None:
        """Seconds until its time limit; None where it has none."""
        return (self.job.end - now).total_seconds() if self.job.end else None


class Questions:
    """Asks. Every method raises Unavailable, and nothing else."""

    def __init__(self, job: JobId, runner: Runner) -> None:
        self._id = job
        self._runner = runner
        self._reader = Reader(runner, lambda: datetime.now(UTC))
        self.asked = 0
        """RPCs that were sent to slurmctld."""

    def allocation(self) -> Allocation:
        """Our job. One RPC. Raises NoSuchJob where slurmctld says that there is none."""
        self.asked += 1
        record = self._reader.job(self._id)
        if record is None:
            raise NoSuchJob(
                f"slurmctld does not know job {self._id}",
                "is SLURM_CONF right, and SLURM_JOB_ID this job's own?",
            )
        return Allocation(record.job, record.command_id)

    def states(self, nodes: tuple[NodeName, ...]) -> Mapping[NodeName, SlurmNode]:
        """These nodes. One RPC for each 200 of them."""
        self.asked += 1 + len(nodes) // 200
        return self._reader.nodes(nodes)

    def idle(self, partition: str) -> int:
        """Nodes of the partition that are idle. One RPC, which fetches the whole node table."""
        self.asked += 1
        ran = self._runner.run("sinfo", "--noheader", "-t", "idle", "-o", "%D", "-p", partition)
        if not ran.ok:
            raise Unavailable(f"sinfo: {ran.said}")
        return sum(int(word) for word in ran.text.split() if word.isdecimal())
