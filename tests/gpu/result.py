"""The results of a run: one JSON, one page, and the folder of raw recordings."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.context import KEPT

if TYPE_CHECKING:
    from tests.gpu.runner import PartResult


def write_result(out: Path, results: list[PartResult], scratch: Path, *, dry: bool) -> None:
    """Write result.json, result.md and recordings/ below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    document = {"dry": dry, "parts": [asdict(result) for result in results]}
    (out / "result.json").write_text(json.dumps(document, indent=1) + "\n")
    page = ["# hpctl on a GPU", ""]
    for result in results:
        page += [f"## {result.title}", "", f"{result.state} {result.why}", ""]
        page += [f"- {line}" for line in result.lines]
    (out / "result.md").write_text("\n".join(page) + "\n")
    for result in results:
        kept = scratch / "parts" / result.name / KEPT
        if kept.exists():
            shutil.copytree(kept, out / "recordings", dirs_exist_ok=True)
