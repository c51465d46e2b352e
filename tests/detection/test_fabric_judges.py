"""What the checks of EFA and RDMA counters say: each rule at its limit, and what is no fault."""

from pathlib import Path

import pytest
import yaml

from hpctl.detection.checks import efa_errors, efa_retrans, rdma_errors
from hpctl.detection.counter_rules import list_check_counter_rules
from hpctl.detection.rdma_counters import (
    CounterSweepTrace,
    DeviceCounterReading,
    DeviceCounterSweep,
)
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import DeviceVerdict
from tests.fakes.fabric import BORN, traces

TABLE = yaml.safe_load(Path(__file__).with_name("fabric_cases.yaml").read_text())
HEALTHY = TABLE.pop("healthy")
LOADED = {spec.name: load_check(spec) for spec in CHECKS if spec.name in TABLE}
WARNINGS = {"stalled_all", "refused", "ratio", *(rule.code for rule in efa_errors.RULES)} | {
    *("symbol_error_rate", "local_ack_timeout_err", "port_xmit_discards")
}
"""What a job or a remote node can cause."""


def judged(check, history):
    one = LOADED[check]
    return list(one.judge(history[-1], history[-2] if len(history) > 1 else None, one.limits))


@pytest.mark.parametrize(
    ("check", "row"), [(check, row) for check, rows in TABLE.items() for row in rows], ids=str
)
def test_what_is_reported(check, row):
    *given, expected = row if isinstance(row[-1], str) else [*row, ""]
    every_s, counters = [12.0, *given][-2:]
    output = judged(check, traces(counters, every_s))
    assert sorted(f"{o.code}@{o.device}".rstrip("@") for o in output) == expected.split()
    assert {o.code for o in output if o.verdict is DeviceVerdict.WARN} == WARNINGS & {
        o.code for o in output
    }


@pytest.mark.parametrize("check", LOADED)
@pytest.mark.parametrize("kind", ["busy", "idle", "reset", "few counters", "none", "another life"])
def test_a_healthy_device_is_silent(check, kind):
    busy = HEALTHY[check.partition(".")[0]]
    alive = {name: busy[name] for name in busy if name == "keep_alive_rcvd"}
    counters = {
        "busy": busy,
        "idle": {name: values[:1] * 4 for name, values in busy.items()} | alive,
        "reset": {name: [*values[:2], 0, values[1] - values[0]] for name, values in busy.items()},
        "few counters": {name: busy[name] for name in list(busy)[:4]},
    }
    every_s = 12.0 if check.startswith("efa") else 1800.0
    if kind in counters:
        history = traces({"a": counters[kind], "b": busy}, every_s)
    else:
        grown = dict.fromkeys(busy if kind == "another life" else (), 10**12)
        then = DeviceCounterSweep(0.0, {"a": DeviceCounterReading(BORN, dict.fromkeys(grown, 0))})
        history = [
            CounterSweepTrace(then),
            CounterSweepTrace(
                DeviceCounterSweep(12.0, {"a": DeviceCounterReading((1, 1), grown)}), (then,)
            ),
        ]
    assert [judged(check, history[: end + 1]) for end in range(len(history))] == [[]] * len(history)


def test_the_detail_names_the_worst_device_and_the_window():
    (reported,) = judged(
        "efa.errors", traces({f"d{i}": {"rx_drops": [0, 1000 + i]} for i in range(32)})
    )
    assert reported.detail == "rx_drops +1031 in 12 s on d31, and 31 more devices"
    (reported,) = judged("rdma.errors", traces({"mlx5_3/2": {"link_downed": [4, 6]}}, 30.0))
    assert (reported.device, reported.detail) == ("mlx5_3/2", "link_downed +2 in 30 s")


@pytest.mark.parametrize(
    ("values", "failed", "troubles", "output"),
    [
        # A device that does not know a group of counters refuses each reading, whoever reads.
        ({"cmds_err": 90}, {"tx_pkts": "Operation not supported"}, 4, []),
        ({"cmds_err": 90}, {}, 4, []),
        ({"cmds_err": 1, "no_completion_cmds": 1}, {"tx_pkts": "Timer"}, 1, ["no_completion"]),
    ],
    ids=["still failing", "failed in between", "dead"],
)
def test_errors_that_reading_counters_made_are_no_fault(values, failed, troubles, output):
    then = DeviceCounterSweep(0.0, {"a": DeviceCounterReading(BORN, dict.fromkeys(values, 0))})
    now = DeviceCounterSweep(12.0, {"a": DeviceCounterReading(BORN, values, failed, troubles)})
    assert [o.code for o in judged("efa.commands", [CounterSweepTrace(now, (then,))])] == output
    unreadable = [
        o.detail for o in judged("efa.errors", [CounterSweepTrace(now)]) if o.code == "unreadable"
    ]
    assert unreadable == [f"1 counters cannot be read: {n}: {why}" for n, why in failed.items()]


def test_gauges():
    quiet = {"tx_pkts": [0, 30_000], "retrans_pkts": [0, 0], "tx_bytes": [0, 1_200]}
    loud = {"tx_pkts": [0, 10_000], "retrans_pkts": [0, 20], "retrans_timeout_events": [0, 24]}
    before, now = traces({"a": quiet, "b": loud})
    assert efa_retrans.compute_efa_retransmit_rates(now, before) == {
        "efa.retrans_timeouts_per_s": 2.0,
        "efa.tx_bytes_per_s": 100.0,
        "efa.retrans_ratio": 0.0005,
        "efa.retrans_ratio_worst": 0.002,
    }
    far = {"unresponsive_remote_events": [0, 9], "impaired_remote_conn_events": [0, 3]}
    before, now = traces({"a": far, "b": {"rx_drops": [4, 16]}})
    reported = efa_errors.compute_efa_error_rates(now, before)
    assert reported == {"efa.remote_events_per_s": 1.0, "efa.rx_drops_per_s": 1.0}
    mine = {"symbol_error": [0, 30], "out_of_sequence": [0, 60]}
    other = {"port_rcv_errors": [0, 30], "local_ack_timeout_err": [7, 7]}
    before, now = traces({"a": mine, "b": other}, 30.0)
    reported = rdma_errors.compute_rdma_error_rates(now, before)
    assert reported == {"rdma.errors_per_s": 2.0, "rdma.retrans_per_s": 2.0}
    for gauges in (
        efa_retrans.compute_efa_retransmit_rates,
        efa_errors.compute_efa_error_rates,
        rdma_errors.compute_rdma_error_rates,
    ):
        assert gauges(now, None) == gauges(now, now) == {}


@pytest.mark.parametrize("check", ["rdma.errors", "efa.errors", "neuron.errors"])
def test_every_row_of_a_counter_names_limits_of_its_check(check: str) -> None:
    spec = next(spec for spec in CHECKS if spec.name == check)
    limits = {name: one.value for name, one in spec.limits.items()}
    rules = list_check_counter_rules(check)
    assert rules
    for rule in rules:
        if rule.operator == ">=":
            assert rule.limit in limits
        else:
            assert rule.operator in (">", "bucket")
            assert rule.compute_allowed_growth(60.0, limits) >= 0
