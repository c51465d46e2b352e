"""From what a node's agent said to what it amounts to: `assess`, a pure and total function.

The order of authority is the driver's own word (Xid 154), then the catalogue's row with its
companions, then history (which is the plan's business). A burst of equal lines is one incident.
UNKNOWN findings never make a node healthier and never make it faulty; silence neither.

Findings are folded into incidents first: field logs hold 800 000 lines of one code that are 29
distinct errors, and hundreds of Xid 45 from ordinary job churn: what counts is which device said
which code when, never how often.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from hpctl.faults.catalogue import FaultRules
from hpctl.faults.decode import (
    NVLINK5_CODES,
    find_nvlink5_rule,
    find_sxid_rule,
    find_xid154_rule,
    find_xid_rule,
    is_harmless_xid74,
)
from hpctl.faults.incidents import (
    SXID,
    XID,
    FaultIncident,
    can_be_same_fault_event,
    collect_incident_evidence,
    group_findings_by_incident,
    is_incident_repeated_on_gpu_component,
    make_finding_sort_key,
)
from hpctl.faults.reachability import CHECKS as REACH
from hpctl.faults.table import DRIVERS
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import FaultClass, NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName, RuleId
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth

DRIVER = "kernel.driver"


SETTLED = timedelta(minutes=10)
"""After the last finding: no row waits longer for companions."""


_CHECKS_OF_DRIVER = {row.driver: row.checks for row in DRIVERS}


_HEALTHY = NodeCondition.HEALTHY


_OK = DeviceVerdict.OK


_URGENCY = {Urgency.NONE: 0, Urgency.AFTER_JOBS: 1, Urgency.NOW: 2}


_STRENGTH = {remedy: n for n, remedy in enumerate(Remedy)}


_EYES = ("kernel.log", "gpu.", "efa.", "neuron.")


# Where the kernel's log or the devices of the training cannot be judged, nothing vouches for the
# node: verification waits. A check of the host that cannot tell leaves the rest of what is seen.
_DRIVER = "154"


_NO_ACTION = RuleId("xid-154-none")


_NO_ACTION_LOOKBACK = timedelta(seconds=5)


_CONTAINED = RuleId("xid-48-contained")


_LINE_UNKNOWN = RuleId("kernel-driver-unknown")


_LINE_CONFIRMED = RuleId("kernel-driver-unknown-confirmed")


_JOB_LOST = RuleId("xid-154-drain-and-reset-job-lost")


class _ClassifiedIncident(Struct, frozen=True):
    """An incident, the row that speaks for it, and when that row may be believed."""

    incident: FaultIncident
    fault: FaultClass
    settled_at: datetime
    note: str = ""

    def is_settled(self, now: datetime) -> bool:
        """Return whether the row may be believed. One that waits for nothing needs no clock
        either."""
        return self.fault.settle_s == 0 or self.settled_at <= now


def assess_health(health: NodeHealth, rules: FaultRules, now: datetime) -> NodeAssessment:
    """Return what the facts about one generation amount to at `now`.

    FAULTY only by a rule that touches the node (urgency not NONE) and whose settling time is
    over; SUSPECT while a companion line may still change the verdict (`until` says when to look
    again) and for rows that are only watched; UNKNOWN when nothing was heard for
    `rules.silent_after` or when a check could not tell that a node must not be without. A fault
    that is proven stays through silence.
    For a healthy node `since` is when it was last heard.
    """
    silent = now - health.last_heard > rules.silent_after
    if not silent and _has_no_fault_findings(health):
        return NodeAssessment(health.generation, _HEALTHY, health.last_heard)
    incidents = group_findings_by_incident(health.findings)
    if not silent and not incidents:
        return _make_healthy_assessment(health, (), ())
    cases = _classify_incidents(incidents, rules)
    pending = [c for c in cases if not c.is_settled(now)]
    until = min((c.settled_at for c in pending), default=None)
    proven = [c for c in cases if c.is_settled(now) and c.fault.urgency is not Urgency.NONE]
    if proven:
        return _make_faulty_assessment(health, proven, incidents, rules, until)
    spoken = [c for c in pending if c.incident.check not in REACH]
    if spoken or (pending and not silent):
        return _make_suspect_assessment(health, spoken or pending, incidents, until)
    if silent:
        return replace(_make_silent_node_assessment(health, rules, now, incidents), until=until)
    watched = [c for c in cases if c.fault.rule in rules.watched]
    if watched:
        return _make_suspect_assessment(health, watched, incidents, None)
    return _make_healthy_assessment(health, cases, incidents)


def assess_findings_without_settling(
    findings: tuple[Finding, ...], rules: FaultRules
) -> NodeAssessment:
    """Assess findings as the daemon does once no rule waits for companion lines any longer.

    For code that judges a log as it is, without a cluster.
    """
    now = max(finding.last for finding in findings) + SETTLED
    here = NodeGeneration(NodeName("this-node"), InstanceId("i-0"), BootId("this-boot"))
    return assess_health(NodeHealth(here, now, findings), rules, now)


def list_fault_classes_by_severity(
    findings: Iterable[Finding], rules: FaultRules
) -> tuple[FaultClass, ...]:
    """Return the rows that speak for these findings, the gravest first; none where they mean
    nothing.

    What `assess` goes by, without its waits: for code that asks what a single line means.
    """
    faults = {
        c.fault.rule: c.fault
        for c in _classify_incidents(group_findings_by_incident(findings), rules)
    }
    return tuple(
        sorted(faults.values(), key=lambda f: make_fault_severity_sort_key(f, rules), reverse=True)
    )


def _has_no_fault_findings(health: NodeHealth) -> bool:
    """Return early in the common case of 10 000 nodes a cycle, before anything is folded."""
    return not health.findings or all(f.verdict is _OK for f in health.findings)


def _classify_incidents(
    incidents: Sequence[FaultIncident], rules: FaultRules
) -> list[_ClassifiedIncident]:
    """Return the rows that stand after companions and the driver's word have been heard."""
    drivers = _find_xid154_incident_rules(incidents)
    words = {driver.device: n for n, (driver, _) in enumerate(drivers)}
    xids = {(i.code, i.device): i for i in incidents if i.check == XID}
    cases: list[_ClassifiedIncident] = []
    covered: dict[int, list[FaultClass]] = {}
    for incident in incidents:
        if incident.check == DRIVER or (incident.check == XID and incident.code == _DRIVER):
            continue
        rule = _find_rule_of_xid_incident(incident, xids, rules)
        if rule is None:
            continue
        fault = rules.classes[rule]
        mine = [words[d] for d in {incident.device, ""} if d in words]
        driver = (
            _find_matching_xid154_incident(incident, drivers, mine, rules.fold)
            if rule in rules.follows
            else None
        )
        if driver is not None:
            covered.setdefault(driver, []).append(fault)
        else:
            cases.append(_make_classified_incident(incident, fault))
    for number, (incident, rule) in enumerate(drivers):
        faults = covered.get(number, [])
        if rule == "xid-154-drain-and-reset" and any(f.urgency is Urgency.NOW for f in faults):
            rule = _JOB_LOST
        cases.append(
            _make_classified_incident(
                incident, rules.classes[rule], _describe_superseded_rules(faults)
            )
        )
    unknown_lines = [incident for incident in incidents if incident.check == DRIVER]
    signs = [case.incident for case in cases if _is_node_fault_incident(case, rules)]
    for incident in unknown_lines:
        confirmed = any(
            _is_confirming_driver_hardware_fault(sign, incident, rules.fold) for sign in signs
        )
        rule = _LINE_CONFIRMED if confirmed else _LINE_UNKNOWN
        cases.append(_make_classified_incident(incident, rules.classes[rule]))
    return cases


