"""The contract suite of NVML, which the tests' stand-in passes too, on the real driver."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.context import NotRun

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "NVML's contract suite on the real driver"
LIMIT_S = 60
DRY_LIMIT_S = 60
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "pytest"})

ROOT = Path(__file__).resolve().parents[3]
SUITE = "tests/contract/nvml"


def run(context: Context) -> None:
    """Run the suite by pytest. Raises NotRun where the tree has none."""
    if not (ROOT / SUITE).is_dir():
        raise NotRun(f"no {SUITE} in this tree")
    words = ["-q", "-p", "no:cacheprovider", "-o", "timeout=60", SUITE]
    # The suite marks the tests on the real card. Those on recorded cards run with all other tests:
    # a dry run sees to it that pytest finds them.
    words += ["--collect-only"] if context.dry else ["-m", "gpu"]
    done = context.run([sys.executable, "-m", "pytest", *words], LIMIT_S, folder=ROOT)
    context.record("exit_code", done.code)
    context.record("output", done.out[-20_000:])
    ended = re.findall(r"\d+ (?:passed|failed|error|skipped|tests collected)[^=\n]*", done.out)
    context.say(f"pytest ended with {done.code}: {ended[-1] if ended else done.err[-300:]}")
    for line in done.out.splitlines():
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            context.say(line)
