"""`hpctl agent triage`: how right it is on kernel lines without a pattern, and how fast.

How right: the sets of `tests/detection/corpus/held_out`, labeled by what the drivers' sources mean
before hpctl read them; of the last one nothing was mended. The rival is what everybody types:
`dmesg | grep -iE 'error|fail|...'`, and for acting a list of Xid numbers to reboot for.

How fast: the whole command on a megabyte, of all kinds of lines and of Xid lines alone, beside a
loop with Python's `re` over the same file and `grep -E -c`; and one line of 100,000 characters,
the slowest of thousands that are made to be slow: every line that some pattern is for, stretched
at each place with what the pattern repeats.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

from benchmarks.table import Outcome, Row
from hpctl.detection.triage import KernelLogTriageReader
from tests.detection.corpus.unseen import SETS, Case, Judgment, figures, hpctl, load
from tests.detection.kernel_cases import CASES, PATTERNS

RUNS = 5
MEGABYTE = 1_000_000
LONG = 100_000
BAR_S, BAR_LINE_MS = 1.0, 10.0
WORDS = r"error|fail|fatal|timeout|timed out|lost|corrupt|panic|lockup|stall|bug:|oom|xid"
_TYPED = re.compile(WORDS, re.IGNORECASE)
_FATAL_XIDS = re.compile(
    r"Xid \(.*?\): (?:46|48|54|62|64|74|79|94|95|109|119|120|140|143|154|158),"
)
_FILLERS = (
    "9",
    " ",
    "A",
    "a=[x](0x1,",
    "0000:18:00.0 ",
    ": ",
    "[",
    "{1}[Hardware Error]: ",
    "\\x01",
)
_XID = "[{n:12.6f}] NVRM: Xid (PCI:0000:{gpu}8:00): {code}, pid={n}, name=python, Ch 00000008\n"
_CODES = (79, 13, 31, 43, 45, 94, 63)


def run() -> Outcome:
    """The sets, then the clock."""
    rows: list[Row] = []
    for name in SETS:
        rows.extend(_right(name, load(name)))
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        for what, lines in (("of all kinds", _mixed()), ("of Xid lines", _xids())):
            log = Path(directory) / "kernel.log"
            log.write_text(_megabyte(lines))
            rows.extend(_fast(what, log))
    worst, count = _slowest()
    rows.append(
        Row(f"a line of {LONG:,} characters, the worst of {count:,}", worst, "ms", bar=BAR_LINE_MS)
    )
    notes = [
        f"rival for lines: grep -iE '{WORDS}'; for acts: a list of Xid numbers",
        f"processor time, the least of {RUNS} runs",
    ]
    return Outcome("triage", rows, notes)


def _right(name: str, cases: list[Case]) -> Iterator[Row]:
    ours, theirs = figures(cases, hpctl), figures(cases, _typed)
    of, rival = f"{name} set, {ours.lines} lines", "grep"
    yield Row(f"{of}: benign acted on", ours.benign_acted, "", rival, theirs.benign_acted, 0)
    for what, mine, other, bar in (
        ("acts right", ours.acts_right, theirs.acts_right, 99.0),
        ("act recall", ours.act_recall, theirs.act_recall, 98.0),
        ("seen", ours.seen, theirs.seen, 98.0),
    ):
        yield Row(f"{of}: {what}", 100 * mine, "%", rival, 100 * other, bar, True)
    yield Row(
        f"{of}: benign told of",
        100 * ours.benign_reported,
        "%",
        rival,
        100 * theirs.benign_reported,
    )


def _typed(text: str) -> Judgment:
    remedy = "reboot" if _FATAL_XIDS.search(text) else ""
    return Judgment(_TYPED.search(text) is not None, remedy)


def _mixed() -> Iterator[str]:
    texts = [case.text for name in SETS for case in load(name)]
    number = 0
    while True:
        for text in texts:
            number += 1
            yield f"[{number / 100:12.6f}] {text}\n"


def _xids() -> Iterator[str]:
    number = 0
    while True:
        yield _XID.format(n=number, gpu=number % 8, code=_CODES[number % len(_CODES)])
        number += 1


def _megabyte(lines: Iterator[str]) -> str:
    made, size = [], 0
    while size < MEGABYTE:
        made.append(next(lines))
        size += len(made[-1])
    return "".join(made)


def _fast(what: str, log: Path) -> Iterator[Row]:
    command = [sys.executable, "-m", "hpctl", "agent", "triage", "--json", str(log)]
    ours = _processor(lambda: _child(command, (0, 1)))
    empty = [sys.executable, "-m", "hpctl", "agent", "triage", os.devnull]
    start = _processor(lambda: _child(empty, (0,)))
    loop = _processor(lambda: _loop(log))
    grep = _processor(lambda: _child(["grep", "-i", "-E", "-c", WORDS, str(log)], (0,)))
    name = f"1 MB {what}, the whole command"
    yield Row(name, ours, "s", "loop with re", loop, BAR_S)
    yield Row(name, ours, "s", "grep -iE -c", grep)
    yield Row(name, ours, "s", "itself on no line", start)


def _loop(log: Path) -> None:
    """Every shape that hpctl has for kernel lines, searched for in every line."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            for shape in PATTERNS:
                shape.search(line)


def _child(command: list[str], codes: tuple[int, ...]) -> None:
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=120, check=False)
    assert ended.returncode in codes, command


def _processor(work: Callable[[], None]) -> float:
    """Least seconds of processor time, the children's with it: who shares a core slows it too."""
    taken = []
    for _ in range(RUNS):
        begun = _used()
        work()
        taken.append(_used() - begun)
    return min(taken)


def _used() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _slowest() -> tuple[float, int]:
    """Milliseconds that the slowest line took, and how many were tried."""
    worst, count = 0.0, 0
    for text in _stretched():
        count += 1
        took = _line_ms(text)
        # Whoever was in the way is not there each time.
        if took > worst:
            worst = max(worst, min([took, *(_line_ms(text) for _ in range(RUNS - 1))]))
    return worst, count


def _line_ms(text: bytes) -> float:
    reader, begun = KernelLogTriageReader(), time.process_time()
    list(reader.views(BytesIO(text)))
    return 1000 * (time.process_time() - begun)


def _stretched() -> Iterator[bytes]:
    for text in dict.fromkeys(case[0] for case in CASES):
        for at in (4, len(text) // 3, 2 * len(text) // 3, len(text)):
            for filler in (*_FILLERS, text[max(0, at - 12) : at]):
                rest = LONG - len(text)
                line = text[:at] + (filler * (rest // len(filler) + 1))[:rest] + text[at:]
                yield line.encode()
