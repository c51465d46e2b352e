"""The report format: round trips, limits, and errors that name their place."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from hpctl.wire import reports as wire

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FINDING = Finding(
    "kernel.xid", DeviceVerdict.FAIL, NOON, NOON + timedelta(seconds=3), "0000:c1:00.0", "79", "",
    "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", 7,
)  # fmt: skip
REPORT = AgentReport(
    "ip-10-1-2-3", "i-0123456789abcdef0",
    "7a58ec84-3776-4210-8a5c-212610e998ed", 5, NOON, NOON, (FINDING,),
)  # fmt: skip


def raw(**changes):
    body = json.loads(wire.encode_agent_report(REPORT))
    body["report"]["findings"][0].update(changes.pop("finding", {}))
    body["report"].update(changes)
    return body


times = st.timedeltas(timedelta(days=-3000), timedelta(days=3000)).map(lambda past: NOON + past)
findings = st.builds(
    lambda first, length, **fields: Finding(first=first, last=first + length, **fields),
    check=st.sampled_from(["kernel.xid", "kernel.sxid", "gpu.ecc_2"]),
    verdict=st.sampled_from(DeviceVerdict),
    first=times,
    length=st.timedeltas(timedelta(0), timedelta(days=9)),
    device=st.text(max_size=256),
    detail=st.text(max_size=256),
    evidence=st.text(max_size=2048),
    count=st.integers(1, 2**53),
)


@given(st.lists(findings, max_size=5), times, st.integers(1, 2**53))
def test_every_report_within_the_limits_comes_back(found, at, seq):
    report = replace(REPORT, findings=tuple(found), sent_at=at, agent_start=at, seq=seq)
    assert wire.decode_agent_report(wire.encode_agent_report(report)) == report


def test_the_wire_says_exactly_what_the_model_says():
    for shape, model in ((wire._WireAgentReport, AgentReport), (wire._WireFinding, Finding)):
        assert set(shape.__struct_fields__) == set(model.__struct_fields__)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"node": "n 1"}, "$.report.node"),
        ({"node": "n1\n"}, "$.report.node"),
        ({"node": ""}, "$.report.node"),
        ({"node": "n" * 65}, "$.report.node"),
        ({"instance": "i/../x"}, "$.report.instance"),
        ({"boot": "a b"}, "$.report.boot"),
        ({"seq": 0}, "$.report.seq"),
        ({"seq": "1"}, "$.report.seq"),
        ({"seq": 2**60}, "$.report.seq"),
        ({"sent_at": "2026-05-04T12:00:00"}, "$.report.sent_at"),
        ({"agent_start": 1}, "$.report.agent_start"),
        ({"more": 1}, "more"),
        ({"findings": None}, "$.report.findings"),
        ({"finding": {"evidence": "x" * 2049}}, "$.report.findings[0].evidence"),
        ({"finding": {"verdict": "bad"}}, "$.report.findings[0].verdict"),
        ({"finding": {"check": "Kernel Xid"}}, "$.report.findings[0].check"),
        ({"finding": {"count": 0}}, "$.report.findings[0].count"),
        ({"finding": {"device": "x" * 257}}, "$.report.findings[0].device"),
        ({"finding": {"last": "2020-01-01T00:00:00Z"}}, "$.report.findings[0]"),
        ({"finding": {"severity": 3}}, "severity"),
    ],
)
def test_what_is_out_of_bounds_is_named_with_its_place(changes, place):
    with pytest.raises(wire.InvalidReportError) as caught:
        wire.decode_agent_report(json.dumps(raw(**changes)).encode())
    assert place in str(caught.value)


def test_too_many_findings_are_refused():
    body = raw()
    body["report"]["findings"] *= wire.MAX_FINDINGS + 1
    slim = [
        {k: f[k] for k in ("check", "verdict", "first", "last")} for f in body["report"]["findings"]
    ]
    body["report"]["findings"] = slim
    with pytest.raises(wire.InvalidReportError, match=r"\$\.report\.findings"):
        wire.decode_agent_report(json.dumps(body).encode())


def test_gauges_come_back_and_those_that_are_no_number_are_left_out():
    answer = {"gpu.clock_mhz": 1980.0, "gpu.power_w": float("nan"), "efa.x": float("inf")}
    back = wire.decode_agent_report(wire.encode_agent_report(replace(REPORT, gauges=answer)))
    assert back.gauges == {"gpu.clock_mhz": 1980.0}


def test_too_many_gauges_are_cut_by_us_and_refused_from_others():
    many = {f"g{n:03}": float(n) for n in range(wire.MAX_GAUGES + 1)}
    back = wire.decode_agent_report(wire.encode_agent_report(replace(REPORT, gauges=many)))
    assert list(back.gauges) == [f"g{n:03}" for n in range(wire.MAX_GAUGES)]
    with pytest.raises(wire.InvalidReportError, match=r"\$\.report\.gauges"):
        wire.decode_agent_report(json.dumps(raw(gauges=many)).encode())


def test_a_full_report_is_made_to_fit_by_cutting_evidence_only():
    many = tuple(
        replace(FINDING, code=str(n), evidence="é" * 2048) for n in range(wire.MAX_FINDINGS)
    )
    back = wire.decode_agent_report(wire.encode_agent_report(replace(REPORT, findings=many)))
    assert [(f.code, f.count) for f in back.findings] == [(f.code, f.count) for f in many]
    assert all(f.evidence and f.evidence in "é" * 2048 for f in back.findings)


def test_a_report_that_cutting_evidence_does_not_make_fit_says_what_comes_first():
    """A site's plugins may find much and say it at length: the agent must not die of it."""
    many = tuple(
        replace(FINDING, code=str(n), device="é" * 256, detail="é" * 256)
        for n in range(wire.MAX_FINDINGS)
    )
    body = wire.encode_agent_report(replace(REPORT, findings=many), open_session=True)
    assert wire.MAX_BODY * 3 // 4 < len(body) <= wire.MAX_BODY
    kept = wire.decode_agent_report(body).findings
    assert [f.code for f in kept] == [f.code for f in many[: len(kept)]]


def test_the_payload_is_the_bodys_digest():
    assert wire.make_request_credential_payload(b"") == (
        b"hpctl1:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
