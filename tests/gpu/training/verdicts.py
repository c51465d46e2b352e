"""What hpctl says of a program's end, and of a checkpoint, as plain values."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def classify(code: int | None, text: str) -> dict[str, Any]:
    """Return hpctl's verdict on a program that ended with this code and this output."""
    from hpctl.jobs import crash
    from hpctl.vocabulary.run_policy import RunPolicy

    now = datetime.now(timezone.utc)
    ended = 1 if code is None else code
    trouble = crash.classify_crash(ended, text.splitlines(), at=now, policy=RunPolicy())
    return {
        "kind": str(trouble.kind),
        "why": trouble.why,
        "rank": trouble.rank,
        "node": trouble.node,
        "device": trouble.device,
        "signature": trouble.signature,
        "exit_code": trouble.exit_code,
    }


def label_lines(text: str, rank: int) -> str:
    """Return a text as a job's log has it: with srun's label before each line."""
    return "\n".join(f"{rank}: {line}" for line in text.splitlines())


def judge_all(directory: Path) -> list[dict[str, Any]]:
    """Return hpctl's verdict on everything in a directory of checkpoints."""
    from hpctl.checkpoints import search

    return [_judged(each) for each in search.list_checkpoints(directory)]


def find_newest(directory: Path) -> dict[str, Any] | None:
    """Return the checkpoint that hpctl would resume from; None if there is none."""
    from hpctl.checkpoints import search

    found = search.find_newest_complete_checkpoint_in_tiers(directory).found
    return _judged(found) if found else None


def _judged(verdict: Any) -> dict[str, Any]:
    from hpctl.checkpoints.search import CompleteCheckpoint

    common = {"path": str(verdict.path), "name": Path(str(verdict.path)).name}
    if isinstance(verdict, CompleteCheckpoint):
        return {
            **common,
            "whole": True,
            "step": verdict.step,
            "format": verdict.format,
            "why": None,
        }
    return {
        **common,
        "whole": False,
        "step": None,
        "format": verdict.format,
        "why": str(verdict.why)[:300],
    }
