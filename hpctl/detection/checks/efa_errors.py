"""Check `efa.errors`: EFA error counters creep, but do not burst."""

from collections.abc import Mapping

from hpctl.detection.check import CheckObservation, Judged, Limits, make_warn_observation
from hpctl.detection.checks.efa_reading import count_failed_efa_admin_commands
from hpctl.detection.counter_rules import find_devices_over_growth_limit, list_check_counter_rules
from hpctl.detection.rdma_counters import CounterSweepTrace

# Errors that EFA devices count: only a warning, because a job or a remote node can cause them.
#
# Each counter has a bucket: it may burst, and it may creep by the refill; more in any of the
# windows that are kept is reported. The bursts are those of AWS's eks-node-monitoring-agent. It
# refills by one a second whatever is counted, which for retransmitted bytes warns at any load; here
# packets and bytes may creep by what is 1e-4 of the line rate. What a node counts about its remote
# side is not evidence against it: the head node compares the peers of a job, by the gauges.

RULES = list_check_counter_rules("efa.errors")


def judge_efa_error_counters(
    seen: CounterSweepTrace, before: CounterSweepTrace | None, limits: Limits
) -> Judged:
    """Return one observation a counter, naming its worst device; refusals and dead counters for
    each device."""
    yield from _judge_efa_device_counters(seen, limits)
    for rule in RULES:
        over = find_devices_over_growth_limit(seen, rule, limits)
        if over:
            worst = max(over, key=lambda device: over[device][0])
            grown, age = over[worst]
            others = f", and {len(over) - 1} more devices" if len(over) > 1 else ""
            detail = f"{rule.name} +{grown} in {age:.0f} s on {worst}{others}"
            yield CheckObservation(rule.code, "", rule.verdict, detail)


def _judge_efa_device_counters(seen: CounterSweepTrace, limits: Limits) -> Judged:
    for device, reading in seen.now.devices.items():
        if reading.failed:
            name, why = next(iter(reading.failed.items()))
            yield make_warn_observation(
                "unreadable",
                device,
                f"{len(reading.failed)} counters cannot be read: {name}: {why}",
            )
        earlier = (then.devices.get(device) for then in seen.past)
        refused = max(
            (count_failed_efa_admin_commands(reading, then)[1] for then in earlier), default=0
        )
        if refused >= limits["refused"]:
            yield make_warn_observation(
                "refused", device, f"refused {refused} calls of applications"
            )


def compute_efa_error_rates(
    seen: CounterSweepTrace, before: CounterSweepTrace | None
) -> Mapping[str, float]:
    """Return the errors of the remote side, and the packets that the node drops, a second."""
    remote = ("unresponsive_remote_events", "impaired_remote_conn_events")
    return seen.rates(
        before, {"efa.remote_events_per_s": remote, "efa.rx_drops_per_s": ("rx_drops",)}
    )
