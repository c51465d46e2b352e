"""The lines of a log that explain how it ended: the first of the failure, and the last of all.

When a rank fails, each other rank prints that it has lost a peer. Of a large job those tracebacks
are longer than any end of the log that is worth keeping, and the error of the rank that failed
comes before them. So a `LogTailBuffer` keeps the lines from the first traceback on, until so many
ordinary lines have come that the run has got over it.
"""

import re
from collections import deque
from itertools import islice
from typing import Final

SURVIVED_LINES: Final = 40
"""A run that printed so many ordinary lines after an error has survived it."""
FIRST_LINES: Final = 250
LAST_LINES: Final = 250
_CONTEXT_LINES: Final = 20
"""Lines before the first traceback that are kept: a kernel's assertion comes before it."""
_BEGINS: Final = re.compile(
    r"Traceback \(most recent call last\)|terminate called |Fatal Python error: "
)
"""How the failure of a process begins: Python's, libstdc++'s and faulthandler's first lines."""
_BEGINS_BYTES: Final = re.compile(_BEGINS.pattern.encode())
LABEL: Final = re.compile(r" *(\d+): ")
"""`srun --label` names the task: a rank, or the launcher of several."""
_NOISE: Final = re.compile(
    r"\s(?!\s*\d+%\|)|$|srun: |slurmstepd: |wandb: |frame #|[WEIF]\d{4} |\[\d+\]:$|[=*-]{8}"
    r"|\S* ?NCCL |Failures:|Traceback |Exception raised from|terminate called|During handling"
    r"|The above exception|\[rank\d+\]:"
)
_ERROR: Final = re.compile(r"[\w.]{1,100}(?:Error|Exception|Exit|Interrupt|Timeout|Failure)\b")
"""The last line of a traceback."""


class LogTailBuffer:
    """The first lines of the failure that a log ends with, and its last lines.

    `first` and `last` are how many lines of each are kept.
    """

    def __init__(self, first: int = FIRST_LINES, last: int = LAST_LINES) -> None:
        """Begin with no line."""
        self._most_first = first
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=last)
        self._begin = self._count = self._ordinary = 0

    def add_log_block(self, block: bytes, longest: int) -> None:
        """Take in whole lines of a log, each shortened to `longest` characters."""
        lines = block.split(b"\n")[:-1]
        if not self._first and not _BEGINS_BYTES.search(block):
            # Nothing has failed: only the last lines count.
            skipped = max(0, len(lines) - (self._last.maxlen or 0))
            self._count += skipped
            lines = lines[skipped:]
        for line in lines:
            self._add_log_line(line.decode("utf-8", "replace")[:longest])

    def clear(self) -> None:
        """Drop all lines."""
        self._first, self._ordinary = [], 0
        self._last.clear()

    def list_lines(self) -> list[str]:
        """Return the lines that are kept, in their order."""
        end = self._begin + len(self._first)
        last = self._count - len(self._last)
        if not self._first or self._begin >= last:
            return list(self._last)
        return [*self._first, *islice(self._last, max(0, end - last), None)]

    def _add_log_line(self, line: str) -> None:
        begins = _BEGINS.search(line) is not None
        if begins and not self._first:
            before = list(self._last)[-_CONTEXT_LINES:]
            self._begin = self._count - len(before)
            self._first = before[: self._most_first]
        self._count += 1
        self._last.append(line)
        if self._first or begins:
            self._record_line_after_failure(line, begins)

    def _record_line_after_failure(self, line: str, begins: bool) -> None:
        """Keep a line after the failure began; drop what is kept where the run has survived it."""
        if len(self._first) < self._most_first:
            self._first.append(line)
        if begins or _ERROR.match(strip_srun_task_label(line)):
            self._ordinary = 0
        elif is_normal_program_output_line(line):
            self._ordinary += 1
        if self._ordinary >= SURVIVED_LINES:
            self._first, self._ordinary = [], 0


def is_normal_program_output_line(line: str) -> bool:
    """Return whether a line is output of a program that runs, and not part of an error's report."""
    return _NOISE.match(strip_srun_task_label(line)) is None


def strip_srun_task_label(line: str) -> str:
    """Return a line without the task that `srun --label` puts before it."""
    label = LABEL.match(line)
    return line[label.end() :] if label else line
