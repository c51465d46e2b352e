"""`hpctl acceptance show|history`: what tests have found, as people and programs read it."""

import json

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import SignalSeen
from hpctl.vocabulary.model import TEST_SUMMARY, DeviceVerdict, Finding
from hpctl.vocabulary.recovery import StepKind
from tests.cli import worlds
from tests.cli.worlds import OK, at, seen, step

pytestmark = pytest.mark.integration

RID = "n-11111111"


def result(name: str, verdict: DeviceVerdict, code: str = "", evidence: str = "") -> Finding:
    detail = "GPU 3 at 71 of 80" if code else ""
    return Finding(name, verdict, at(60), at(62), f"{RID}-1", code, detail, evidence)


def a_test() -> list:
    """As `worlds.healed`, but for a test that fails before the node serves."""
    *before, _resume, _resumed, _end = worlds.healed()
    found = (
        result("acceptance.gemm", DeviceVerdict.FAIL, "replace", '{"tflops":71.5}'),
        result("acceptance.efa", DeviceVerdict.UNKNOWN),
        result("acceptance.run", DeviceVerdict.OK, "quick"),
    )
    failed = SignalSeen(at(62.5), RID, "test_asks_replace", "gemm: GPU 3 at 71 of 80", None, found)
    return [
        *before,
        seen(RID, "acceptance_due", 53.5, "its quick test comes before it serves"),
        *step(RID, StepKind.ISOLATE, f"hpctl-accept-{RID}-1", 53.6, OK),
        *step(RID, StepKind.TEST, f"hpctl-accept-{RID}-1", 55.0, replace(OK, detail="4243")),
        failed,
    ]


def test_the_newest_test_of_a_node_is_shown_with_its_figures(head) -> None:
    head.write(a_test())
    node = worlds.gen(2).node
    shown = head.run("acceptance", "show", node, "--json")
    assert shown.exit_code == 1
    (test,) = json.loads(shown.stdout)["tests"]
    assert (test["id"], test["result"], test["after"]) == (f"{RID}-1", "failed", "xid-79")
    gemm, efa = test["measured"]
    assert (gemm["remedy"], gemm["figures"], efa["result"]) == (
        "replace",
        {"tflops": 71.5},
        "skipped",
    )
    text = head.run("acceptance", "show", f"{RID}-1").stdout
    for words in ("tflops=71.5", "GPU 3 at 71 of 80", "failed", "skipped"):
        assert words in text
    assert "failed its test, needs a replacement" in head.run("explain", RID).stdout
    assert "acceptance.gemm" in head.run("explain", RID).stdout


def test_the_history_names_every_test_and_a_node_without_one_is_an_error(head) -> None:
    head.write(worlds.troubled())
    assert "No node was tested." in head.run("acceptance", "history").stdout
    head.write(a_test())
    rows = json.loads(head.run("acceptance", "history", "--json").stdout)["tests"]
    assert [r["id"] for r in rows] == [f"{RID}-1"]
    wrong = head.run("acceptance", "show", "ip-10-1-0-3")
    assert wrong.exception is not None
    assert "lists no" in str(wrong.exception)


def test_the_baseline_names_the_card_its_floor_and_who_measured_it(head) -> None:
    speed = result("acceptance.gpu.speed", DeviceVerdict.OK, evidence='{"bf16_tflops":600.0}')
    card = '{"name":"NVIDIA H200","power_limit_w":500.0,"default_power_limit_w":700.0}'
    closing = result(TEST_SUMMARY, DeviceVerdict.OK, evidence=card)
    *before, last = a_test()
    head.write([*before, replace(last, tests=(speed, closing))])
    shown = json.loads(head.run("acceptance", "baseline", "--json").stdout)
    (limit,) = shown["limits"]
    assert (limit["card"], limit["by"], limit["expected"]) == ("NVIDIA H200", "measured", 679)
    assert limit["limit"] == 679 * 0.93
    assert "driver 580.159" in limit["source"]
    (slow,) = shown["slow"]
    assert (slow["node"], slow["sure"]) == (worlds.gen(2).node, True)
    for words in ("under the floor 631.5", "gives 679", "500 W, not 700 W", "test again"):
        assert words in slow["why"]
    assert "NVIDIA H200" in head.run("acceptance", "baseline").stdout
