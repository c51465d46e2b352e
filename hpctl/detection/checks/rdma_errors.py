"""Check `rdma.errors`: InfiniBand and RoCE ports count no errors that matter."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hpctl.detection.check import CheckedMachine, CheckObservation, Judged, Limits
from hpctl.detection.counter_rules import find_devices_over_growth_limit, list_check_counter_rules
from hpctl.detection.rdma import RdmaDevice, list_infiniband_devices
from hpctl.detection.rdma_counters import (
    CounterFileReader,
    CounterSweepHistory,
    CounterSweepTrace,
    DeviceCounterReading,
    DeviceCounterSweep,
)

# Errors that InfiniBand and RoCE ports count (thresholds of facts/detection 1.2).
#
# AWS has no such devices, so the rules watch only. What a dead remote process causes
# (timeouts of acknowledgements) and what congestion causes (discards) are warnings anyway.

SPANS_S = (60.0, 3600.0)


_PORTS, _INTERFACES = "ports", "device/net"
RULES = list_check_counter_rules("rdma.errors")
_FOR_GAUGES = ("ports/*/hw_counters/out_of_sequence",)
"""Counters without a row, which only become gauges."""


def _map_rdma_counters_to_paths(below: str) -> dict[str, Sequence[str]]:
    """Return the counters of each folder in `below`, by name, with their path in that folder."""
    start = f"{below}/*/"
    files: dict[str, Sequence[str]] = {}
    for path in (*(rule.file for rule in RULES), *_FOR_GAUGES):
        if path.startswith(start):
            files[path.rpartition("/")[2]] = (path.removeprefix(start),)
    return files


class RdmaCounterReader:
    """The ports and network interfaces of all devices below one root. Not for several threads."""

    def __init__(self) -> None:
        self._ports = CounterFileReader(_map_rdma_counters_to_paths(_PORTS))
        self._interfaces = CounterFileReader(_map_rdma_counters_to_paths(_INTERFACES))
        self._history = CounterSweepHistory(SPANS_S)

    def trace(self, machine: CheckedMachine) -> CounterSweepTrace:
        """Read all counters. Raises DeviceAbsentError, CheckResultUnknownError."""
        now = machine.monotonic()
        found = list_infiniband_devices(machine)
        seen = {
            **_read_rdma_counter_folders(self._ports, found, _PORTS),
            **_read_rdma_counter_folders(self._interfaces, found, _INTERFACES),
        }
        past = self._history.past(now)
        self._history.add(DeviceCounterSweep(now, seen))
        return CounterSweepTrace(DeviceCounterSweep(now, seen), past)


def _read_rdma_counter_folders(
    files: CounterFileReader, found: Iterable[RdmaDevice], below: str
) -> dict[str, DeviceCounterReading]:
    """Return the readings of each folder in `below`: ports as `mlx5_0`, `mlx5_0/2`, else by
    name."""
    folders = {}
    for device in found:
        try:
            names = sorted(os.listdir(f"{device.folder}/{below}"))[:8]
        except OSError:
            continue
        for name in names:
            port = device.name if name == "1" else f"{device.name}/{name}"
            folders[port if below == _PORTS else name] = f"{device.folder}/{below}/{name}"
    files.close_folders_except(list(folders.values()))
    read = {name: files.read(folder) for name, folder in folders.items()}
    return {name: reading for name, reading in read.items() if reading is not None}


@lru_cache(maxsize=4)
def _get_rdma_counter_reader(root: Path) -> RdmaCounterReader:
    return RdmaCounterReader()


def read_rdma_error_counters(machine: CheckedMachine) -> CounterSweepTrace:
    """Read the counters. Raises DeviceAbsentError where there is no InfiniBand or RoCE device,
    CheckResultUnknownError."""
    return _get_rdma_counter_reader(machine.root).trace(machine)


def judge_rdma_error_counters(
    seen: CounterSweepTrace, before: CounterSweepTrace | None, limits: Limits
) -> Judged:
    """Return one observation for each rule and port, with the window that shows most."""
    for rule in RULES:
        for port, (grown, age) in find_devices_over_growth_limit(seen, rule, limits).items():
            detail = f"{rule.name} +{grown} in {age:.0f} s"
            yield CheckObservation(rule.code, port, rule.verdict, detail)


def compute_rdma_error_rates(
    seen: CounterSweepTrace, before: CounterSweepTrace | None
) -> Mapping[str, float]:
    """Return errors and retransmissions a second, all ports together."""
    return seen.rates(
        before,
        {
            "rdma.errors_per_s": ("symbol_error", "port_rcv_errors"),
            "rdma.retrans_per_s": ("local_ack_timeout_err", "out_of_sequence"),
        },
    )