def _is_node_fault_incident(case: _ClassifiedIncident, rules: FaultRules) -> bool:
    """Return whether a case makes its node Faulty or Suspect: a program's own Xid does not."""
    return case.fault.urgency is not Urgency.NONE or case.fault.rule in rules.watched


def _is_confirming_driver_hardware_fault(
    sign: FaultIncident, lines: FaultIncident, fold: timedelta
) -> bool:
    """Return whether a sign is about the hardware of unknown driver lines, within `fold` of
    them."""
    if not can_be_same_fault_event(sign, lines, fold):
        return False
    drivers = {finding.detail for finding in lines.findings}
    return any(sign.check.startswith(_CHECKS_OF_DRIVER.get(driver, ())) for driver in drivers)


def _make_classified_incident(
    incident: FaultIncident, fault: FaultClass, note: str = ""
) -> _ClassifiedIncident:
    return _ClassifiedIncident(
        incident, fault, add_seconds_within_bounds(incident.first, fault.settle_s), note
    )


def _describe_superseded_rules(faults: Sequence[FaultClass]) -> str:
    return f" (decides for {', '.join(sorted({f.rule for f in faults}))})" if faults else ""


def _find_xid154_incident_rules(
    incidents: Iterable[FaultIncident],
) -> list[tuple[FaultIncident, RuleId]]:
    """Return the newest Xid 154 of each device, cut to the finding that counts, with its rule."""
    found = []
    for incident in incidents:
        if incident.check == XID and incident.code == _DRIVER:
            newest = max(incident.findings, key=lambda f: (f.last, *make_finding_sort_key(f)))
            one = FaultIncident(XID, incident.device, _DRIVER, (newest,), newest.first, newest.last)
            found.append((one, find_xid154_rule(newest.detail, newest.evidence)))
    return found


