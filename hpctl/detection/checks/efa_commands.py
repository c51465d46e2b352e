"""Check `efa.commands`: EFA devices answer the driver's admin commands."""

from itertools import pairwise

from hpctl.detection.check import Judged, Limits, make_fail_observation
from hpctl.detection.checks.efa_reading import ASKED, count_failed_efa_admin_commands
from hpctl.detection.rdma_counters import (
    CounterSweepTrace,
    DeviceCounterReading,
    compute_device_counter_increase,
)

# Whether the EFA devices answer the driver's admin commands.
#
# After a command without an answer the driver gives up the device's admin queue: only a reset of
# the device restores it. Commands that fail are evidence against the NIC only where neither an
# application nor the reading of counters explains them (`count_failed_efa_admin_commands`), and
# where they continue: what a process that ends was refused (modify, destroy) is counted nowhere
# else.


def judge_efa_admin_commands(
    seen: CounterSweepTrace, before: CounterSweepTrace | None, limits: Limits
) -> Judged:
    """Return the devices with commands that were not answered, or that failed, in the window."""
    past = [s for s in seen.past if seen.now.at - s.at <= limits["window_s"]]
    for device, reading in seen.now.devices.items():
        earlier = [s.devices[device] for s in past if device in s.devices]
        lost = max(
            (
                compute_device_counter_increase(reading, then, "no_completion_cmds") or 0
                for then in earlier
            ),
            default=0,
        )
        if lost >= limits["no_completion"]:
            yield make_fail_observation(
                "no_completion",
                device,
                f"{lost} admin commands never completed",
                _format_admin_command_counters(reading),
            )
        failed = max(
            (count_failed_efa_admin_commands(reading, then)[0] for then in earlier), default=0
        )
        goes_on = sum(
            count_failed_efa_admin_commands(b, a)[0] > 0 for a, b in pairwise([*earlier, reading])
        )
        if failed >= limits["failed"] and goes_on >= limits["failed_intervals"]:
            yield make_fail_observation(
                "failed",
                device,
                f"{failed} admin commands failed that no application's call explains",
                _format_admin_command_counters(reading),
            )


def _format_admin_command_counters(reading: DeviceCounterReading) -> str:
    names = ("submitted_cmds", "completed_cmds", "no_completion_cmds", "cmds_err", *ASKED)
    return " ".join(f"{n}={reading.values[n]}" for n in names if reading.values.get(n))
