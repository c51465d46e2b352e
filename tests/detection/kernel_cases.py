"""Kernel lines in the wordings of several kernel generations: check, code, device, treatment."""

import re
from pathlib import Path

from hpctl.faults.table import SECTIONS, expand_regex_fragments
from hpctl.vocabulary.assessment import Urgency

HERE = Path(__file__).parent
WATCH, NOTHING = "watch", Urgency.NONE
MEANS = {
    "watch": WATCH, "nothing": NOTHING, "-": None, "after": Urgency.AFTER_JOBS, "now": Urgency.NOW,
}  # fmt: skip
OOM_OF_A_JOB = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,mems_allowed=0-1,"
    "oom_memcg=/system.slice/slurmstepd.scope/job_4711,"
    "task_memcg=/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0,"
    "task=python,pid=4321,uid=1000"
)


def rows(name: str) -> list[str]:
    """The lines of a file of cases, without its comments."""
    return [row for row in (HERE / name).read_text().splitlines() if not row.startswith("#")]


def _case(row: str) -> tuple[str, str, str, str, object]:
    check, code, means, device, text = row.split(" | ", 4)
    return text, check, code, "" if device == "-" else device, MEANS[means]


CASES = [_case(row) for row in rows("kernel_lines.txt")]
BENIGN = ["", *rows("kernel_benign.txt")]


def _pattern(text: str) -> re.Pattern[str]:
    """A row's pattern: the names of its groups may occur more than once there."""
    return re.compile(re.sub(r"\(\?P<\w+>", "(", expand_regex_fragments(text)))


PATTERNS = [_pattern(text) for _, rows in SECTIONS for row in rows for text in row.line]
"""Every pattern of the fault tables' rows."""