def _find_matching_xid154_incident(
    incident: FaultIncident,
    drivers: Sequence[tuple[FaultIncident, RuleId]],
    mine: Iterable[int],
    fold: timedelta,
) -> int | None:
    """Index of the driver's word on this incident, of those (`mine`) that are on its device and of
    none: one that is not older than it.

    Xid 154 reports a change of state, so one that comes later speaks for all that went before.
    A fault that lasts for longer than `fold` after it is judged by its own row; one that
    follows a `None` even sooner, for what was all right may just have broken.
    """
    heard = []
    for number in mine:
        driver, rule = drivers[number]
        reach = _NO_ACTION_LOOKBACK if rule == _NO_ACTION else fold
        if rule != "xid-154" and incident.last - driver.last <= reach:
            heard.append((driver.last, number))
    return max(heard)[1] if heard else None


_Xids = Mapping[tuple[str, str], FaultIncident]
"""The incidents of Xids by code and device: a node may tell hundreds, and looks at each in turn."""


def _find_rule_of_xid_incident(
    incident: FaultIncident, xids: _Xids, rules: FaultRules
) -> RuleId | None:
    """Return the catalogue row for an incident, or None where a companion has absorbed it."""
    if incident.check == SXID:
        return _find_rule_of_sxid_incident(incident, rules)
    if incident.check != XID:
        return _find_rule_of_nonkernel_check(incident, rules)
    code = incident.code
    if code in ("171", "172") and _is_xid_of_same_event("48", incident, xids, rules):
        return None
    if code == "163" and _is_power_smoothing_restored(incident, xids):
        return None
    if code == "48" and _is_xid_of_same_event("94", incident, xids, rules):
        return _CONTAINED
    if code in NVLINK5_CODES:
        return _pick_most_severe_rule(
            {find_nvlink5_rule(code, f.detail or f.evidence) for f in incident.findings}, rules
        )
    if code == "74" and all(is_harmless_xid74(f.detail) for f in incident.findings):
        return RuleId("xid-74-corrected")
    rule = RuleId(f"xid-{code}")
    again = RuleId(f"{rule}-repeat")
    if again in rules.classes and is_incident_repeated_on_gpu_component(
        incident, rules.classes[again].escalate_window_s, rules.apart
    ):
        return again
    return find_xid_rule(code, "")


def _is_xid_of_same_event(
    code: str, incident: FaultIncident, xids: _Xids, rules: FaultRules
) -> bool:
    """Return whether an Xid of that code belongs to the same event."""
    if incident.device:
        found = [xids.get((code, incident.device)), xids.get((code, ""))]
    else:
        found = [other for (its, _), other in xids.items() if its == code]
    return any(other and can_be_same_fault_event(incident, other, rules.fold) for other in found)


def _is_power_smoothing_restored(incident: FaultIncident, xids: _Xids) -> bool:
    """Power smoothing off (163) no longer counts once it is on again (162) on the same device."""
    again = xids.get(("162", incident.device))
    return again is not None and again.last >= incident.last


def _find_rule_of_sxid_incident(incident: FaultIncident, rules: FaultRules) -> RuleId:
    """Return the rule for an SXid, by what the site does about its number."""
    known = rules.classes.get(RuleId(f"sxid-{incident.code}"))
    acts = None if known is None else known.urgency is not Urgency.NONE
    return find_sxid_rule(incident.code, incident.text, acts)


def _find_rule_of_nonkernel_check(incident: FaultIncident, rules: FaultRules) -> RuleId | None:
    """Return the rule of a check that is no kernel line: its own row, else watched if it failed."""
    stem = incident.check.replace(".", "-")
    for name in (f"{stem}-{incident.code}", stem):
        if name in rules.classes:
            return RuleId(name)
    if any(f.verdict is DeviceVerdict.FAIL for f in incident.findings):
        return RuleId("check-failed")
    return None


