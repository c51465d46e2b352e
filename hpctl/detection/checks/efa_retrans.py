"""Check `efa.retrans`: little of what is sent over EFA is sent again."""

from collections.abc import Mapping

from hpctl.detection.check import Judged, Limits, make_warn_observation
from hpctl.detection.rdma_counters import CounterSweepTrace

# How much of what a node sends over EFA it has to send again.
#
# SRD recovers a lost packet, so this costs speed and no job. The head node compares the peers of
# the same job by the gauges; the check itself warns only far beyond the ratio at which that
# comparison begins.

LEAST_PACKETS = 10_000
"""Packets that must have been sent between two gathers before a ratio means anything."""


def count_efa_retransmits(
    seen: CounterSweepTrace, before: CounterSweepTrace | None
) -> dict[str, tuple[int, int]]:
    """Return, for each device with known counters, packets sent again and packets sent since the
    last trace."""
    if before is None:
        return {}
    sent = dict(seen.rises(before.now, "tx_pkts"))
    again = dict(seen.rises(before.now, "retrans_pkts"))
    return {device: (again[device], sent[device]) for device in sent.keys() & again.keys()}


def judge_efa_retransmits(
    seen: CounterSweepTrace, before: CounterSweepTrace | None, limits: Limits
) -> Judged:
    """Return the devices that send too much again."""
    for device, (again, sent) in sorted(count_efa_retransmits(seen, before).items()):
        if sent >= LEAST_PACKETS and again > limits["ratio"] * sent:
            yield make_warn_observation("ratio", device, f"{again} of {sent} packets sent again")


def compute_efa_retransmit_rates(
    seen: CounterSweepTrace, before: CounterSweepTrace | None
) -> Mapping[str, float]:
    """Return the ratios of the node and of its worst device, timeouts and traffic a second."""
    if before is None or (seconds := seen.now.at - before.now.at) <= 0:
        return {}
    rates = {}
    for name, counter in (
        ("efa.retrans_timeouts_per_s", "retrans_timeout_events"),
        ("efa.tx_bytes_per_s", "tx_bytes"),
        ("efa.rx_bytes_per_s", "rx_bytes"),
    ):
        grown = [rise for _, rise in seen.rises(before.now, counter)]
        if grown:
            rates[name] = sum(grown) / seconds
    by_device = count_efa_retransmits(seen, before).values()
    again, sent = sum(a for a, _ in by_device), sum(s for _, s in by_device)
    if sent >= LEAST_PACKETS:
        rates["efa.retrans_ratio"] = again / sent
        worst = [a / s for a, s in by_device if s >= LEAST_PACKETS]
        if worst:
            rates["efa.retrans_ratio_worst"] = max(worst)
    return rates
