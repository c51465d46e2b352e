"""What findings amount to: the driver's word, companions, bursts, settling, silence."""

from datetime import timedelta

import pytest

from hpctl.faults.assess import assess_health, list_fault_classes_by_severity
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.incidents import (
    can_be_same_fault_event,
    group_findings_by_incident,
    is_incident_repeated_on_gpu_component,
)
from hpctl.vocabulary.assessment import NodeCondition, Remedy, Urgency
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import FaultClassOverride
from tests.fakes.values import T0, at

RULES = build_fault_rules()
GENERATION = NodeGeneration("n1", "i-1", "b1")
GPU, OTHER = "0000:3b:00", "0000:5e:00"


def xid(code, seconds=0.0, *, device=GPU, detail="", evidence="", last=None, count=1):
    end = at(seconds if last is None else last)
    return Finding(
        "kernel.xid",
        DeviceVerdict.FAIL,
        at(seconds),
        end,
        device,
        str(code),
        detail,
        evidence,
        count,
    )


def sxid(code, detail="", evidence=""):
    return Finding(
        "kernel.sxid", DeviceVerdict.FAIL, T0, T0, "0000:06:00", str(code), detail, evidence
    )


def unknown(check="gpu.count"):
    return Finding(check, DeviceVerdict.UNKNOWN, T0, T0)


def judge(*findings, now=30.0, heard=None, using=RULES):
    last_heard = at(now if heard is None else heard)
    return assess_health(NodeHealth(GENERATION, last_heard, findings), using, at(now))


def rule(*findings, now=30.0):
    found = judge(*findings, now=now)
    return None if found.fault is None else found.fault.rule


def test_a_node_that_says_nothing_bad_is_healthy():
    found = judge()
    assert (found.condition, found.fault, found.since) == (NodeCondition.HEALTHY, None, at(30))


def test_79_is_faulty_at_once():
    found = judge(xid(79), now=0)
    assert (found.condition, found.since, found.fault.rule) == (NodeCondition.FAULTY, T0, "xid-79")
    assert found.why.startswith(f"Xid 79 on {GPU}: GPU fell off the bus")
    assert "[xid-79]" in found.why


def test_a_row_that_waits_for_nothing_does_not_wait_for_a_clock_that_is_behind():
    assert judge(xid(79, 5), now=0, heard=0).condition is NodeCondition.FAULTY


HARMLESS = "8 13 14 31 37 38 43 44 45 68 69 92 93 106 108 109 121 137 141 160 176 56 4711 rubbish"


@pytest.mark.parametrize("code", [*HARMLESS.split(), ""])
@pytest.mark.parametrize("now", [0, 2, 30, 86400])
def test_codes_that_never_drain(code, now):
    found = judge(xid(code, last=2, count=700), xid(code, device=OTHER), now=now)
    assert found.condition in (NodeCondition.HEALTHY, NodeCondition.SUSPECT)
    assert found.fault is None


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_application_fault_leaves_the_node_healthy_and_says_so(code):
    found = judge(xid(code, count=700))
    assert found.condition is NodeCondition.HEALTHY
    assert found.findings == (xid(code, count=700),)
    assert found.why.endswith("the node stays in service")


def test_a_burst_is_one_incident():
    found = judge(*[xid(95, n / 10, evidence=f"line {n}", count=100) for n in range(29)])
    assert found.since == T0
    assert "2900 times" in found.why
    assert "more" not in found.why


def test_the_same_on_all_gpus_is_reported_once():
    found = judge(*(xid(79, n, device=f"gpu{n}") for n in range(8)))
    assert found.why.startswith("Xid 79 on gpu0")
    assert "and 7 more" in found.why
    assert len(found.findings) == 8


def test_the_stronger_remedy_wins_then_the_table_order():
    assert rule(xid(95), xid(79)) == "xid-79"
    assert (rule(xid(79), xid(54)), rule(xid(63), xid(46))) == ("xid-54", "xid-46")
    assert rule(xid(62), xid(46)) == rule(xid(46), xid(62)) == "xid-46"


def test_the_rules_besides_the_strongest_are_reported_each_since_its_first():
    found = judge(xid(79, 0), xid(54, 5), xid(79, -20, device="0000:5d:00"))
    assert (found.fault.rule, found.also) == ("xid-54", {"xid-79": at(-20)})
    assert not judge(xid(79), xid(79, device="0000:5d:00")).also


def test_settling_is_suspect_until_then_faulty():
    early = judge(xid(48), now=2.9)
    assert (early.condition, early.until, early.fault) == (NodeCondition.SUSPECT, at(3), None)
    assert judge(xid(48), now=3).condition is NodeCondition.FAULTY


