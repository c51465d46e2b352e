"""What both parsers make: a job with the ids that Slurm's commands need to name it, and sizes.

A job array's id names *all* its tasks when given to scontrol or scancel, so a task is always
named `<array>_<task>`, whichever JobId it runs under.

What nodes have and jobs ask for is text in every release. Seen on 22.05.8: a pending job's NumNodes
is an estimate of scontrol's (2 for three tasks of two CPUs on nodes of 16), its TRES has what was
asked for; GRES stand in TRES only where accounting tracks them, so they are read from TresPer*; a
job that asks for no memory is given all of a node's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist
from hpctl.toolkit.job_ids import parse_array_task_ranges
from hpctl.vocabulary.demand import NOTHING_KNOWN, Tres
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.slurm_facts import ENDED, SlurmJob

JOB_BASE = frozenset(
    [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
    ]
)
"""The base states of a job; every other word that Slurm prints as a job state is a flag."""

NODE_BASE = frozenset(
    ["UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "EXTERNAL"]
)
"""The base states of a node; every other word is a flag."""

_NODE_FLAG = {"DRAINED": "DRAIN", "DRAINING": "DRAIN", "NO_RESPOND": "NOT_RESPONDING"}


MAX_NAMES = 2_000_000
"""Names in all jobs' NodeLists of one read: 10 000 nodes, each with 200 jobs."""
MAX_NAMES_OF_USER = 200_000
"""Names in the lists of nodes that the jobs of one user exclude."""


class HostlistCache:
    """Slurm's hostlists as names: each text is expanded once, and remembered to the next read.

    What cannot be read is no host, never an error; nor are the names over the bounds of a read,
    so that memory is bounded, and of what a user may write each user has a bound of their own.
    """

    def __init__(self) -> None:
        """For one read; `begin` starts another."""
        self._known: dict[str, tuple[NodeName, ...]] = {}
        self.begin()

    def begin(self) -> None:
        """Another read: of what the one before it has expanded nothing counts."""
        self._before, self._known = self._known, {}
        self._left: dict[int | None, int] = {}

    def __call__(self, text: str) -> tuple[NodeName, ...]:
        """Return the names of a list that slurmctld made."""
        return self._expand_hostlist_within_limit(text, None, MAX_NAMES)

    def of_user(self, uid: int | None, text: str) -> tuple[NodeName, ...]:
        """Return the names of a list that a user wrote."""
        return self._expand_hostlist_within_limit(
            text, -1 if uid is None else uid, MAX_NAMES_OF_USER
        )

    def _expand_hostlist_within_limit(
        self, text: str, whose: int | None, most: int
    ) -> tuple[NodeName, ...]:
        found = self._known.get(text)
        if found is not None or not text:
            return found or ()
        left = self._left.get(whose, most)
        found = self._before.get(text)
        if found is None:
            try:
                found = tuple(map(NodeName, expand_hostlist(text)))
            except HostlistError:
                found = ()
        if len(found) > left:
            return ()
        self._left[whose] = left - len(found)
        self._known[text] = found
        return found


class PendingJobSize(Struct, frozen=True):
    """How large a pending job is; 0 where Slurm does not say.

    `nodes` is that of its last run, `least` what it needs at least, by its requested TRES.
    """

    nodes: int = 0
    least: int = 0
    tasks: int = 0
    tasks_per_node: int = 0


class SlurmJobRecord(Struct, frozen=True):
    """A job as slurmctld lists it, and how large it is.

    `components`: those of a heterogeneous job, each as slurmctld lists it, the leader first.
    """

    job: SlurmJob
    components: tuple[SlurmJob, ...] = ()
    size: PendingJobSize = field(default_factory=PendingJobSize)

    @property
    def is_multi_task_array(self) -> bool:
        """Several tasks in one record: no command of ours may touch it."""
        return self.job.array_job != 0 and not self.job.array_task.isdigit()

    @property
    def command_id(self) -> str:
        """Return the id under which a command touches this job and no other."""
        return self.job.shown

    @property
    def comment_id(self) -> str:
        """Return the id whose Comment is this job's: of a heterogeneous job the leader's alone."""
        return self.components[0].shown if self.components else self.command_id


def group_het_job_components(jobs: Iterable[SlurmJob]) -> dict[JobId, tuple[SlurmJob, ...]]:
    """Group the components of each heterogeneous job under its leader's id, the leader first.

    A component whose leader is not among the jobs is left out.
    """
    found: dict[JobId, list[SlurmJob]] = {}
    for job in jobs:
        if job.het_job:
            found.setdefault(job.het_job, []).append(job)
    ordered = {
        leader: tuple(sorted(components, key=lambda job: job.het_offset))
        for leader, components in found.items()
    }
    return {leader: group for leader, group in ordered.items() if group[0].id == leader}


