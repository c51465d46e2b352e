"""Books, what ranks say to them, and the hang that comes of it."""

from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs.progress.notes import Note
from hpctl.jobs.progress.run_progress import RunProgress

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = RunPolicy()


def book(policy: RunPolicy = POLICY) -> RunProgress:
    return RunProgress(policy, 1000.0, BEGAN)


def run(
    b: RunProgress, steps: int, every: float, ranks: int = 1, at: float = 1000.0, start: int = 1
) -> float:
    """Steps in lockstep; the time of the last."""
    for step in range(start, start + steps):
        at += every
        for rank in range(ranks):
            b.add(said(rank, step), at + rank / 1000)
    return at


def said(rank: int, step: int | None = None, **more: object) -> Note:
    return Note(
        step=step, rank=rank, node=f"n{rank // 2}", gpu=str(rank % 2), pid=100 + rank, **more
    )  # type: ignore[arg-type]


def hang(b: RunProgress, at: float, none_at: float | None = None) -> Trouble:
    """The hang that is told at one time, and none at another before it."""
    assert none_at is None or b.trouble(none_at) is None
    trouble = b.trouble(at)
    assert trouble.kind is Kind.HANG
    return trouble
