"""Log rules on a large log: megabytes a second of one core, from the file to the verdicts.

The rivals look for the same patterns in the same file: a loop over its lines with Python's `re`,
as a script of a few lines does, and `grep -E -c` with all of them, which counts lines, captures
nothing and judges nothing.
"""

import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Outcome, Row, median
from hpctl.jobs.logs.engine import LogFollower, LogRuleEngine
from hpctl.jobs.logs.rules import LogRuleSet, load_log_rule_preset

SIZE = 32 << 20
RUNS = 3
BAR = 50.0
OTHER = (
    "[rank{n}]:2026-11-21 12:00:00,123 - root - INFO - a line of {step} that no rule is about,"
    " as long as most\n"
)
STEP = (
    " [2026-11-21 12:00:00] iteration {step:8d}/  500000 | consumed samples: {step:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.500000E-04 |"
    " global batch size:   512 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.200 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
KINDS = {"one line in 20 is a step": 20, "every line is a step": 1}


def run() -> Outcome:
    """Both kinds of log, each read by all in turn."""
    rules = load_log_rule_preset("megatron")
    rows, notes = [], []
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        for what, every in KINDS.items():
            log = Path(directory) / f"{every}.log"
            lines = _write(log, every)
            log.read_bytes()
            rates = _measure(
                {
                    "ours": lambda log=log: _ours(rules, log),
                    "re": lambda log=log: _plain(rules, log),
                    "grep": lambda log=log: _grep(rules, log),
                },
                log.stat().st_size / 1e6,
            )
            name = f"{len(rules.rules)} rules, {what}"
            bar = BAR if every > 1 else None
            rows.append(Row(name, rates["ours"], "MB/s", "loop with re", rates["re"], bar, True))
            rows.append(Row(name, rates["ours"], "MB/s", "grep -E -c", rates["grep"]))
            notes.append(f"{what}: {log.stat().st_size / 1e6:.0f} MB, {lines:,} lines")
    return Outcome("logs", rows, [*notes, f"processor time, medians of {RUNS} in turn, page cache"])


def _write(log: Path, every: int) -> int:
    made, size, number = [], 0, 0
    while size < SIZE:
        number += 1
        loss, ms = 2.0 + number % 7 / 100, 2000.0 + number % 11
        shape = OTHER if number % every else STEP
        made.append(shape.format(n=number % 8, step=number, loss=loss, ms=ms))
        size += len(made[-1])
    log.write_text("".join(made))
    return number


def _measure(work: dict[str, Callable[[], None]], size: float) -> dict[str, float]:
    """Megabytes a second of processor time, the children's with it: others use this machine."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(RUNS):
        for name, one in work.items():
            begun = _processor()
            one()
            taken[name].append(size / (_processor() - begun))
    return {name: median(values) for name, values in taken.items()}


def _processor() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _ours(rules: LogRuleSet, log: Path) -> None:
    engine, follower, done = LogRuleEngine(rules, 0.0), LogFollower(log), False
    while not done:
        lines, done = follower.read()
        engine.feed(lines, 1.0)
    follower.close()
    assert engine.watches[0].matched
    assert not any(watch.fired for watch in engine.watches)


def _plain(rules: LogRuleSet, log: Path) -> None:
    patterns = [re.compile(rule.logPattern.encode()) for rule in rules.rules]
    found = 0
    with log.open("rb") as file:
        for line in file:
            for pattern in patterns:
                found += pattern.search(line) is not None
    assert found


def _grep(rules: LogRuleSet, log: Path) -> None:
    # `-E` knows no \d and no non-capturing group.
    patterns = [
        rule.logPattern.replace(r"[-+.\w]", "[-+.[:alnum:]_]").replace(r"[\d.]", "[0-9.]")
        for rule in rules.rules
    ]
    options = [part for text in patterns for part in ("-e", text.replace(r"\d", "[0-9]"))]
    # Into a pipe: grep stops at the first line that it finds when its output is thrown away.
    environment = {**os.environ, "LC_ALL": "C"}
    command = ["grep", "-E", "-c", *options, str(log)]
    subprocess.run(command, stdout=subprocess.PIPE, timeout=120, check=True, env=environment)
