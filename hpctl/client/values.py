"""What the client returns: frozen values.

Each that comes from a JSON object of `hpctl` keeps it whole in `document`; docs/cli-json.md
describes its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Union


@dataclass(frozen=True)
class Job:
    """A job, or one task of an array (`12_3`).

    `notes` and `warnings`: what `hpctl sbatch` said when it submitted the job.
    """

    id: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def task(self, index: int) -> Job:
        """Return one task of this array."""
        return Job(f"{self.id}_{index}")

    def __str__(self) -> str:
        return self.id


AnyJob = Union[Job, str, int]
"""How a job is named: a Job, or its id."""


@dataclass(frozen=True)
class Status:
    """The cluster as `hpctl status` shows it.

    `ok` is None where the daemon or Slurm could not be asked. `mode`: observe, assist or own.
    """

    cluster: str
    mode: str
    ok: bool | None
    problems: tuple[str, ...]
    unknowns: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Status:
        """Return the values of an `hpctl.status/1` object."""
        problems = tuple(document["problems"])
        unknowns = tuple(document["unknowns"])
        ok: bool | None = not problems
        if ok and unknowns:
            ok = None
        return Status(
            cluster=document["cluster"],
            mode=document["mode"],
            ok=ok,
            problems=problems,
            unknowns=unknowns,
            document=document,
        )


@dataclass(frozen=True)
class RunTrouble:
    """What went wrong with a run. `kind`: crash, gpu_memory, node, hang, ... (docs/policies.md)."""

    kind: str
    why: str
    node: str
    rank: int | None
    exit_code: int | None

    @staticmethod
    def of(document: Mapping[str, Any]) -> RunTrouble:
        """Return the values of a `Trouble` object."""
        return RunTrouble(
            kind=document["kind"],
            why=document["why"],
            node=document["node"],
            rank=document["rank"],
            exit_code=document["exit_code"],
        )


Trouble = RunTrouble
"""The earlier name of `RunTrouble`, for programs that import it."""


@dataclass(frozen=True)
class Explanation:
    """What hpctl did about a job or node, or did not do, and why.

    `next`: what happens next, and what a person should do. `trouble`: what went wrong with the
    run, where it is not a node's fault. `standing_still`: what its processes do instead of work.
    """

    target: str
    kind: str
    headline: str
    next: str
    trouble: RunTrouble | None
    standing_still: str
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Explanation:
        """Return the values of an `hpctl.explain/1` object."""
        trouble = document["trouble"]
        standstill = document["standstill"]
        return Explanation(
            target=document["target"],
            kind=document["kind"],
            headline=document["headline"],
            next=document["next"]["what"],
            trouble=RunTrouble.of(trouble) if trouble else None,
            standing_still=standstill["why"] if standstill else "",
            document=document,
        )


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    `complete`: None where that is unknown. `why`: why it is not complete. `unproven`: what of
    a complete one is not proved. `marked`: why no run resumes from it though it may be complete
    (`hpctl resume`, `hpctl checkpoint mark`); empty where it is not marked.
    """

    path: str
    complete: bool | None
    step: int | None
    format: str | None
    why: str
    unproven: str
    marked: str = ""

    @staticmethod
    def of(document: Mapping[str, Any]) -> Checkpoint:
        """Return the values of a `Row` object."""
        mark = document.get("mark")  # not there before hpctl has marks
        marked = f"by {mark['by']}: {mark['why']}" if mark else ""
        return Checkpoint(
            path=document["path"],
            complete=document["complete"],
            step=document["step"],
            format=document["format"],
            why=document["why"],
            unproven=document["unproven"],
            marked=marked,
        )


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a place, newest first. `why`: why some or all cannot be judged."""

    place: str
    all: tuple[Checkpoint, ...]
    why: str
    document: Mapping[str, Any] = field(repr=False)

    @property
    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint that is not marked, from which a job resumes; None
        where there is none.
        """
        return next((each for each in self.all if each.complete and not each.marked), None)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Checkpoints:
        """Return the values of an `hpctl.checkpoint-ls/1` object."""
        return Checkpoints(
            place=document["place"],
            all=tuple(Checkpoint.of(row) for row in document["checkpoints"]),
            why=document["why"],
            document=document,
        )


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    `state`: Slurm's word, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, OUT_OF_MEMORY, ...; or
    HELD: the job waits, held by hpctl, for a person. `exit_code`: of its script; None where Slurm
    says none. `signal`: what ended the script, 0 for none. `restarts`: how often it was started
    again. `cause`: why it ended or is held, empty where it is unknown. `todo`: what to do about it.
    """

    job: Job
    state: str
    exit_code: int | None
    signal: int
    restarts: int
    cause: str
    todo: str

    @property
    def ok(self) -> bool:
        """Return whether the job has completed with exit code 0."""
        return self.state == "COMPLETED" and self.exit_code == 0
