"""What findings amount to: remedies, fault classes and the assessment of a node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import NodeGeneration, RuleId
from hpctl.vocabulary.model import Finding


class Remedy(StrEnum):
    """One rung of a fault class's ladder, gentlest first."""

    NONE = "none"
    RESTART_JOB = "restart_job"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    DELETE = "delete"
    """By an operator's order, or to make a group smaller: no fault class names it."""
    AWAIT = "await"
    ASK_HUMAN = "ask_human"


class Urgency(StrEnum):
    """What a fault means for the jobs on the node."""

    NONE = "none"
    """The node stays in service."""
    AFTER_JOBS = "after_jobs"
    """Close the node to new work; remedy it when its jobs have ended by themselves."""
    NOW = "now"
    """The jobs there are lost or at risk: stop them and start them elsewhere."""


class FaultClass(Struct, frozen=True):
    """A row of the catalogue: what a code means and what to do about it.

    `settle_s` is how long to wait for companion lines (Xid 154 above all) before believing the
    row alone. `escalate_window_s`: a recovery of the same instance by the same rule within this
    many seconds climbs one rung. `source` says where the row comes from.
    """

    rule: RuleId
    meaning: str
    urgency: Urgency
    ladder: tuple[Remedy, ...]
    settle_s: float = 0.0
    escalate_window_s: float = 7 * 86400.0
    source: str = ""


class NodeCondition(StrEnum):
    """An assessment in one word."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


NOT_REACHED: Final = ("slurm", "silent")
"""Check and code of a slurmd that does not answer slurmctld. It is no news of a node: slurmctld
says so of each one for a moment after its RESUME, and no rule acts on it."""


class NodeAssessment(Struct, frozen=True):
    """What the facts about one generation amount to, and which rule says so.

    For SUSPECT, `until` is when it must be looked at again (settling), if there is such a time.
    `also`: the other rules that call it faulty besides `fault`, and since when.
    """

    generation: NodeGeneration
    condition: NodeCondition
    since: datetime
    fault: FaultClass | None = None
    findings: tuple[Finding, ...] = ()
    why: str = ""
    until: datetime | None = None
    also: Mapping[RuleId, datetime] = field(default_factory=dict)

    @property
    def faults(self) -> Mapping[RuleId, datetime]:
        """Return all rules that call it faulty, and since when."""
        if self.fault is None:
            return self.also
        return {**self.also, self.fault.rule: self.since}

    @property
    def newest(self) -> datetime:
        """Return when the evidence last said something new: a line each time, a condition as it
        began."""
        news = [
            finding.last if finding.check.startswith("kernel.") else finding.first
            for finding in self.findings
            if (finding.check, finding.code) != NOT_REACHED
        ]
        return max(news, default=self.since)
