"""The fault table: complete, sound, documented; a site's overrides and own rules."""

import pytest

from hpctl.engine.adapters import build_fault_rules_with_overrides
from hpctl.engine.config import parse_config
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import SHIPPED, FaultRules, UnknownRuleError, build_fault_rules
from hpctl.faults.hma_marks import RULES as MARK_RULES
from hpctl.faults.table import CHECKS, KERNEL_CHECKS, ROWS, list_check_fault_rows
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import FaultClassOverride
from tests.fakes.values import T0 as NOW


def defaults(name: str):
    return SHIPPED[name]


def test_every_number_up_to_176_has_a_row():
    assert [n for n in range(1, 177) if f"xid-{n}" not in SHIPPED] == []


def test_rows_are_sound():
    for rule, fault in SHIPPED.items():
        assert fault.rule == rule
        assert fault.meaning
        assert fault.source
        assert fault.escalate_window_s > 0
        acts = {Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, Remedy.AWAIT} & set(fault.ladder)
        # What is done already leaves a closed node to be given back.
        touched = fault.urgency is not Urgency.NONE and rule not in ("hma-spent", "slurm-rebooted")
        assert bool(acts) is touched, rule


def test_override_changes_only_what_it_names():
    mine = build_fault_rules(
        {"xid-94": FaultClassOverride(urgency=Urgency.NONE, ladder=(Remedy.NONE,))}
    )
    assert mine.classes["xid-94"].urgency is Urgency.NONE
    assert mine.classes["xid-94"].settle_s == defaults("xid-94").settle_s
    assert mine.classes["xid-95"] is defaults("xid-95")


def test_unknown_rule_names_the_near_miss():
    with pytest.raises(UnknownRuleError, match="'xid-97x'") as error:
        build_fault_rules({"xid-97x": FaultClassOverride(settle_s=1)})
    assert "xid-97" in error.value.hint


@pytest.mark.parametrize(
    "change",
    [
        FaultClassOverride(ladder=()),
        FaultClassOverride(urgency=Urgency.NOW),
        FaultClassOverride(settle_s=-1),
        FaultClassOverride(settle_s=float("nan")),
    ],
)
def test_senseless_overrides_are_refused(change):
    with pytest.raises(ValueError, match="xid-13"):
        build_fault_rules({"xid-13": change})


MINE = "report-scratch-full"

WHOLE = FaultClassOverride(
    meaning="scratch is full", urgency=Urgency.AFTER_JOBS, ladder=(Remedy.REBOOT, Remedy.ASK_HUMAN)
)


def judged(
    check: str, code: str, mine: FaultRules, verdict: DeviceVerdict = DeviceVerdict.FAIL
) -> NodeAssessment:
    finding = Finding(check, verdict, NOW, NOW, code=code)
    return assess_health(NodeHealth(NodeGeneration("n1", "i-1", "b-1"), NOW, (finding,)), mine, NOW)


def test_no_default_row_acts():
    """But HyperPod's own marks in Slurm, on which nobody else acts where its recovery is off."""
    assert {rule for rule, row in ROWS.items() if row.check == "hma" and row.acts} == MARK_RULES
    assert SHIPPED["hma-replace"].ladder == (Remedy.REPLACE,)
    assert SHIPPED["hma-spent"].ladder == (Remedy.NONE,)
    assert SHIPPED["hma-reboot"].ladder == (Remedy.REBOOT, Remedy.REPLACE)


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
def test_what_others_say_is_shown_and_never_acted_on(check, code, condition, rule):
    found = judged(check, code, build_fault_rules())
    assert (found.condition, found.fault) == (NodeCondition(condition), None)
    assert f"[{rule}]" in found.why


def test_a_site_gives_its_own_finding_a_meaning_and_a_ladder():
    found = judged("report.scratch", "full", build_fault_rules({MINE: WHOLE}))
    assert found.condition is NodeCondition.FAULTY
    assert (found.fault.rule, found.fault.meaning) == (MINE, "scratch is full")
    assert found.fault.ladder == (Remedy.REBOOT, Remedy.ASK_HUMAN)
    assert found.fault.source == "this site's own rule"


def test_dots_and_dashes_of_a_check_are_one():
    mine = build_fault_rules({"alert-NodeDiskFull": WHOLE, "plugin-nhc-fs-12": WHOLE})
    assert judged("alert.NodeDiskFull", "critical", mine).condition is NodeCondition.FAULTY
    assert judged("plugin.nhc.fs", "12", mine).condition is NodeCondition.FAULTY


@pytest.mark.parametrize(
    ("rule", "change", "hint"),
    [
        ("report-scratch", FaultClassOverride(urgency=Urgency.NOW), "needs meaning and ladder too"),
        ("plugin-x", FaultClassOverride(meaning="m", ladder=(Remedy.REBOOT,)), "needs urgency too"),
        ("xid-97x", WHOLE, "did you mean"),
        ("hma-evnt", WHOLE, "did you mean hma-event"),
        ("report-", WHOLE, "docs/catalogue.md"),
        ("host-my-own", WHOLE, ""),
    ],
)
def test_half_a_rule_and_other_names_are_refused(rule, change, hint):
    with pytest.raises(UnknownRuleError) as caught:
        build_fault_rules({rule: change})
    assert hint in caught.value.hint


def test_half_a_rule_near_a_whole_one_of_the_site_is_reported_so():
    with pytest.raises(UnknownRuleError) as caught:
        build_fault_rules({MINE: WHOLE, "report-scratch-ful": FaultClassOverride(settle_s=3)})
    assert "did you mean report-scratch-full, or is it new?" in caught.value.hint
    assert "needs meaning and urgency and ladder too" in caught.value.hint


def test_the_configuration_file_may_hold_such_a_rule():
    text = """
cluster: {provider: none}
catalogue:
  report-scratch-full: {meaning: scratch is full, urgency: now, ladder: [reboot, replace]}
"""
    assert build_fault_rules_with_overrides(parse_config(text)).classes[MINE].ladder == (
        Remedy.REBOOT,
        Remedy.REPLACE,
    )
    with pytest.raises(HpctlError, match="no rule 'report-scratch-full'") as caught:
        build_fault_rules_with_overrides(
            parse_config(text.replace("meaning: scratch is full, ", ""))
        )
    assert "needs meaning too" in caught.value.hint


FINDS_NOTHING = {"gpu.gauges", "job.activity"}


@pytest.mark.parametrize("spec", [*CHECKS, *KERNEL_CHECKS], ids=lambda spec: spec.name)
def test_a_check_is_whole(spec):
    n, m = spec.seen
    assert 1 <= n <= m
    assert spec.every_s >= 1 or spec in KERNEL_CHECKS
    assert spec.what
    assert spec.source
    assert all(limit.unit and limit.why for limit in spec.limits.values())
    assert list_check_fault_rows(spec.name) or spec.name in FINDS_NOTHING
    # Else it would be gone before the next run could see it again; due times vary by a tenth.
    assert spec.clears is not ClearCondition.GONE or spec.gone_s > 1.1 * spec.every_s or n == m == 1


def test_a_hung_call_is_reported_within_half_a_minute():
    spec = next(spec for spec in CHECKS if spec.name == "gpu.hung")
    # Two missed deadlines, one interval late, with the runner's jitter.
    assert spec.limits["overdue_s"].value + 1.1 * spec.every_s * spec.seen[0] < 30
