"""EFA: each rule at its limit and just below, and what looks like a fault and is none."""

from __future__ import annotations

import pytest

from hpctl.agent.check import Observation
from hpctl.agent.checks import check_efa
from hpctl.agent.checks.check_efa import LinkSample as Links
from hpctl.agent.counters import Reading, Sweep, Trace
from hpctl.agent.rdma import Port
from hpctl.core.model import Verdict
from tests.fakes.fabric import BORN, codes, limits, traces

BUSY = {
    # Four sweeps of 12 s at about 12 GB/s, as an all-reduce on a p5 makes them.
    "tx_bytes": [8_412_337_664_512, 8_558_437_665_792, 8_704_291_201_024, 8_850_640_846_848],
    "tx_pkts": [1_027_032_911, 1_044_867_423, 1_062_671_846, 1_080_536_812],
    "rx_bytes": [8_409_930_104_832, 8_556_030_015_488, 8_701_783_523_328, 8_848_133_169_152],
    "rx_drops": [12, 12, 13, 13],
    "retrans_pkts": [4_112, 4_344, 4_602, 5_837],
    "retrans_bytes": [33_685_504, 35_586_048, 37_699_584, 47_816_704],
    "retrans_timeout_events": [3, 3, 3, 4],
    "unresponsive_remote_events": [0, 0, 0, 0],
    "impaired_remote_conn_events": [0, 0, 0, 0],
    "rdma_read_wr_err": [0, 0, 0, 0],
    "rdma_write_wr_err": [0, 0, 0, 0],
    "submitted_cmds": [51_204, 51_207, 51_210, 51_213],
    "completed_cmds": [51_204, 51_207, 51_210, 51_213],
    "cmds_err": [2, 2, 2, 2],
    "no_completion_cmds": [0, 0, 0, 0],
    "keep_alive_rcvd": [86_401, 86_413, 86_425, 86_437],
}
IDLE = {name: [values[0]] * 4 for name, values in BUSY.items()} | {
    "keep_alive_rcvd": [86_401, 86_413, 86_425, 86_437]
}
EVERY_CHECK = ("efa.keepalive", "efa.commands", "efa.errors", "efa.retrans")


def judged(check: str, history: list[Trace]) -> list[list[Observation]]:
    """What the check says after each sweep."""
    judge = check_efa.CHECKS[check].judge
    return [
        list(judge(now, before, limits(check)))
        for before, now in zip([None, *history[:-1]], history, strict=True)
    ]


def last(
    check: str, *values: tuple[str, list[int]], every_s: float = 12.0
) -> list[tuple[str, str]]:
    return codes(judged(check, traces({"rdmap79s0": dict(values)}, every_s))[-1])


# --- benign -----------------------------------------------------------------------------------

RESET = {name: [v[0], v[1], 0, v[1] - v[0]] for name, v in BUSY.items()} | {
    "keep_alive_rcvd": [86_401, 86_413, 2, 14]
}
OLD = {name: values for name, values in BUSY.items() if "re" not in name or "keep" in name}


@pytest.mark.parametrize("check", EVERY_CHECK)
@pytest.mark.parametrize("trace", [BUSY, IDLE, RESET, OLD], ids=["busy", "idle", "reset", "old"])
def test_a_healthy_nic_is_silent(check: str, trace: dict[str, list[int]]) -> None:
    both = traces({"rdmap79s0": trace, "rdmap79s1": BUSY})
    assert judged(check, both) == [[], [], [], []]


@pytest.mark.parametrize("check", EVERY_CHECK)
def test_a_driver_without_any_counter_is_silent(check: str) -> None:
    bare = [Trace(Sweep(at, {"efa_0": Reading(BORN, {})})) for at in (0.0, 12.0)]
    assert judged(check, bare) == [[], []]


@pytest.mark.parametrize("check", EVERY_CHECK)
def test_a_device_that_came_back_with_higher_counts_is_not_compared(check: str) -> None:
    then = Sweep(0.0, {"efa_0": Reading(BORN, dict.fromkeys(BUSY, 0))})
    now = Sweep(12.0, {"efa_0": Reading((1, 1), dict.fromkeys(BUSY, 10**12))})
    assert judged(check, [Trace(then), Trace(now, (then,))])[-1] == []


# --- keep-alives ------------------------------------------------------------------------------

ALIVE = {"keep_alive_rcvd": [100, 112]}


def keep_alive(devices: dict[str, list[int]], every_s: float = 12.0) -> list[tuple[str, str]]:
    named = {name: {"keep_alive_rcvd": values} for name, values in devices.items()}
    return codes(judged("efa.keepalive", traces(named, every_s))[-1])


def test_a_device_without_keep_alives_is_told() -> None:
    assert keep_alive({"a": [100, 100], "b": [90, 102]}) == [("stalled", "a")]


def test_one_keep_alive_is_enough() -> None:
    assert keep_alive({"a": [100, 101], "b": [90, 102]}) == []