def make_fault_severity_sort_key(fault: FaultClass, rules: FaultRules) -> tuple[int, int, int]:
    """Return what orders faults: urgency, then the strength of the first rung, then the table."""
    return (_URGENCY[fault.urgency], _STRENGTH[fault.ladder[0]], -rules.order[fault.rule])


def _pick_most_severe_rule(names: Iterable[RuleId], rules: FaultRules) -> RuleId:
    return max(names, key=lambda name: make_fault_severity_sort_key(rules.classes[name], rules))


def _make_faulty_assessment(
    health: NodeHealth,
    proven: Sequence[_ClassifiedIncident],
    incidents: Sequence[FaultIncident],
    rules: FaultRules,
    until: datetime | None,
) -> NodeAssessment:
    top = max(make_fault_severity_sort_key(c.fault, rules) for c in proven)
    same = [c for c in proven if make_fault_severity_sort_key(c.fault, rules) == top]
    case = min(same, key=lambda c: (c.incident.first, c.incident.device))
    others = sorted(proven, key=lambda c: c.incident.first, reverse=True)
    return NodeAssessment(
        health.generation,
        NodeCondition.FAULTY,
        case.incident.first,
        fault=case.fault,
        findings=collect_incident_evidence([c.incident for c in same], incidents),
        why=_format_classified_incident(case, len(same) - 1),
        until=until,
        also={c.fault.rule: c.incident.first for c in others if c.fault.rule != case.fault.rule},
    )


def _make_suspect_assessment(
    health: NodeHealth,
    cases: Sequence[_ClassifiedIncident],
    incidents: Sequence[FaultIncident],
    until: datetime | None,
) -> NodeAssessment:
    # Unknown lines are there only because of another sign, which is what a person should read.
    signs = [c for c in cases if c.incident.check != DRIVER] or cases
    case = min(signs, key=lambda c: (c.settled_at, c.incident.first, c.fault.rule))
    doing = "watched" if until is None else "waiting for companion lines"
    if case.incident.check in REACH and until is not None:
        doing = "waiting whether it lasts"
    return NodeAssessment(
        health.generation,
        NodeCondition.SUSPECT,
        min(c.incident.first for c in signs),
        findings=collect_incident_evidence([c.incident for c in cases], incidents),
        why=f"{_format_classified_incident(case, len(cases) - 1)}; {doing}",
        until=until,
    )


def _make_silent_node_assessment(
    health: NodeHealth, rules: FaultRules, now: datetime, incidents: Sequence[FaultIncident]
) -> NodeAssessment:
    seconds = (now - health.last_heard).total_seconds()
    return NodeAssessment(
        health.generation,
        NodeCondition.UNKNOWN,
        health.last_heard + rules.silent_after,
        findings=collect_incident_evidence(incidents, ()),
        why=f"agent-silent: nothing heard from the agent for {seconds:.0f} s",
    )


def _make_healthy_assessment(
    health: NodeHealth, cases: Sequence[_ClassifiedIncident], incidents: Sequence[FaultIncident]
) -> NodeAssessment:
    unknown = tuple(
        sorted(
            (f for f in health.findings if f.verdict is DeviceVerdict.UNKNOWN),
            key=make_finding_sort_key,
        )
    )
    blind = [finding for finding in unknown if finding.check.startswith(_EYES)]
    if blind:
        more = f" and {len(blind) - 1} more" if len(blind) > 1 else ""
        return NodeAssessment(
            health.generation,
            NodeCondition.UNKNOWN,
            min(f.first for f in blind),
            findings=unknown,
            why=f"cannot tell: {blind[0].check}{more}: {blind[0].detail}".removesuffix(": "),
        )
    why = "; ".join(dict.fromkeys(_format_classified_incident(c, 0) for c in cases))
    return NodeAssessment(
        health.generation,
        _HEALTHY,
        health.last_heard,
        findings=collect_incident_evidence(incidents, ()) + unknown,
        why=f"{why}; the node stays in service" if why else "",
    )


def _format_classified_incident(case: _ClassifiedIncident, more: int) -> str:
    incident = case.incident
    where = f" on {incident.device}" if incident.device else ""
    name = {XID: "Xid", SXID: "SXid"}.get(incident.check, incident.check)
    what = f"{name} {incident.code}".strip()
    times = f", {incident.count} times" if incident.count > 1 else ""
    others = f", and {more} more" if more else ""
    return f"{what}{where}: {case.fault.meaning}{times}{case.note}{others} [{case.fault.rule}]"
