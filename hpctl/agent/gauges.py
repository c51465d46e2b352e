"""Numbers that an agent sends beside its findings, for the head node's comparison of peers.

A check may have a third function,

    def gauges(seen: Sample, before: Sample | None) -> Gauges: ...

which says what it measured between its last two gathers. No number is better than a wrong one: a
gauge is left out where nothing can be said (first gather, counter reset, too little traffic).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Gauges = Mapping[str, float]
"""Numbers by name; the names are those of NAMES."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """What one number means. `source` says who counts it."""

    name: str
    unit: str
    what: str
    source: str


FABRIC_GAUGES = (
    Gauge(
        "efa.retrans_ratio",
        "packets per packet sent",
        "retransmitted packets over packets sent, all EFA devices of the node together",
        "EFA port counters retrans_pkts and tx_pkts",
    ),
    Gauge(
        "efa.retrans_ratio_worst",
        "packets per packet sent",
        "the same, of the one device where it is highest",
        "EFA port counters retrans_pkts and tx_pkts",
    ),
    Gauge(
        "efa.retrans_timeouts_per_s",
        "1/s",
        "SRD timeouts that led to another network path, all devices",
        "EFA port counter retrans_timeout_events",
    ),
    Gauge(
        "efa.remote_events_per_s",
        "1/s",
        "peers that this node found unresponsive or impaired, all devices: it points away from it",
        "EFA port counters unresponsive_remote_events and impaired_remote_conn_events",
    ),
    Gauge(
        "efa.rx_drops_per_s",
        "1/s",
        "packets received and dropped, all devices",
        "EFA port counter rx_drops",
    ),
    Gauge("efa.tx_bytes_per_s", "B/s", "bytes sent, all devices", "EFA port counter tx_bytes"),
    Gauge("efa.rx_bytes_per_s", "B/s", "bytes received, all devices", "EFA port counter rx_bytes"),
    Gauge(
        "rdma.errors_per_s",
        "1/s",
        "symbol and receive errors, all InfiniBand and RoCE ports",
        "port counters symbol_error and port_rcv_errors",
    ),
    Gauge(
        "rdma.retrans_per_s",
        "1/s",
        "acknowledgements that timed out and packets out of sequence, all ports",
        "hardware counters local_ack_timeout_err and out_of_sequence",
    ),
)

NAMES: Mapping[str, Gauge] = {gauge.name: gauge for gauge in FABRIC_GAUGES}
"""Every gauge of the fabric by its name."""
