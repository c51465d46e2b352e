"""What others say: shipped rows never act, and a site writes rules of its own."""

from datetime import datetime

import pytest

from hpctl.config import parse
from hpctl.core.assess import assess
from hpctl.core.catalogue import SHIPPED, Override, Rules, UnknownRuleError, rules
from hpctl.core.compat import UTC
from hpctl.core.faults.table import ROWS
from hpctl.core.marks import RULES as MARK_RULES
from hpctl.core.model import (
    Assessment,
    BootId,
    Condition,
    Finding,
    Generation,
    Health,
    InstanceId,
    NodeName,
    Remedy,
    RuleId,
    Urgency,
    Verdict,
)
from hpctl.errors import HpctlError
from hpctl.wiring import make_rules

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINE = RuleId("report-scratch-full")
WHOLE = Override(
    meaning="scratch is full", urgency=Urgency.AFTER_JOBS, ladder=(Remedy.REBOOT, Remedy.ASK_HUMAN)
)


def judged(check: str, code: str, mine: Rules, verdict: Verdict = Verdict.FAIL) -> Assessment:
    finding = Finding(check, verdict, NOW, NOW, code=code)
    generation = Generation(NodeName("n1"), InstanceId("i-1"), BootId("b-1"))
    return assess(Health(generation, NOW, (finding,)), mine, NOW)


def test_no_shipped_row_acts() -> None:
    """But HyperPod's own marks in Slurm, on which nobody else acts where its recovery is off."""
    acts = {rule for rule, row in ROWS.items() if row.check == "hma" and row.acts}
    assert acts == MARK_RULES
    assert SHIPPED[RuleId("hma-replace")].ladder == (Remedy.REPLACE,)
    assert SHIPPED[RuleId("hma-spent")].ladder == (Remedy.NONE,)
    assert SHIPPED[RuleId("hma-reboot")].ladder == (Remedy.REBOOT, Remedy.REPLACE)


@pytest.mark.parametrize(
    ("check", "code", "condition", "rule"),
    [
        ("hma.event", "NvidiaGpuXidErrorPendingReplacement", "suspect", "hma-event"),
        ("hma.event", "NvidiaGpuXidRestartApp", "healthy", "hma-event-NvidiaGpuXidRestartApp"),
        ("hma.npd", "XidUserAppError", "healthy", "hma-npd-XidUserAppError"),
        ("hma.xid", "79", "suspect", "hma-xid"),
        ("agent.plugins", "refused", "suspect", "agent-plugins"),
        ("report.scratch", "full", "suspect", "check-failed"),
        ("plugin.nhc", "7", "suspect", "check-failed"),
        ("alert.NodeDown", "critical", "suspect", "check-failed"),
    ],
)
def test_what_others_say_is_shown_and_never_acted_on(
    check: str, code: str, condition: str, rule: str
) -> None:
    found = judged(check, code, rules())
    assert (found.condition, found.fault) == (Condition(condition), None)
    assert f"[{rule}]" in found.why


def test_a_site_gives_its_own_finding_a_meaning_and_a_ladder() -> None:
    found = judged("report.scratch", "full", rules({MINE: WHOLE}))
    assert found.condition is Condition.FAULTY
    assert found.fault is not None
    assert (found.fault.rule, found.fault.meaning) == (MINE, "scratch is full")
    assert found.fault.ladder == (Remedy.REBOOT, Remedy.ASK_HUMAN)
    assert found.fault.source == "this site's own rule"


def test_dots_and_dashes_of_a_check_are_one() -> None:
    mine = rules({RuleId("alert-NodeDiskFull"): WHOLE, RuleId("plugin-nhc-fs-12"): WHOLE})
    assert judged("alert.NodeDiskFull", "critical", mine).condition is Condition.FAULTY
    assert judged("plugin.nhc.fs", "12", mine).condition is Condition.FAULTY


@pytest.mark.parametrize(
    ("rule", "change", "hint"),
    [
        ("report-scratch", Override(urgency=Urgency.NOW), "needs meaning and ladder too"),
        ("plugin-x", Override(meaning="m", ladder=(Remedy.REBOOT,)), "needs urgency too"),
        ("xid-97x", WHOLE, "did you mean"),
        ("hma-evnt", WHOLE, "did you mean hma-event"),
        ("report-", WHOLE, "docs/catalogue.md"),
        ("host-my-own", WHOLE, ""),
    ],
)
def test_half_a_rule_and_other_names_are_refused(rule: str, change: Override, hint: str) -> None:
    with pytest.raises(UnknownRuleError) as caught:
        rules({RuleId(rule): change})
    assert hint in caught.value.hint


def test_half_a_rule_near_a_whole_one_of_the_site_is_told_so() -> None:
    with pytest.raises(UnknownRuleError) as caught:
        rules({MINE: WHOLE, RuleId("report-scratch-ful"): Override(settle_s=3)})
    assert "did you mean report-scratch-full, or is it new?" in caught.value.hint
    assert "needs meaning and urgency and ladder too" in caught.value.hint


def test_the_configuration_file_may_hold_such_a_rule() -> None:
    text = """
cluster: {provider: none}
catalogue:
  report-scratch-full: {meaning: scratch is full, urgency: now, ladder: [reboot, replace]}
"""
    assert make_rules(parse(text)).classes[MINE].ladder == (Remedy.REBOOT, Remedy.REPLACE)
    with pytest.raises(HpctlError, match="no rule 'report-scratch-full'") as caught:
        make_rules(parse(text.replace("meaning: scratch is full, ", "")))
    assert "needs meaning too" in caught.value.hint
