"""Why a job failed, in one word with a confidence, and whether a retry may help."""

from __future__ import annotations

from msgspec import Struct

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import NodeName


class FailureCause(StrEnum):
    """Where the cause of a failure lies."""

    NODE = "node"
    """A node's hardware, driver or operating system."""
    LINK = "link"
    """A network card, a cable, a switch, or NVLink."""
    PROGRAM = "program"
    """The job's own code, command or settings."""
    DATA = "data"
    """An input sample, or what loads the samples."""
    MEMORY = "memory"
    """The job needs more GPU or host memory than it has."""
    STORAGE = "storage"
    """A file system: full, out of reach, or with errors."""
    PREEMPTION = "preemption"
    """Slurm or a person ended the run: preemption, cancellation, the time limit."""
    UNKNOWN = "unknown"


class VerdictConfidence(StrEnum):
    """How sure a verdict is."""

    HIGH = "high"
    """The component that failed reports the failure, or it failed twice in the same way."""
    MEDIUM = "medium"
    """One source names the cause."""
    LOW = "low"
    """Nothing contradicts the cause, and nothing confirms it."""


class FailureVerdict(Struct, frozen=True):
    """Why a run failed. `rank` and `node` are where, None if unknown. `reasons` are sentences, the
    most telling first. `may_retry`: the job's policy permits another try."""

    cause: FailureCause
    confidence: VerdictConfidence
    rank: int | None = None
    node: NodeName | None = None
    reasons: tuple[str, ...] = ()
    may_retry: bool = True

    @property
    def text(self) -> str:
        """Return the verdict as a clause: `cause: program (high confidence)`."""
        if self.cause is FailureCause.UNKNOWN:
            return "cause: unknown"
        return f"cause: {self.cause} ({self.confidence} confidence)"
