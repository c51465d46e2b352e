"""Errors that EFA devices count: only ever a warning, for a job or a remote node can cause them.

Each counter has a bucket: it may burst, and it may creep by the refill; more in any of the windows
that are kept is told. The bursts are those of AWS's eks-node-monitoring-agent. It refills by one a
second whatever is counted, which for retransmitted bytes is a warning for any load; here packets
and bytes may creep by what is 1e-4 of the line rate. What a node says of its remote side points
away from it: the head node compares the peers of a job, by the gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.counters import Trace
from hpctl.agent.efa import failures, trace
from hpctl.agent.gauges import Gauges
from hpctl.core.model import Verdict

CODES: Mapping[str, tuple[str, str]] = {
    "rx_drops": ("rx_drops", "events"),
    "rdma_read_wr_err": ("rdma_read_wr_err", "events"),
    "rdma_write_wr_err": ("rdma_write_wr_err", "events"),
    "unresponsive_remote_events": ("remote_unresponsive", "events"),
    "impaired_remote_conn_events": ("remote_impaired", "events"),
    "retrans_timeout_events": ("retrans_timeout_events", "events"),
    "retrans_pkts": ("retrans_pkts", "retrans_pkts"),
    "retrans_bytes": ("retrans_bytes", "retrans_bytes"),
}
"""For each counter its code, and what its limits are called: `burst_` and `refill_` with that."""


def gather(machine: Machine) -> Trace:
    """The shared sweep. Raises NotHere where there is no EFA device, CannotTell."""
    return trace(machine)


def judge(seen: Trace, before: Trace | None, limits: Limits) -> Iterable[Observation]:
    """One observation a counter, naming its worst device; refusals and dead counters a device."""
    yield from _devices(seen, limits)
    for counter, (code, kind) in CODES.items():
        over: dict[str, tuple[int, float]] = {}
        for then in seen.past:
            age = seen.now.at - then.at
            allowed = limits[f"burst_{kind}"] + limits[f"refill_{kind}"] * age
            for device, grown in seen.rises(then, counter):
                if grown > allowed and grown > over.get(device, (0, 0.0))[0]:
                    over[device] = grown, age
        if over:
            worst = max(over, key=lambda device: over[device][0])
            grown, age = over[worst]
            others = f", and {len(over) - 1} more devices" if len(over) > 1 else ""
            yield Observation(
                code, "", Verdict.WARN, f"{counter} +{grown} in {age:.0f} s on {worst}{others}"
            )


def _devices(seen: Trace, limits: Limits) -> Iterable[Observation]:
    for device, reading in seen.now.devices.items():
        if reading.failed:
            name, why = next(iter(reading.failed.items()))
            yield Observation(
                "unreadable",
                device,
                Verdict.WARN,
                f"{len(reading.failed)} counters cannot be read: {name}: {why}",
            )
        earlier = (then.devices.get(device) for then in seen.past)
        refused = max((failures(reading, then)[1] for then in earlier), default=0)
        if refused >= limits["refused"]:
            yield Observation(
                "refused", device, Verdict.WARN, f"refused {refused} calls of applications"
            )


def gauges(seen: Trace, before: Trace | None) -> Gauges:
    """What the node says of its remote side, and what it drops, a second."""
    told = {
        "efa.remote_events_per_s": ("unresponsive_remote_events", "impaired_remote_conn_events"),
        "efa.rx_drops_per_s": ("rx_drops",),
    }
    if before is None or (seconds := seen.now.at - before.now.at) <= 0:
        return {}
    rates = {}
    for name, counters in told.items():
        grown = [rise for counter in counters for _, rise in seen.rises(before.now, counter)]
        if grown:
            rates[name] = sum(grown) / seconds
    return rates
