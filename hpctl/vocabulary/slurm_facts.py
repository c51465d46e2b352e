"""What Slurm says of nodes and jobs, in the shape that every release and adapter share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field

from hpctl.toolkit.job_ids import format_array_task_id, format_het_component_id
from hpctl.vocabulary.demand import NOTHING_KNOWN, JobResourceRequest, Tres
from hpctl.vocabulary.exclusion_mark import parse_excluded_nodes
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure


class SlurmNode(Struct, frozen=True):
    """A node as slurmctld sees it: a base state and flags, in Slurm's capitals.

    `flags` holds what Slurm adds to the base state (`DRAIN`, `NOT_RESPONDING`, ...), however the
    release spells it. `last_busy`: when a job last held it, or when it came up where none has.
    `reason_at`: when the Reason was set, where Slurm tells it. `reason_by`: the account of the
    person who set it; empty for root and SlurmUser, under whom Slurm's own programs write, and
    where Slurm does not tell. `version`: its slurmd's, as `25.11.7`; empty where none has
    registered yet.
    """

    name: NodeName
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    address: str = ""
    partitions: tuple[str, ...] = ()
    boot_time: datetime | None = None
    slurmd_start: datetime | None = None
    last_busy: datetime | None = None
    has: Tres = NOTHING_KNOWN
    features: tuple[str, ...] = ()
    reason_at: datetime | None = None
    version: str = ""
    reason_by: str = ""

    @property
    def drained(self) -> bool:
        """Closed to new work by DRAIN, whether jobs still run there or not."""
        return "DRAIN" in self.flags

    @property
    def closed(self) -> bool:
        """Closed to new work by DRAIN or by FAIL, of which each clears the other."""
        return self.drained or "FAIL" in self.flags

    @property
    def in_service(self) -> bool:
        """Neither closed nor DOWN: slurmctld gives it work, once its slurmd answers."""
        return not self.closed and not self.down

    @property
    def down(self) -> bool:
        """Base state DOWN: its jobs are gone, and slurmctld gives it none."""
        return self.state == "DOWN"

    @property
    def is_powered_down(self) -> bool:
        """Stopped by Slurm's power saving, or about to be: its slurmd and agent are not awaited."""
        return not self.flags.isdisjoint(("POWERED_DOWN", "POWERING_DOWN"))

    @property
    def is_powering_up(self) -> bool:
        """Started by Slurm's power saving, and not registered yet."""
        return not self.flags.isdisjoint(("POWER_UP", "POWERING_UP"))

    @property
    def is_about_to_reboot(self) -> bool:
        """`scontrol reboot` was called for it, and it has not booted since."""
        return not self.flags.isdisjoint(("REBOOT_REQUESTED", "REBOOT_ISSUED"))

    @property
    def dynamic(self) -> bool:
        """Not in slurm.conf: `scontrol delete` may remove it at any time."""
        return not self.flags.isdisjoint(("DYNAMIC_NORM", "DYNAMIC_FUTURE"))

    @property
    def responding(self) -> bool:
        """False once slurmctld marks the slurmd as not answering."""
        return "NOT_RESPONDING" not in self.flags


ENDED_BADLY = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})


TIMED_OUT = "TIMEOUT"
"""The state of a job that Slurm ended at its time limit."""


ENDED = ENDED_BADLY | frozenset({"COMPLETED", "CANCELLED", TIMED_OUT, "DEADLINE", "PREEMPTED"})


COMPLETING: Final = "COMPLETING"
"""A flag; as a state that of a job that has ended, while Slurm does not tell how."""


LAUNCH_FAILED = "launch_failed_requeued_held"
"""The Reason of a job that slurmctld holds because its launch failed, mostly in a Prolog."""


HELD_AT_LAUNCH = frozenset(
    {
        LAUNCH_FAILED,
        "launch_failure_limit_exceeded_requeued_held",
        "user_env_retrieval_failed_requeued_held",
    }
)
"""The Reasons of all that slurmctld holds for its launch: MaxBatchRequeue, the user's environment.
slurmctld alone writes them; a hold of a person's clears them."""


REQUEUED_AND_HELD = "job_requeued_in_held_state"
"""The Reason of a job that was held as it was requeued: its program failed and it was submitted
with --requeue=expedite (25.11 and later), or a user gave `scontrol requeuehold`."""