def test_a_proven_fault_does_not_wait_for_another_that_settles():
    found = judge(xid(95), xid(48, 1, device=OTHER), now=1)
    assert (found.fault.rule, found.until) == ("xid-95", at(4))


def test_the_drivers_word_ends_the_wait():
    found = judge(xid(48), xid(154, 0.5, detail="GPU Reset Required"), now=0.6)
    assert found.condition is NodeCondition.FAULTY


@pytest.mark.parametrize(
    ("phrase", "expected", "urgency"),
    [
        ("Drain P2P", "xid-154-drain-p2p", Urgency.AFTER_JOBS),
        ("Drain and Reset", "xid-154-drain-and-reset-job-lost", Urgency.NOW),
        ("GPU Reset Required", "xid-154-gpu-reset-required", Urgency.NOW),
        ("Node Reboot Required", "xid-154-node-reboot-required", Urgency.NOW),
    ],
)
def test_the_driver_decides_for_reset_class_rows(phrase, expected, urgency):
    found = judge(xid(48), xid(154, 1, detail=phrase))
    assert (found.fault.rule, found.fault.urgency) == (expected, urgency)
    assert "decides for xid-48" in found.why
    assert {f.code for f in found.findings} == {"48", "154"}


def test_the_driver_says_none():
    found = judge(xid(48), xid(154, 1, detail="None"))
    assert (found.condition, found.fault) == (NodeCondition.HEALTHY, None)
    assert "the driver needs no recovery action" in found.why


@pytest.mark.parametrize("code", [79, 54, 151])
def test_the_driver_does_not_talk_away_what_no_reset_fixes(code):
    assert rule(xid(code), xid(154, 1, detail="None")) == f"xid-{code}"


def test_drain_and_reset_lets_jobs_end_where_none_is_lost():
    assert rule(xid(154, detail="Drain and Reset")) == "xid-154-drain-and-reset"
    contained = (xid(48), xid(94), xid(154, 1, detail="Drain and Reset"))
    assert rule(*contained) == "xid-154-drain-and-reset"


def test_the_drivers_newest_word_counts():
    reset = xid(154, 1, detail="GPU Reset Required")
    none = xid(154, 9, detail="None")
    assert rule(xid(48), reset, none) is None
    assert rule(xid(48), none, xid(154, 10, detail="GPU Reset Required")) == (
        "xid-154-gpu-reset-required"
    )


def test_the_drivers_word_is_for_its_own_device_or_all():
    assert rule(xid(48), xid(154, 1, device=OTHER, detail="None")) == "xid-48"
    assert rule(xid(48), xid(154, 1, device="", detail="None")) is None


def test_of_two_words_for_one_fault_the_newer_decides():
    early = xid(154, 1, detail="Drain and Reset")
    late = xid(154, 9, device="", detail="Drain P2P")
    assert rule(xid(48), early, late) == "xid-154-drain-and-reset"
    early = xid(154, 1, device="", detail="Drain P2P")
    late = xid(154, 9, detail="Drain and Reset")
    assert rule(xid(48), early, late) == "xid-154-drain-and-reset-job-lost"


def test_an_old_none_does_not_cover_a_new_fault():
    assert rule(xid(154, 0, detail="None"), xid(48, 10)) == "xid-48"


def test_an_unknown_action_decides_nothing():
    assert rule(xid(48), xid(154, 1, detail="Sing a Song")) == "xid-48"
    assert judge(xid(154, detail="Sing a Song")).condition is NodeCondition.SUSPECT


def test_the_driver_raises_a_harmless_code():
    assert rule(xid(109), xid(154, 1, detail="GPU Reset Required")) == "xid-154-gpu-reset-required"
    assert rule(xid(4711), xid(154, 1, detail="OS Reboot")) == "xid-154-node-reboot-required"


def test_a_site_that_decided_is_not_overruled_by_the_driver():
    mine = build_fault_rules({"xid-48": FaultClassOverride(ladder=(Remedy.REPLACE,))})
    assert judge(xid(48), xid(154, 1, detail="None"), using=mine).fault.ladder == (Remedy.REPLACE,)


def test_94_contains_48():
    found = judge(xid(48), xid(94, 0.2))
    assert (found.fault.rule, found.fault.urgency) == ("xid-48-contained", Urgency.AFTER_JOBS)
    assert rule(xid(48), xid(94, device=OTHER)) == "xid-48"
    assert rule(xid(48), xid(94), xid(95)) == "xid-95"


