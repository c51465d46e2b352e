"""Check `efa.keepalive`: every EFA device sends its keep-alives."""

from hpctl.detection.check import Judged, Limits, make_fail_observation, make_warn_observation
from hpctl.detection.rdma_counters import CounterSweepTrace

# Whether the EFA devices still send their keep-alives: one that stopped indicates a dead device.
#
# A counter that never moved is one that the device does not send (facts/detection 5.1 describes
# only a stopped counter). Where all devices of a node stop together, the driver or the count is the
# likelier cause than every NIC, so that is only watched.

COUNTER = "keep_alive_rcvd"


def judge_efa_keepalive_counters(
    seen: CounterSweepTrace, before: CounterSweepTrace | None, limits: Limits
) -> Judged:
    """Return each device whose count has not moved since the last trace."""
    if before is None or seen.now.at - before.now.at < limits["still_s"]:
        return
    grown = dict(seen.rises(before.now, COUNTER))
    still = [
        device
        for device, rise in grown.items()
        if rise == 0 and seen.now.devices[device].values[COUNTER] > 0
    ]
    if len(still) > 1 and len(still) == len(grown):
        yield make_warn_observation(
            "stalled_all", "", f"no keep-alive from any of {len(still)} devices"
        )
        return
    for device in still:
        count = seen.now.devices[device].values[COUNTER]
        yield make_fail_observation("stalled", device, f"no keep-alive after number {count}")
