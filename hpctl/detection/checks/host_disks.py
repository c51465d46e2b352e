"""Disks: full ones, and NVMe by the kernel's view and by its own health log."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_disk import judge_disk_space, read_disk_space
from hpctl.detection.checks.host_nvme import judge_nvme_controllers, read_nvme_controllers
from hpctl.detection.checks.host_nvme_smart import judge_smart_health, read_smart_health

CHECKS = {
    "host.disk": CheckFunctions(read_disk_space, judge_disk_space),
    "host.nvme": CheckFunctions(read_nvme_controllers, judge_nvme_controllers),
    "host.nvme.smart": CheckFunctions(read_smart_health, judge_smart_health),
}
"""What the runner calls, by the check's name."""