def test_many_incidents_are_not_each_compared_with_all_others(monkeypatch):
    compared = []

    def counted(a, b, fold):
        compared.append((a, b))
        return can_be_same_fault_event(a, b, fold)

    monkeypatch.setattr("hpctl.faults.incidents.can_be_same_fault_event", counted)
    many = [xid(171, device=f"gpu-{n}") for n in range(500)]
    assert judge(*many, *(xid(48, device=f"gpu-{n}") for n in range(500))).fault is not None
    assert len(compared) <= 1000


def test_a_companion_without_a_device_is_of_every_device():
    assert rule(xid(48), xid(94, device="")) == rule(xid(48, device=""), xid(94))
    assert rule(xid(48), xid(94, device="")) == "xid-48-contained"
    assert rule(xid(48), xid(94, device=OTHER)) == rule(xid(48))


def test_162_cancels_163():
    off, on = xid(163, 0), xid(162, 5)
    assert "xid-163" in judge(off).why
    assert "xid-163" not in judge(off, on).why
    assert "xid-163" in judge(xid(163, 9), on).why


def test_second_109_on_a_gpu_closes_the_node_after_its_jobs():
    found = judge(xid(109, last=7200, count=2), now=7300)
    assert (found.fault.rule, found.fault.urgency) == ("xid-109-repeat", Urgency.AFTER_JOBS)
    assert rule(xid(109, last=2, count=40)) is None


def test_nvlink5_takes_the_worst_line():
    soft = xid(145, detail="RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000)")
    hard = xid(145, detail="RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000040)")
    assert rule(soft) is None
    assert rule(soft, hard) == rule(hard, soft) == "xid-145-fatal"


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (sxid(20034, "Fatal, Link 48 LTSSM Fault Up"), "sxid-20034"),
        (sxid(20034, evidence="20034, Severity 1 Engine instance 60"), "sxid-20034"),
        (sxid(20034, "Non-fatal, Link 48"), None),
        (sxid(24001, "Fatal, Link 4"), "sxid-fatal"),
        (sxid(24001), None),
        (sxid(99999, "Fatal"), "sxid-fatal"),
        (sxid(99999, "Non-fatal"), None),
        (sxid(99999), None),
    ],
)
def test_sxid_text_before_number(finding, expected):
    assert rule(finding, now=0) == expected


def test_other_checks():
    assert (
        rule(Finding("gpu.remap", DeviceVerdict.FAIL, T0, T0, GPU, "failure"))
        == "gpu-remap-failure"
    )
    strange = Finding("disk.space", DeviceVerdict.FAIL, T0, T0)
    assert (judge(strange).condition, judge(strange).fault) == (NodeCondition.SUSPECT, None)
    assert (
        judge(Finding("disk.space", DeviceVerdict.WARN, T0, T0)).condition is NodeCondition.HEALTHY
    )


def test_silence_is_unknown_never_faulty():
    assert judge(now=20, heard=0).condition is NodeCondition.HEALTHY
    found = judge(now=20.5, heard=0)
    assert (found.condition, found.fault, found.since) == (NodeCondition.UNKNOWN, None, at(20))
    assert "agent-silent" in found.why
    assert judge(xid(13), now=10**6, heard=0).condition is NodeCondition.UNKNOWN
    # Silence does not heal what is proven.
    assert judge(xid(79), now=10**6, heard=0).condition is NodeCondition.FAULTY


@pytest.mark.parametrize("check", ["kernel.log", "gpu.ecc", "efa.devices"])
def test_who_cannot_judge_log_or_devices_vouches_for_nothing(check):
    found = judge(unknown(check))
    assert (found.condition, found.fault) == (NodeCondition.UNKNOWN, None)
    assert check in found.why
    assert judge(unknown(check), xid(13)).condition is NodeCondition.UNKNOWN
    assert judge(unknown(check), xid(79)).condition is NodeCondition.FAULTY


def test_a_partly_blind_node_is_judged_by_what_it_sees():
    found = judge(unknown("host.dstate"))
    assert found.condition is NodeCondition.HEALTHY
    assert [f.check for f in found.findings] == ["host.dstate"]
    assert judge(unknown("host.dstate"), xid(79)).condition is NodeCondition.FAULTY


DAY_S, APART = 86400.0, timedelta(minutes=5)


def seen(code: str, minute: float, job: str = "", until: float | None = None, where: str = ""):
    first, last = at(60 * minute), at(60 * (minute if until is None else until))
    return Finding(
        "kernel.xid", DeviceVerdict.FAIL, first, last, "0000:c1:00.0", code, evidence=where, job=job
    )


def again(*findings: Finding) -> bool:
    (incident,) = group_findings_by_incident(findings)
    return is_incident_repeated_on_gpu_component(incident, DAY_S, APART)