def merge_het_job_components(components: Sequence[SlurmJob]) -> SlurmJob:
    """Return a heterogeneous job as the one job that it is to Slurm, under its leader's id.

    slurmctld starts and requeues all components together: they are one run, on the nodes of all of
    them, and it is over once the last has cleared (`_het_job_on_node`, `_job_requeue`). A component
    may end before the others, at its own time limit or by `scancel 12+1`: its nodes are no longer
    the job's while that runs on.
    """
    leader = components[0]
    left = [job for job in components if job.state not in ENDED] or list(components)
    held = [job for job in components if job in left or job.completing or not leader.running]
    waits = [job.reason for job in left if job.reason not in ("", "None")]
    eligible = [job.eligible for job in left if job.eligible is not None]
    return replace(
        leader,
        components=tuple(job.id for job in components),
        flags=frozenset().union(*(job.flags for job in components)),
        nodes=tuple(dict.fromkeys(chain.from_iterable(job.nodes for job in held))),
        excluded=tuple(dict.fromkeys(chain.from_iterable(job.excluded for job in components))),
        batch=all(job.batch for job in components),
        requeue=all(job.requeue for job in components),
        reason=waits[0] if waits else leader.reason,
        eligible=max(eligible, default=None),
        wants=sum(job.wants for job in components),
        asks=None,
    )


def merge_heterogeneous_jobs(jobs: Mapping[JobId, SlurmJob]) -> dict[JobId, SlurmJob]:
    """Return these jobs with each heterogeneous one as one job; others stay as they are."""
    groups = group_het_job_components(jobs.values())
    if not groups:
        return dict(jobs)
    found = {i: job for i, job in jobs.items() if job.het_job not in groups}
    return {
        **found,
        **{leader: merge_het_job_components(group) for leader, group in groups.items()},
    }


def parse_minimum_node_count(count: str) -> int:
    """Return the least of a node count as `2`, `2-4`; 0 where it is none."""
    return parse_count(count.partition("-")[0])


def parse_array_task_limit(array: str) -> int:
    """Return how many tasks of an array may run at once, of `7`, `1-3,9`, `0-20:2%4`; 1 for none.

    Slurm cuts a long list off with `...`: what is cut off is not counted.
    """
    count = max(sum(map(len, parse_array_task_ranges(array))), 1)
    return min(count, parse_count(array.partition("%")[2]) or count)


def parse_node_state_and_flags(states: list[str]) -> tuple[str, frozenset[str]]:
    """Base state and flags of a node, however the release spells them."""
    base, flags = "UNKNOWN", set()
    for word in states:
        if word.endswith("*"):
            flags.add("NOT_RESPONDING")
        word = word.rstrip("*~#!%$@^-+")
        if word in NODE_BASE and base == "UNKNOWN":
            base = word
        elif word and word not in NODE_BASE:
            flags.add(_NODE_FLAG.get(word, word))
    return base, frozenset(flags)


_UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


class ConsumableResources(Struct, frozen=True):
    """What SelectType deals out of a node: all of it to one job, or CPUs and perhaps memory."""

    whole: bool = False
    memory: bool = True


DEFAULT_DEALT: Final = ConsumableResources()


def parse_consumable_resources(config: Mapping[str, str]) -> ConsumableResources:
    """Parse what a node deals out, from `scontrol show config`."""
    whole = config.get("SelectType", "") == "select/linear"
    return ConsumableResources(whole, "MEMORY" in config.get("SelectTypeParameters", "").upper())


@lru_cache(maxsize=1024)
def compute_node_tres(cpus: int, memory: int, gres: str, by: ConsumableResources) -> Tres:
    """Return what jobs can have of a node; NOTHING_KNOWN where it goes to one job as a whole."""
    if by.whole or cpus <= 0:
        return NOTHING_KNOWN
    return Tres(cpus, memory if by.memory else 0, parse_gres(gres))


@lru_cache(maxsize=1024)
def parse_gres(text: str) -> tuple[tuple[str, int], ...]:
    """GRES by name, of `gpu:h100:8(S:0-1),nvme:1`, `gres:gpu:1`, `gres/gpu:2`; types added up.

    24.11 has `cpu=2` among what is asked for by task: other fields have that.
    """
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, _, rest = re.sub(r"^gres[:/]", "", part.strip().replace("=", ":")).partition(":")
        if name in ("", "(null)", "cpu", "mem", "node", "billing"):
            continue
        last = rest.rpartition(":")[2]
        found[name] = found.get(name, 0) + parse_count(last, 1)
    return tuple(sorted(found.items()))


def parse_mebibytes(text: str) -> int:
    """Return the MiB of `2000M`, `1.5G`; 0 where it is no size."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)", text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else 0


def parse_tres(text: str) -> dict[str, str]:
    """Return a TRES string as `cpu=16,mem=2000M,node=2`."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: count for name, _, count in pairs}
