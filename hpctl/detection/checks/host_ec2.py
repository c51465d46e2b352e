"""What EC2 gives the instance: its disks and cards, its allowances, a spot interruption."""

from __future__ import annotations

from hpctl.detection.check import Functions
from hpctl.detection.checks.host_allowance import gather_allowance, judge_allowance
from hpctl.detection.checks.host_devices import gather_devices, judge_devices
from hpctl.detection.checks.host_spot import gather_spot, judge_spot

CHECKS = {
    "host.devices": Functions(gather_devices, judge_devices),
    "host.allowance": Functions(gather_allowance, judge_allowance),
    "host.spot": Functions(gather_spot, judge_spot),
}
"""What the runner calls, by the check's name."""
