"""What EC2 gives the instance: its disks and cards, its allowances, a spot interruption."""

from __future__ import annotations

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_allowance import judge_exceeded_allowances, read_allowance_counters
from hpctl.detection.checks.host_devices import judge_pci_devices, list_pci_devices
from hpctl.detection.checks.host_spot import fetch_spot_notice, judge_spot_notice

CHECKS = {
    "host.devices": CheckFunctions(list_pci_devices, judge_pci_devices),
    "host.allowance": CheckFunctions(read_allowance_counters, judge_exceeded_allowances),
    "host.spot": CheckFunctions(fetch_spot_notice, judge_spot_notice),
}
"""What the runner calls, by the check's name."""