def test_a_device_that_never_sent_one_does_not_send_them() -> None:
    assert keep_alive({"a": [0, 0], "b": [90, 102]}) == []


def test_all_devices_at_once_are_only_a_warning() -> None:
    seen = traces({n: {"keep_alive_rcvd": [100, 100]} for n in "abc"})
    (told,) = judged("efa.keepalive", seen)[-1]
    assert (told.code, told.verdict) == ("stalled_all", Verdict.WARN)


def test_the_only_device_of_a_node_counts_for_itself() -> None:
    assert keep_alive({"a": [100, 100]}) == [("stalled", "a")]


@pytest.mark.parametrize(("every_s", "told"), [(4.9, []), (5.0, [("stalled", "a")])])
def test_two_looks_too_close_prove_nothing(every_s: float, told: list[tuple[str, str]]) -> None:
    assert keep_alive({"a": [100, 100]}, every_s) == told


# --- admin commands ---------------------------------------------------------------------------


def test_one_command_without_an_answer_is_a_fault() -> None:
    assert last("efa.commands", ("no_completion_cmds", [0, 1])) == [("no_completion", "rdmap79s0")]
    assert last("efa.commands", ("no_completion_cmds", [1, 1])) == []


@pytest.mark.parametrize(("errors", "told"), [(4, []), (5, [("failed", "rdmap79s0")])])
def test_failed_commands_count_from_the_limit(errors: int, told: list[tuple[str, str]]) -> None:
    assert last("efa.commands", ("cmds_err", [7, 8, 9, 7 + errors])) == told


def test_failures_that_do_not_go_on_are_those_of_a_process_that_went_down() -> None:
    assert last("efa.commands", ("cmds_err", [0, 0, 60, 60, 60])) == []
    assert last("efa.commands", ("cmds_err", [0, 30, 30, 60, 60])) == []
    assert last("efa.commands", ("cmds_err", [0, 30, 30, 60, 61])) == [("failed", "rdmap79s0")]


def test_failed_commands_add_up_over_the_window_and_not_beyond() -> None:
    creep = ("cmds_err", [0, 1, 2, 3, 4, 5])
    assert last("efa.commands", creep) == [("failed", "rdmap79s0")]
    assert last("efa.commands", creep, every_s=150.1) == []


def test_what_applications_were_refused_is_no_fault_of_the_nic() -> None:
    seen = traces({"rdmap79s0": {"cmds_err": [2, 7], "reg_mr_err": [0, 40]}})
    assert judged("efa.commands", seen)[-1] == []
    (told,) = judged("efa.errors", seen)[-1]
    assert (told.code, told.verdict) == ("refused", Verdict.WARN)
    fewer = traces({"rdmap79s0": {"cmds_err": [2, 6], "reg_mr_err": [0, 40]}})
    assert judged("efa.errors", fewer)[-1] == []


def test_failures_beyond_the_refused_ones_are() -> None:
    asked = ("reg_mr_err", [0, 1, 2, 4])
    assert last("efa.commands", ("cmds_err", [0, 3, 6, 9]), asked) == [("failed", "rdmap79s0")]
    assert last("efa.commands", ("cmds_err", [0, 3, 6, 8]), asked) == []


def test_a_call_that_fails_before_it_reaches_the_nic_excuses_nothing_more() -> None:
    assert last("efa.commands", ("cmds_err", [0, 0]), ("reg_mr_err", [0, 50])) == []


def test_counters_that_do_not_answer_are_told() -> None:
    broken = Reading(BORN, {"cmds_err": 0}, {"tx_pkts": "Timer expired"})
    (told,) = check_efa.judge_errors(Trace(Sweep(0, {"a": broken})), None, limits("efa.errors"))
    assert (told.code, told.device, told.verdict) == ("unreadable", "a", Verdict.WARN)
    assert "tx_pkts: Timer expired" in told.detail


@pytest.mark.parametrize(
    "now",
    [
        Reading(BORN, {"cmds_err": 90}, {"tx_pkts": "Operation not supported"}, 4),
        Reading(BORN, {"cmds_err": 90}, {}, 4),
    ],
    ids=["still failing", "failed in between"],
)
def test_errors_that_reading_counters_made_are_no_fault(now: Reading) -> None:
    """A device that does not know a group of counters refuses each reading, whoever reads."""
    then = Sweep(0.0, {"efa_0": Reading(BORN, {"cmds_err": 0})})
    seen = Trace(Sweep(12.0, {"efa_0": now}), (then,))
    assert list(check_efa.judge_commands(seen, None, limits("efa.commands"))) == []


def test_a_dead_device_is_told_though_its_counters_do_not_answer() -> None:
    then = Sweep(0.0, {"efa_0": Reading(BORN, {"cmds_err": 0, "no_completion_cmds": 0})})
    dead = Reading(BORN, {"cmds_err": 1, "no_completion_cmds": 1}, {"tx_pkts": "Timer expired"}, 1)
    seen = Trace(Sweep(42.0, {"efa_0": dead}), (then,))
    assert codes(check_efa.judge_commands(seen, None, limits("efa.commands"))) == [
        ("no_completion", "efa_0")
    ]


