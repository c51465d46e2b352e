"""The fault catalogue as rules: the shipped table, a site's overrides, and their differences."""

import difflib
import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.faults.sightings import describe_sightings
from hpctl.faults.table import ROWS, FaultRow
from hpctl.toolkit.bounds import clamp_duration
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.policy import FaultClassOverride

_TREATMENTS: Mapping[str, tuple[Urgency, tuple[Remedy, ...]]] = {
    "I": (Urgency.NONE, (Remedy.NONE,)),
    "W": (Urgency.NONE, (Remedy.NONE,)),
    "J": (Urgency.NONE, (Remedy.RESTART_JOB,)),
    "H": (Urgency.NONE, (Remedy.ASK_HUMAN,)),
    "R1": (Urgency.AFTER_JOBS, (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE)),
    "R2": (Urgency.NOW, (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE)),
    "B": (Urgency.NOW, (Remedy.REBOOT, Remedy.REPLACE)),
    "A": (Urgency.AFTER_JOBS, (Remedy.REBOOT, Remedy.REPLACE)),
    "X": (Urgency.NOW, (Remedy.REPLACE,)),
}
OWN_HARDWARE = frozenset(rule for rule, row in ROWS.items() if row.own)
"""The rules of what only a node's own hardware can produce: a bus, memory or a disk that is lost.

Many of these at once are no broken check. Such a node stays closed while their number keeps its
remedy back, for whatever made them all fail, it is of no use to a job.
"""
SITE_RULE = re.compile(r"(?:plugin|report|alert)-[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,199}\Z")
"""The ids under which a site may add rules: for plugins, reports and alerts."""
SITE_SOURCE = "this site's own rule"


class UnknownRuleError(ValueError):
    """An override names a rule that the catalogue does not have. `hint` names the fix."""

    def __init__(self, rule: str, near: tuple[str, ...], missing: tuple[str, ...] = ()) -> None:
        super().__init__(f"the fault catalogue has no rule {rule!r}")
        self.hint = f"did you mean {' or '.join(near)}?" if near else "see docs/catalogue.md"
        if missing:
            own = f"a rule of the site's own needs {' and '.join(missing)} too"
            self.hint = f"{self.hint[:-1]}, or is it new? {own}" if near else own


class FaultRules(Struct, frozen=True):
    """All that `assess` needs: the rows in force and how long it waits for what.

    `follows` are the rules that the driver's own word (Xid 154) replaces; `watched` make a node
    Suspect. `fold` is how far apart two lines may be and still belong together; `apart` is how
    far apart two of the same must be to be a repetition rather than one burst.
    """

    classes: Mapping[RuleId, FaultClass]
    order: Mapping[RuleId, int]
    follows: frozenset[RuleId]
    watched: frozenset[RuleId]
    overrides: Mapping[RuleId, FaultClassOverride] = field(default_factory=dict)
    silent_after: timedelta = timedelta(seconds=20)
    fold: timedelta = timedelta(seconds=60)
    apart: timedelta = timedelta(seconds=300)


def _describe_rule_source(row: FaultRow) -> str:
    guide = "Fabric Manager guide" if row.check == "kernel.sxid" else "Xid catalogue"
    source = f"NVIDIA {guide}: {row.nvidia}" if row.nvidia else "hpctl"
    differs = f"; hpctl differs: {row.differs}" if row.differs else ""
    return f"{source}{differs}; {describe_sightings(row.sightings)}"


def _make_fault_class(row: FaultRow, rule: RuleId) -> FaultClass:
    urgency, ladder = _TREATMENTS[row.treatment]
    if row.ladder:
        ladder = tuple(Remedy[name] for name in row.ladder.split())
    return FaultClass(
        rule, row.meaning, urgency, ladder, row.settle_s, row.window_s, _describe_rule_source(row)
    )


SHIPPED: Mapping[RuleId, FaultClass] = MappingProxyType(
    {rule: _make_fault_class(row, rule) for rule, row in ROWS.items()}
)
"""Every rule as shipped, in order of precedence."""

_WATCHED = frozenset(rule for rule, row in ROWS.items() if row.suspect)
_FOLLOWS = frozenset(
    rule
    for rule, row in ROWS.items()
    if row.check == "kernel.xid"
    and row.treatment in ("R1", "R2")
    and not rule.startswith("xid-154")
)


def _apply_fault_class_override(default: FaultClass, change: FaultClassOverride) -> FaultClass:
    names = change.__struct_fields__
    mine = replace(default, **{n: v for n in names if (v := getattr(change, n)) is not None})
    if not mine.ladder:
        raise ValueError(f"rule {mine.rule}: the ladder is empty")
    if mine.urgency is not Urgency.NONE and {Remedy.NONE, Remedy.RESTART_JOB} & set(mine.ladder):
        raise ValueError(
            f"rule {mine.rule}: urgency {mine.urgency} needs a ladder of remedies for the node, "
            f"not {'/'.join(mine.ladder)}"
        )
    if Remedy.DELETE in mine.ladder:
        raise ValueError(f"rule {mine.rule}: no fault class deletes a node")
    if not (mine.settle_s >= 0 and mine.escalate_window_s >= 0):
        raise ValueError(f"rule {mine.rule}: settle_s and escalate_window_s must not be negative")
    return mine


def _find_fault_class_to_override(
    rule: RuleId, changes: Mapping[RuleId, FaultClassOverride]
) -> FaultClass:
    """Return what an override starts from: the shipped row, or a site's own that does nothing
    yet."""
    if rule in SHIPPED:
        return SHIPPED[rule]
    missing: tuple[str, ...] = ()
    if SITE_RULE.match(rule) is not None:
        needed = ("meaning", "urgency", "ladder")
        missing = tuple(name for name in needed if not getattr(changes[rule], name))
        if not missing:
            return FaultClass(rule, "", Urgency.NONE, (Remedy.NONE,), source=SITE_SOURCE)
    others = (*SHIPPED, *(name for name in changes if name != rule))
    raise UnknownRuleError(rule, tuple(difflib.get_close_matches(rule, others, n=3)), missing)


def build_fault_rules(
    overrides: Mapping[RuleId, FaultClassOverride] | None = None, *, silent_after_s: float = 20.0
) -> FaultRules:
    """Return the shipped table with a site's overrides and its own rules, which come last.

    Raises UnknownRuleError for a rule id that is neither in the table nor a whole rule of the
    site's own, and ValueError for an override that makes no sense. A rule whose urgency or ladder
    a site sets no longer gives way to Xid 154: the site has decided.
    """
    changes = dict(overrides or {})
    classes = dict(SHIPPED)
    for rule, change in changes.items():
        classes[rule] = _apply_fault_class_override(
            _find_fault_class_to_override(rule, changes), change
        )
    decided = {r for r, c in changes.items() if c.urgency is not None or c.ladder is not None}
    return FaultRules(
        classes=MappingProxyType(classes),
        order=MappingProxyType({rule: n for n, rule in enumerate(classes)}),
        follows=_FOLLOWS - decided,
        watched=_WATCHED,
        overrides=MappingProxyType(changes),
        silent_after=clamp_duration(silent_after_s),
    )