SPECIAL_EXIT = "SPECIAL_EXIT"
"""The flag of a job that was held as it was requeued because its exit code is in RequeueExitHold.
Its Reason is JobHeldUser."""


CANNOT_START: Final = "BadConstraints"
"""The Reason of a job that slurmctld could not start for an error other than a lack of free nodes:
too few nodes fit it, or the allocation failed ("gres ... node offset invalid" in slurmctld's log).
Its priority is 0 from then on (schedule() in job_scheduler.c), so no free node starts it."""


SLURMS_DELAY: Final = timedelta(minutes=15)
"""A begin delay that Slurm itself sets is `cred_expire` long: two minutes, ten with long prologs.
A job that is to begin later than that was put off by a person, and is left to wait."""


class SlurmJob(Struct, frozen=True):
    """A job as slurmctld holds it in memory, finished ones included until MinJobAge.

    `nodes` are those of the current or last run. `excluded` is the job's own ExcNodeList.
    `requeue` is Slurm's Requeue=1; `batch` is false for salloc and srun jobs, which cannot be.
    `wants`: how many nodes a pending job needs at least, all its array's waiting tasks together;
    `asks` says more, None where Slurm does not. `uid` is its owner's number. `ran_from`: when the
    last run of a job that waits for another began; None where hpctl did not see it. `array_job`:
    the array of a task, 0 for a job that is none; `array_task` is its index, or `1-3` for tasks
    that wait in one record. `het_job`: the leader of a component of a heterogeneous job, 0 for
    another job; `het_offset`: which component it is. `components`: the ids of all components of a
    heterogeneous job, which is one job to hpctl, under its leader's id. `preempted`: when Slurm
    chose to preempt its last run, where hpctl saw that. `ordered`: it waits for
    another run because of a requeue after it had ended, where hpctl saw that.
    `admin_comment` is its AdminComment, which operators write.
    """

    id: JobId
    state: str
    submit: datetime
    restarts: int = 0
    flags: frozenset[str] = frozenset()
    name: str = ""
    user: str = ""
    partition: str = ""
    nodes: tuple[NodeName, ...] = ()
    excluded: tuple[NodeName, ...] = ()
    batch_host: NodeName | None = None
    batch: bool = True
    requeue: bool = True
    reason: str = ""
    exit_code: str = ""
    start: datetime | None = None
    end: datetime | None = None
    eligible: datetime | None = None
    comment: str = ""
    uid: int | None = None
    wants: int = 0
    asks: JobResourceRequest | None = None
    ran_from: datetime | None = None
    completing_on: tuple[NodeName, ...] = ()
    """Of a COMPLETING job the nodes that have not finished, where that was read."""
    array_job: int = 0
    array_task: str = ""
    het_job: JobId = JobId(0)
    het_offset: int = 0
    components: tuple[JobId, ...] = ()
    qos: str = ""
    preempted: datetime | None = None
    admin_comment: str = ""
    ordered: bool = False

    @property
    def shown(self) -> str:
        """Return its id as its user writes it: `12`, `12_3`, `12+1`."""
        if self.array_job:
            return format_array_task_id(self.array_job, self.array_task)
        if self.het_job and not self.components:
            return format_het_component_id(self.het_job, self.het_offset)
        return str(self.id)

    @property
    def attempt(self) -> JobAttempt:
        """Return which run this is."""
        return JobAttempt(self.id, self.submit, self.restarts)

    @property
    def configuring(self) -> bool:
        """Return whether its nodes are not ready: Slurm powers them up, or their Prolog runs."""
        return "CONFIGURING" in self.flags or self.state == "CONFIGURING"

    @property
    def completing(self) -> bool:
        """Still cleaning up: requeueing it now can crash slurmctld (facts/recovery 2.3)."""
        return COMPLETING in self.flags

    @property
    def has_unknown_end_state(self) -> bool:
        """It has ended, and Slurm tells how once it is no longer COMPLETING."""
        return self.state == COMPLETING

    @property
    def completing_since(self) -> datetime | None:
        """Return since when it is COMPLETING: its end or its requeue, by its new submit time."""
        if not self.completing:
            return None
        return self.submit if self.state == "PENDING" else self.end

    @property
    def completing_nodes(self) -> tuple[NodeName, ...]:
        """Return the nodes that keep it COMPLETING."""
        if not self.completing:
            return ()
        return self.completing_on or self.nodes

    @property
    def has_launch_failed(self) -> bool:
        """Requeued and held by slurmctld because its launch failed, which no owner did."""
        return self.state == "PENDING" and self.reason == LAUNCH_FAILED

    @property
    def is_start_postponed(self) -> bool:
        """Return whether a person has set when it may begin."""
        return self.eligible is not None and self.eligible > self.submit + SLURMS_DELAY

    @property
    def is_held_at_launch(self) -> bool:
        """Held by slurmctld for its launch, for whatever cause."""
        return self.state == "PENDING" and self.reason in HELD_AT_LAUNCH

    @property
    def nodes_excluded_by_hpctl(self) -> tuple[NodeName, ...]:
        """Return those nodes of its ExcNodeList that hpctl wrote there, and no user."""
        if not self.excluded:
            return ()
        marked = parse_excluded_nodes(self.admin_comment)
        return tuple(name for name in self.excluded if name in marked)

    @property
    def running(self) -> bool:
        """Holding nodes with processes on them."""
        return self.state in ("RUNNING", "SUSPENDED", "CONFIGURING")

    @property
    def recoverable(self) -> bool:
        """Return whether Slurm would run it again on request: a batch job with Requeue=1."""
        return self.batch and self.requeue

    @property
    def is_held_after_requeue(self) -> bool:
        """Held by Slurm as it was requeued: it starts by no order but a release."""
        held = self.reason == REQUEUED_AND_HELD or SPECIAL_EXIT in self.flags
        return self.state == "PENDING" and held

    @property
    def is_held(self) -> bool:
        """Return whether its owner, an operator or a requeue holds it, until it is released."""
        return self.reason.startswith("JobHeld") or self.is_held_after_requeue

    @property
    def is_held_as_unable_to_start(self) -> bool:
        """Held by Slurm because it could not start it as it is."""
        return self.state == "PENDING" and self.reason == CANNOT_START

    @property
    def unrecoverable_reason(self) -> str:
        """Return why Slurm would not run it again, in a few words."""
        return "Requeue=0" if self.batch else "not a batch job"

    @property
    def unrecoverable_advice(self) -> str:
        """What its owner can do where Slurm would not run it again."""
        if self.batch:
            return "submit with --requeue"
        return (
            "Slurm starts batch jobs alone again: repeat the command, or submit a script with"
            " `hpctl sbatch`"
        )