# --- token buckets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "code", "allowed"),
    [
        ("rx_drops", "rx_drops", 112),
        ("rdma_read_wr_err", "rdma_read_wr_err", 112),
        ("rdma_write_wr_err", "rdma_write_wr_err", 112),
        ("unresponsive_remote_events", "remote_unresponsive", 112),
        ("impaired_remote_conn_events", "remote_impaired", 112),
        ("retrans_timeout_events", "retrans_timeout_events", 112),
        ("retrans_pkts", "retrans_pkts", 2_800),
        ("retrans_bytes", "retrans_bytes", 16_000_000),
    ],
)
def test_a_burst_beyond_the_bucket_is_a_warning(counter: str, code: str, allowed: int) -> None:
    for more, told in ((0, []), (1, [(code, "")])):
        seen = judged("efa.errors", traces({"a": {counter: [5, 5 + allowed + more]}}))[-1]
        assert codes(seen) == told
        assert all(o.verdict is Verdict.WARN for o in seen)


def test_a_creep_above_the_refill_fills_the_bucket_in_the_end() -> None:
    two_a_second = [24 * i for i in range(10)]
    said = judged("efa.errors", traces({"a": {"rx_drops": two_a_second}}))
    assert [bool(s) for s in said] == [False] * 9 + [True]


def test_a_creep_at_the_refill_never_does() -> None:
    said = judged("efa.errors", traces({"a": {"rx_drops": [12 * i for i in range(40)]}}))
    assert not any(said)


def test_many_devices_make_one_warning_that_names_the_worst() -> None:
    seen = traces({f"d{i}": {"rx_drops": [0, 1000 + i]} for i in range(32)})
    (told,) = judged("efa.errors", seen)[-1]
    assert told.detail == "rx_drops +1031 in 12 s on d31, and 31 more devices"


def test_what_points_to_the_remote_side_is_a_gauge() -> None:
    seen = traces(
        {
            "a": {"unresponsive_remote_events": [0, 6], "impaired_remote_conn_events": [0, 3]},
            "b": {"unresponsive_remote_events": [0, 3], "rx_drops": [4, 16]},
        }
    )
    told = check_efa.gauges_errors(seen[1], seen[0])
    assert told == {"efa.remote_events_per_s": 1.0, "efa.rx_drops_per_s": 1.0}
    assert check_efa.gauges_errors(seen[0], None) == {}
    assert check_efa.gauges_errors(seen[1], seen[1]) == {}


# --- retransmissions --------------------------------------------------------------------------


@pytest.mark.parametrize(("again", "told"), [(100, []), (101, [("ratio", "rdmap79s0")])])
def test_a_ratio_beyond_the_limit(again: int, told: list[tuple[str, str]]) -> None:
    sent = ("tx_pkts", [0, 100_000])
    assert last("efa.retrans", sent, ("retrans_pkts", [0, again])) == told


def test_too_little_traffic_says_nothing() -> None:
    few = {"a": {"tx_pkts": [0, 9_999], "retrans_pkts": [0, 9_999]}}
    assert judged("efa.retrans", traces(few))[-1] == []
    assert "efa.retrans_ratio" not in check_efa.gauges_retrans(traces(few)[1], traces(few)[0])


def test_the_gauges_of_a_busy_node() -> None:
    quiet = {"tx_pkts": [0, 30_000], "retrans_pkts": [0, 0], "tx_bytes": [0, 1_200]}
    loud = {"tx_pkts": [0, 10_000], "retrans_pkts": [0, 20], "retrans_timeout_events": [0, 24]}
    seen = traces({"a": quiet, "b": loud})
    assert check_efa.gauges_retrans(seen[1], seen[0]) == {
        "efa.retrans_timeouts_per_s": 2.0,
        "efa.tx_bytes_per_s": 100.0,
        "efa.retrans_ratio": 0.0005,
        "efa.retrans_ratio_worst": 0.002,
    }


def test_every_gauge_is_one_that_is_documented() -> None:
    seen = traces({"a": BUSY})
    told = {
        **check_efa.gauges_retrans(seen[-1], seen[-2]),
        **check_efa.gauges_errors(seen[-1], seen[-2]),
    }
    assert {name.removeprefix("efa.") for name in told} == {
        *("retrans_ratio", "retrans_ratio_worst", "retrans_timeouts_per_s", "rx_drops_per_s"),
        *("remote_events_per_s", "tx_bytes_per_s", "rx_bytes_per_s"),
    }


# --- links ------------------------------------------------------------------------------------


def test_a_port_that_is_not_active_is_told() -> None:
    up = Port("rdmap79s0", "1", "ACTIVE", "LinkUp")
    down = Port("rdmap79s1", "1", "DOWN", "Disabled")
    assert codes(check_efa.judge_link(Links((up, down)), None, {})) == [("down", "rdmap79s1")]
