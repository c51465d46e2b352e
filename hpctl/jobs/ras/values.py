"""One answer of the RAS service, as values that are the same whichever format it came in.

JSON (NCCL 2.28.7 and later) tells every rank's counts. The text of 2.24 to 2.28.3 groups ranks by
count and lists only the outliers: fewer than half of a communicator in its verbose form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpctl.core.compat import StrEnum

RUNNING, FINALIZE, ABORT, INIT = "RUNNING", "FINALIZE", "ABORT", "INIT"
IN_PROGRESS, REMOTE_ERROR = 7, 6
"""ncclResult_t: ncclInProgress is no error, ncclRemoteError is another rank's."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A rank of one communicator: the number is the communicator's own, not the job's.

    `host` is the address that NCCL's bootstrap uses, as digits; empty where it is not told, as
    `pid` and the devices are None. `nvml_dev` is what nvidia-smi calls the GPU, `cuda_dev` what
    the process does.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None

    @property
    def process(self) -> tuple[str, int | None, int | None] | None:
        """What is the same for this GPU's process in every communicator."""
        return (self.host, self.pid, self.cuda_dev) if self.pid is not None else None


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a communicator that have launched the same number of one operation.

    `size` of them; `members` are those who are named, all or none or some.
    """

    count: int
    size: int
    members: tuple[Member, ...] = ()


class Absence(StrEnum):
    """Why a communicator's rank did not tell of it."""

    DEAD = "dead"
    """Its process could not be reached for 60 s: given up for good."""
    UNRESPONSIVE = "unresponsive"
    """Its process did not answer in time: stopped, gone a moment ago, or cut off."""
    ELSEWHERE = "no member"
    """Its process answered, and is not (yet, or any more) a member."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that its communicator expects and nobody told of."""

    member: Member
    absence: Absence


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank with an error: NCCL's word for it."""

    member: Member
    error: str
    remote: bool
    """The error is that another rank failed."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator. `counts` maps an operation to its groups, lowest count first.

    `whole`: each rank's counts are known, also where all are equal (JSON). In the text, equal
    counts are not told: `counts` holds only operations whose counts differ.
    """

    name: str
    size: int | None = None
    counts: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()
    failures: tuple[Failure, ...] = ()
    status: str = RUNNING
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """One answer: what all ranks of the job said within a few seconds."""

    nccl_version: str
    communicators: tuple[Communicator, ...]
    dead: tuple[Member, ...] = ()
    """Processes that are given up for dead (text only; their rank is not told: -1)."""
    timeouts: int = 0
    text: str = ""
    """The beginning of the answer as it came, for evidence."""