class SlurmReservation(Struct, frozen=True):
    """A reservation of Slurm's. `maintenance`: it has the flag MAINT. A time is None where it could
    not be read."""

    name: str
    nodes: tuple[NodeName, ...]
    start: datetime | None = None
    end: datetime | None = None
    maintenance: bool = False


def map_reserved_nodes(
    reservations: Mapping[str, SlurmReservation],
) -> dict[str, tuple[NodeName, ...]]:
    """Return the nodes of each reservation, by its name."""
    return {name: one.nodes for name, one in reservations.items()}


class SchedulerView(Struct, frozen=True):
    """All nodes and jobs that slurmctld knows, read at `as_of`. `flaws`: records that could not be
    read; what they are about is there, in an unknown state. `booted`: when slurmctld
    started, where that was asked. `confirmed`: until when slurmctld's log shows no change of a
    node since. `reservations`: by name; None where they were not asked for."""

    as_of: datetime
    nodes: Mapping[NodeName, SlurmNode] = field(default_factory=dict)
    jobs: Mapping[JobId, SlurmJob] = field(default_factory=dict)
    flaws: tuple[ItemProcessingFailure, ...] = ()
    booted: datetime | None = None
    confirmed: datetime | None = None
    reservations: Mapping[str, SlurmReservation] | None = None

    @property
    def valid_at(self) -> datetime:
        """Return as of when this holds: when it was read, or was confirmed since."""
        return self.as_of if self.confirmed is None else max(self.as_of, self.confirmed)

    @property
    def oldest_slurmd_version(self) -> str:
        """Return its release, "" where none is known. slurmctld is never older than a slurmd."""
        return min((n.version for n in self.nodes.values() if n.version), default="")