@pytest.mark.parametrize("code", ["13", "31"])
def test_of_an_applications_error_two_jobs_must_have_had_it(code: str) -> None:
    assert again(seen(code, 0, "12"), seen(code, 1, "13"))
    assert again(seen(code, 0, "12"), seen(code, 600, "13"))
    # One job, over and over, for hours: its own bug.
    assert not again(seen(code, 0, "12", until=600))
    # A job that had it a day before.
    assert not again(seen(code, 0, "12"), seen(code, 2000, "13"))
    # Between the two, a job that ran all the time.
    assert again(seen(code, 0, "12", until=1990), seen(code, 2000, "13"))


@pytest.mark.parametrize("code", ["13", "31"])
def test_where_no_job_is_named_time_stands_in_for_it(code: str) -> None:
    assert again(seen(code, 0, until=10))
    assert not again(seen(code, 0, until=1))
    assert not again(seen(code, 0), seen(code, 10, "12"))


def test_where_on_the_gpu_an_xid_13_stood_does_not_count() -> None:
    one, other = "ESR on (GPC 3, TPC 1, SM 0)", "ESR on (GPC 4, TPC 1, SM 0)"
    assert again(seen("13", 0, "12", where=one), seen("13", 9, "13", where=other))


@pytest.mark.parametrize("code", ["13", "31"])
def test_an_applications_error_of_several_jobs_is_no_sign_against_the_node(code: str) -> None:
    found = judge(seen(code, -2, "12"), seen(code, -1, "13"))
    assert found.condition is NodeCondition.HEALTHY
    assert f"[xid-{code}-repeat]" in found.why


@pytest.mark.parametrize("code", ["38", "74", "109"])
def test_of_other_errors_time_tells_bursts_apart_whichever_process_was_hit(code: str) -> None:
    assert again(seen(code, 0, "12", until=10))
    assert again(seen(code, 0, "12"), seen(code, 10, "12"))
    assert again(seen(code, 0, "12"), seen(code, 10))
    assert not again(seen(code, 0, "12"), seen(code, 1, "13"))


def line(seconds=0.0, *, driver="nvidia", device="", last=None):
    end = at(seconds if last is None else last)
    return Finding(
        "kernel.driver",
        DeviceVerdict.NOTE,
        at(seconds),
        end,
        device,
        "unknown",
        driver,
        "NVRM: new words",
    )


def replays(seconds=0.0, device=GPU, check="gpu.pcie"):
    return Finding(
        check, DeviceVerdict.WARN, at(seconds), at(seconds), device, "replays", "7 a minute"
    )


def test_an_unknown_line_alone_is_counted() -> None:
    found = judge(line())
    assert (found.condition, found.findings) == (NodeCondition.HEALTHY, (line(),))
    assert "[kernel-driver-unknown]" in found.why


def test_an_unknown_line_beside_another_sign_is_a_warning_and_the_sign_stands_first() -> None:
    blind = Finding("gpu.driver", DeviceVerdict.WARN, T0, T0, code="error")
    for sign in (replays(), replays(50), xid(92), blind):
        found = judge(line(-9), sign, now=60.0)
        assert found.condition is NodeCondition.SUSPECT, sign
        assert found.why.startswith(("gpu.", "Xid 92")), found.why
        assert "and 1 more" in found.why
        assert found.since == sign.first
        assert line(-9) in found.findings
    assert judge(line(), xid(79)).fault.rule == "xid-79"


@pytest.mark.parametrize(
    "beside",
    [
        replays(90),
        replays(device=OTHER),
        replays(check="rdma.link"),
        Finding("host.nvme", DeviceVerdict.WARN, T0, T0, code="hot"),
        xid(13),
        xid(31),
        xid(43),
    ],
    ids=["later", "other GPU", "other driver", "a disk", "13", "31", "43"],
)
def test_what_confirms_no_unknown_line(beside) -> None:
    found = {
        fault.rule for fault in list_fault_classes_by_severity([line(device=GPU), beside], RULES)
    }
    assert "kernel-driver-unknown" in found
    assert "kernel-driver-unknown-confirmed" not in found


def test_a_sites_own_treatment_of_a_note_is_done() -> None:
    override = FaultClassOverride(urgency=Urgency.AFTER_JOBS, ladder=(Remedy.REBOOT,), settle_s=9.0)
    for finding, its in ((line(), "kernel-driver-unknown"), (xid(13), "xid-13")):
        using = build_fault_rules({its: override})
        assert judge(finding, now=5, using=using).condition is NodeCondition.SUSPECT
        assert judge(finding, now=10, using=using).fault.rule == its
