"""What goes wrong with a run, in one word each, whichever program saw it.

The supervisor inside the job, the log rules, the daemon and a crash's post-mortem all state a
Trouble; `hpctl.jobs.decide` alone says what is done about it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.toolkit import bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import NodeName

EVIDENCE_CHARS = 2000
STOP_EXIT_CODE = 93
"""By which a job says that it must not be run again: NVIDIA's resiliency extension's code."""
NOT_FOUND_EXIT_CODE: Final = 127

UNSTARTED: Final[Mapping[int, str]] = {
    126: "its command cannot be executed",
    NOT_FOUND_EXIT_CODE: "its command was not found",
}
"""What shells, env(1) and our own launcher mean by these exit codes (POSIX, 2.8.2)."""


class TroubleKind(StrEnum):
    """The ways in which a run goes wrong."""

    NODE = "node"
    """A node of it is faulty, DOWN or gone."""
    CRASH = "crash"
    """A rank ended on its own: an exception, an assertion, an unknown exit code."""
    GPU_MEMORY = "gpu_memory"
    """CUDA out of memory."""
    HOST_MEMORY = "host_memory"
    """The kernel or Slurm killed a rank for its memory."""
    CUDA = "cuda"
    """A CUDA, ROCm or Neuron error that names the device or its driver."""
    NETWORK = "network"
    """A collective timed out, or a peer could not be reached."""
    HANG = "hang"
    """No progress for longer than the run's own past explains."""
    NAN = "nan"
    """A loss or gradient that is no longer a number."""
    SPIKE = "spike"
    """A loss far above the run's own recent past."""
    SLOW = "slow"
    """Throughput below a threshold or the run's own past."""
    UPLOAD = "upload"
    """A checkpoint could not be uploaded."""
    STORAGE = "storage"
    """A file system error: stale, read-only, I/O error."""
    DISK_FULL = "disk_full"
    """A file system has no room left, or a quota is used up."""
    CORRUPTION = "corruption"
    """Evidence of silent data corruption (exit codes 16 and 17, Megatron's rerun machine)."""
    NO_PROGRESS = "no_progress"
    """It ended with exit code 0 before its end and without a newer checkpoint."""
    PREEMPTED = "preempted"
    """Slurm took its nodes for another job."""
    TIME_LIMIT = "time_limit"
    """Its time limit is near, or over."""
    KILLED = "killed"
    """A signal from outside that nothing else explains."""
    FINAL = "final"
    """An exit code that asks not to be run again (93 and others)."""


class HangPlace(StrEnum):
    """Where the rank is that the others of a hung run wait for, as far as its node shows it."""

    UNKNOWN = ""
    """Its stack was not read."""
    GONE = "gone"
    """It has no process any longer, or one that has ended."""
    SILENT = "silent"
    """It wrote no dump, as the others did, and its stack was not read."""
    STOPPED = "stopped"
    """A signal has stopped it."""
    FILES = "files"
    """It waits for a file system, or reads or writes a checkpoint."""
    LOADER = "loader"
    """It waits for its data loader."""
    CODE = "code"
    """It runs other code."""


class Trouble(Struct, frozen=True):
    """One thing that went wrong with one run of a job.

    `why` is one sentence for a person. `signature` is the same for the same root cause: no
    addresses, times, pids or step numbers in it. `rank` is the global rank. `exit_code` is the
    shell's (128 + n for signal n). `step` is the last training step that was seen, `progress` the
    step of the newest complete checkpoint; None where it is unknown. `at` is kept in
    bounds, texts are kept printable. `hang_place` is where that rank is, of a hang.
    """

    kind: TroubleKind
    at: datetime
    why: str
    signature: str = ""
    node: NodeName | None = None
    rank: int | None = None
    device: str = ""
    exit_code: int | None = None
    evidence: str = ""
    step: int | None = None
    progress: int | None = None
    hang_place: HangPlace = HangPlace.UNKNOWN

    def __post_init__(self) -> None:
        bounds.clamp_time_fields(self, "at")
        bounds.make_text_fields_printable(self, "why", "signature", "device", "evidence")


def classify_program_start_failure(why: str, again: bool) -> tuple[TroubleKind, str]:
    """Return what it amounts to that a program could not even be started (`UNSTARTED`).

    A name that is wrong once is wrong every time: FINAL. `again`: another run or rank of the same
    job could start it, which means that what it needs is missing here and now, as a mount may be.
    """
    if again:
        return (
            TroubleKind.STORAGE,
            f"{why}, and it was there elsewhere or before: is a mount missing?",
        )
    return TroubleKind.FINAL, f"{why}: another try would not change that"
