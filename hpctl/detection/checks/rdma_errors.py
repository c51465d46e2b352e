"""Check `rdma.errors`: InfiniBand and RoCE ports count no errors that matter."""

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import Judged, Limits, Machine, Observation
from hpctl.detection.rdma import Device, other_devices
from hpctl.detection.rdma_counters import CounterFiles, History, Reading, Sweep, Trace
from hpctl.vocabulary.model import Verdict

# Errors that InfiniBand and RoCE ports count (thresholds of facts/detection 1.2).
#
# AWS has no such devices, so the rules watch only. What a dead remote process causes
# (timeouts of acknowledgements) and what congestion causes (discards) are warnings anyway.

SPANS_S = (60.0, 3600.0)


PORT = (
    *("link_downed", "symbol_error", "link_error_recovery", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "port_rcv_errors", "port_xmit_discards"),
)


HARDWARE = ("rnr_nak_retry_err", "local_ack_timeout_err", "out_of_sequence")


FILES: Mapping[str, tuple[str, ...]] = {
    **{name: (f"counters/{name}",) for name in PORT},
    **{name: (f"hw_counters/{name}",) for name in HARDWARE},
}


CARRIER = "carrier_changes"


class Rule(Struct, frozen=True):
    """More of a counter than the limit of that name in `per_s` seconds is an observation."""

    counter: str
    limit: str
    per_s: float
    verdict: Verdict = Verdict.FAIL
    code: str = ""


RULES = (
    Rule("link_downed", "link_downed_per_hour", 3600),
    Rule("excessive_buffer_overrun_errors", "buffer_overruns_per_hour", 3600),
    Rule("local_link_integrity_errors", "integrity_errors_per_hour", 3600),
    Rule("rnr_nak_retry_err", "rnr_nak_retries_per_hour", 3600),
    Rule("symbol_error", "symbol_errors_per_hour", 3600),
    Rule("symbol_error", "symbol_errors_per_s", 1, Verdict.WARN, "symbol_error_rate"),
    Rule("link_error_recovery", "link_recoveries_per_min", 60),
    Rule("port_rcv_errors", "receive_errors_per_s", 1),
    Rule("local_ack_timeout_err", "ack_timeouts_per_s", 1, Verdict.WARN),
    Rule("port_xmit_discards", "discards_per_s", 1, Verdict.WARN),
    Rule(CARRIER, "carrier_changes_per_hour", 3600),
)


class PortCounters:
    """The ports and network interfaces of all devices below one root. Not for several threads."""

    def __init__(self) -> None:
        self._ports = CounterFiles(FILES)
        self._interfaces = CounterFiles({CARRIER: (CARRIER,)})
        self._history = History(SPANS_S)

    def trace(self, machine: Machine) -> Trace:
        """Read them all. Raises NotHere, CannotTell."""
        now = machine.monotonic()
        found = other_devices(machine)
        seen = {
            **_read(self._ports, found, "ports"),
            **_read(self._interfaces, found, "device/net"),
        }
        past = self._history.past(now)
        self._history.add(Sweep(now, seen))
        return Trace(Sweep(now, seen), past)


def _read(files: CounterFiles, found: Iterable[Device], below: str) -> dict[str, Reading]:
    """The readings of each folder in `below`: ports as `mlx5_0`, `mlx5_0/2`, else by name."""
    folders = {}
    for device in found:
        try:
            names = sorted(os.listdir(f"{device.folder}/{below}"))[:8]
        except OSError:
            continue
        for name in names:
            port = device.name if name == "1" else f"{device.name}/{name}"
            folders[port if below == "ports" else name] = f"{device.folder}/{below}/{name}"
    files.keep_only(list(folders.values()))
    read = {name: files.read(folder) for name, folder in folders.items()}
    return {name: reading for name, reading in read.items() if reading is not None}


@lru_cache(maxsize=4)
def _counters(root: Path) -> PortCounters:
    return PortCounters()


def gather_errors(machine: Machine) -> Trace:
    """Raises NotHere where there is no InfiniBand or RoCE device, CannotTell."""
    return _counters(machine.root).trace(machine)


def judge_errors(seen: Trace, before: Trace | None, limits: Limits) -> Judged:
    """One observation for each rule and port, with the window that shows most."""
    for rule in RULES:
        worst: dict[str, tuple[int, float]] = {}
        windows = [then for then in seen.past if seen.now.at - then.at <= rule.per_s]
        for then in windows or seen.past[-1:]:
            age = seen.now.at - then.at
            allowed = limits[rule.limit] * max(1.0, age / rule.per_s)
            for port, grown in seen.rises(then, rule.counter):
                if grown > allowed and grown > worst.get(port, (0, 0.0))[0]:
                    worst[port] = grown, age
        for port, (grown, age) in worst.items():
            yield Observation(
                rule.code or rule.counter,
                port,
                rule.verdict,
                f"{rule.counter} +{grown} in {age:.0f} s",
            )


def gauges_errors(seen: Trace, before: Trace | None) -> Mapping[str, float]:
    """Errors and retransmissions a second, all ports together."""
    return seen.rates(
        before,
        {
            "rdma.errors_per_s": ("symbol_error", "port_rcv_errors"),
            "rdma.retrans_per_s": ("local_ack_timeout_err", "out_of_sequence"),
        },
    )
