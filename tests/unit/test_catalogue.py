"""The fault table: complete, sound, overridable, documented."""

import pytest

from docgen.generate import stale
from hpctl.core.catalogue import (
    SHIPPED,
    Override,
    UnknownRuleError,
    deviations,
    rules,
    vendor_deviations,
)
from hpctl.core.model import Remedy, RuleId, Urgency


def shipped(name: str):
    return SHIPPED[RuleId(name)]


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
    mine = rules({RuleId("xid-94"): Override(urgency=Urgency.NONE, ladder=(Remedy.NONE,))})
    assert mine.classes[RuleId("xid-94")].urgency is Urgency.NONE
    assert mine.classes[RuleId("xid-94")].settle_s == shipped("xid-94").settle_s
    assert mine.classes[RuleId("xid-95")] is shipped("xid-95")


def test_deviations_list_every_field_that_differs():
    mine = rules(
        {
            RuleId("xid-79"): Override(ladder=(Remedy.REPLACE,), escalate_window_s=60),
            RuleId("xid-48"): Override(settle_s=3),
        }
    )
    assert [(d.rule, d.what, d.shipped, d.ours) for d in deviations(mine)] == [
        ("xid-79", "ladder", "reboot > replace", "replace"),
        ("xid-79", "escalate_window_s", "604800", "60"),
    ]
    assert deviations(rules()) == ()


def test_unknown_rule_names_the_near_miss():
    with pytest.raises(UnknownRuleError, match="'xid-97x'") as error:
        rules({RuleId("xid-97x"): Override(settle_s=1)})
    assert "xid-97" in error.value.hint


@pytest.mark.parametrize(
    "change",
    [
        Override(ladder=()),
        Override(urgency=Urgency.NOW),
        Override(settle_s=-1),
        Override(settle_s=float("nan")),
    ],
)
def test_senseless_overrides_are_refused(change):
    with pytest.raises(ValueError, match="xid-13"):
        rules({RuleId("xid-13"): change})


def test_departures_from_nvidia_are_listed_and_argued():
    listed = {d.rule: d.ours for d in vendor_deviations()}
    for code in (45, 54, 63, 74, 109, 119, 165, 169):
        assert listed[RuleId(f"xid-{code}")]
        assert listed[RuleId(f"xid-{code}")] in shipped(f"xid-{code}").source
    assert "xid-79" not in listed


def test_documentation_is_what_the_table_says():
    assert stale() == [], "run `make docs`"
