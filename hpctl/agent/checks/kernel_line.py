"""What every family of kernel lines says of one line, and the finding that it becomes.

A family is a module `kernel_<family>` with `HEADS` (the first four characters of the lines that
it wants; see `hpctl.agent.checks.kernel`), `gather(record)` and `judge(line)`. What bad a line
means for the node is not decided here: the head node's catalogue does, by
`<check with dashes>-<code>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hpctl.agent.kmsg import Record
from hpctl.core.model import Clears, Finding, Verdict

EVIDENCE_CHARS = 512
NAME_CHARS = 128
"""Of a device's or server's name, which may be as long as its owner likes."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that matters. `pid` is the process that it names, `job` the job where it says so."""

    check: str
    code: str
    at: datetime
    text: str
    device: str = ""
    detail: str = ""
    pid: int | None = None
    job: str = ""
    count: int = 1


def line(check: str, code: str, record: Record, device: str = "", pid: str | None = None) -> Line:
    """A line as a record says it: its time and its text, cut to what a report carries."""
    number = int(pid) if pid else None
    return Line(
        check, code, record.at, record.text[:EVIDENCE_CHARS], device[:NAME_CHARS], "", number
    )


def finding(said: Line, verdict: Verdict = Verdict.FAIL, clears: Clears = Clears.BOOT) -> Finding:
    """The finding that a line amounts to. The job of its `pid` is looked up by the dispatcher."""
    return Finding(
        check=said.check,
        verdict=verdict,
        first=said.at,
        last=said.at,
        device=said.device,
        code=said.code,
        detail=said.detail,
        evidence=said.text,
        count=said.count,
        clears=clears,
        job=said.job,
    )


def watched(said: Line, serious: frozenset[str]) -> Finding:
    """FAIL for the `serious` codes of a family, WARN for its others."""
    return finding(said, Verdict.FAIL if said.code in serious else Verdict.WARN)
