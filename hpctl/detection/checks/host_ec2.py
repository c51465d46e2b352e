"""What EC2 gives the instance: its disks and cards, its allowances, a spot interruption."""

from __future__ import annotations

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_allowance import (
    judge_exceeded_ec2_allowances,
    read_ec2_allowance_counters,
)
from hpctl.detection.checks.host_devices import collect_pci_device_sample, judge_missing_pci_devices
from hpctl.detection.checks.host_spot import (
    fetch_spot_interruption_notice,
    judge_spot_interruption_notice,
)

CHECKS = {
    "host.devices": CheckFunctions(collect_pci_device_sample, judge_missing_pci_devices),
    "host.allowance": CheckFunctions(read_ec2_allowance_counters, judge_exceeded_ec2_allowances),
    "host.spot": CheckFunctions(fetch_spot_interruption_notice, judge_spot_interruption_notice),
}
"""What the runner calls, by the check's name."""
