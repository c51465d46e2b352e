"""The contract suite of NVML, which the tests' stand-in passes too, on the real driver."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "NVML's contract suite on the real driver"
LIMIT_S = 60
DRY_LIMIT_S = 60
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "pytest"})

ROOT = Path(__file__).resolve().parents[3]
SUITE = "tests/detection/nvml/contract"


def run(context: Context) -> None:
    """Run the suite by pytest on the machine's card, in a dry run on the recorded idle one."""
    words = ["-q", "-p", "no:cacheprovider", "-o", "timeout=60", SUITE]
    # In the common folder pytest deletes what earlier runs left at its exit, however long that is.
    words.append(f"--basetemp={context.scratch / 'pytest'}")
    # A dry run leaves out what waits for ten seconds: the suite is among all tests anyway.
    words += ["-k", "recorded-idle and not stopped"] if context.dry else ["-m", "gpu"]
    # A container may hide the PCI bus, by which the suite finds a card.
    environment = {} if context.dry else {"HPCTL_TEST_GPU": "1"}
    done = context.run(
        [sys.executable, "-m", "pytest", *words], LIMIT_S, folder=ROOT, environment=environment
    )
    context.record("exit_code", done.code)
    context.record("output", done.out[-20_000:])
    ended = re.findall(r"\d+ (?:passed|failed|error|skipped)[^=\n]*", done.out)
    context.say(f"pytest ended with {done.code}: {ended[-1] if ended else done.err[-300:]}")
    for line in done.out.splitlines():
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            context.say(line)
