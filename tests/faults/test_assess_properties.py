"""What holds of every assessment, whatever the agents say."""

from datetime import datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import NodeCondition, Urgency
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from tests.examples import examples

T0 = datetime(2026, 3, 1, tzinfo=UTC)
RULES = build_fault_rules()
GENERATION = NodeGeneration("n1", "i-1", "b1")
WORSE = {
    NodeCondition.HEALTHY: 0,
    NodeCondition.UNKNOWN: 1,
    NodeCondition.SUSPECT: 2,
    NodeCondition.FAULTY: 3,
}
TELLING = (
    "None", "Drain P2P", "Drain and Reset", "GPU Reset Required", "Node Reboot Required",
    "20034, Fatal, Link 48 LTSSM Fault Up", "Non-fatal", "link 2(0x0)", "(GPC 1, TPC 0, SM 0)",
    "145, RLW_REMAP Fatal XC1 i0 Link 10 (0x00000082 0x00000040)",
    "149, NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02600011 0x0)",
)  # fmt: skip
CODES = ("13", "31", "45", "48", "63", "64", "74", "79", "94", "95", "109", "119", "145", "149",
         "154", "162", "163", "171", "20034", "24001")  # fmt: skip

ASCII = "".join(map(chr, range(32, 127)))
# A shared, slow machine is no finding: neither the deadline nor slow generation fails a test.
EXAMPLES = settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])

seconds = st.one_of(st.integers(-100, 100), st.floats(-200_000, 200_000))
times = seconds.map(lambda s: T0 + timedelta(seconds=s))
texts = st.one_of(st.sampled_from(TELLING), st.text(ASCII, max_size=40))


@st.composite
def findings(
    draw: st.DrawFn, verdicts: tuple[DeviceVerdict, ...] = tuple(DeviceVerdict)
) -> Finding:
    first = draw(times)
    return Finding(
        check=draw(st.sampled_from(("kernel.xid", "kernel.xid", "kernel.sxid", "gpu.remap", ""))),
        verdict=draw(st.sampled_from(verdicts)), first=first,
        last=first + timedelta(seconds=draw(st.integers(0, 100_000))),
        device=draw(st.sampled_from(("", "0000:3b:00", "0000:5e:00"))),
        code=draw(
            st.one_of(
                st.sampled_from(CODES), st.integers(0, 200).map(str), st.text(ASCII, max_size=5)
            )
        ),
        detail=draw(texts), evidence=draw(texts), count=draw(st.integers(1, 1000)),
    )  # fmt: skip


lists = st.lists(findings(), max_size=8)


@EXAMPLES
@given(lists, times, times)
def test_total_and_sound(found, heard, now):
    verdict = assess_health(NodeHealth(GENERATION, heard, tuple(found)), RULES, now)
    assert (verdict.condition is NodeCondition.FAULTY) == (verdict.fault is not None)
    if verdict.fault is not None:
        assert verdict.fault.urgency is not Urgency.NONE
        assert verdict.fault.rule in RULES.classes
        assert verdict.why
    if verdict.condition is NodeCondition.SUSPECT and verdict.until is not None:
        assert verdict.until > now
    assert set(verdict.findings) <= set(found)


@EXAMPLES
@given(st.data(), lists, times, times)
def test_the_order_of_findings_does_not_matter(data, found, heard, now):
    shuffled = data.draw(st.permutations(found))
    one = assess_health(NodeHealth(GENERATION, heard, tuple(found)), RULES, now)
    assert one == assess_health(NodeHealth(GENERATION, heard, tuple(shuffled)), RULES, now)


@EXAMPLES
@given(lists, findings(verdicts=(DeviceVerdict.UNKNOWN,)), times, times)
def test_an_unknown_never_makes_healthier_and_never_faulty(found, extra, heard, now):
    before = assess_health(NodeHealth(GENERATION, heard, tuple(found)), RULES, now)
    after = assess_health(NodeHealth(GENERATION, heard, (*found, extra)), RULES, now)
    assert WORSE[after.condition] >= WORSE[before.condition]
    assert after.fault == before.fault


@EXAMPLES
@given(lists, times, times, st.floats(0, 500_000))
def test_a_clock_that_steps_back_never_makes_faulty(found, heard, now, back):
    health = NodeHealth(GENERATION, heard, tuple(found))
    before = assess_health(health, RULES, now)
    after = assess_health(health, RULES, now - timedelta(seconds=back))
    if before.condition is not NodeCondition.FAULTY:
        assert after.condition is not NodeCondition.FAULTY


@EXAMPLES
@given(lists, times, times, st.floats(0, 500_000))
def test_silence_alone_never_changes_whether_a_node_is_faulty(found, heard, now, longer):
    health = NodeHealth(GENERATION, heard, tuple(found))
    quieter = replace(health, last_heard=heard - timedelta(seconds=longer))
    assert assess_health(health, RULES, now).fault == assess_health(quieter, RULES, now).fault


@EXAMPLES
@given(lists, times, times)
def test_only_bad_findings_make_faulty(found, heard, now):
    harmless = tuple(f for f in found if f.verdict in (DeviceVerdict.OK, DeviceVerdict.UNKNOWN))
    assert assess_health(NodeHealth(GENERATION, heard, harmless), RULES, now).condition is not (
        NodeCondition.FAULTY
    )
