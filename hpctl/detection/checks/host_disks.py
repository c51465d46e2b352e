"""Disks: full ones, and NVMe by the kernel's view and by its own health log."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_disk import collect_disk_space_sample, judge_disk_space
from hpctl.detection.checks.host_nvme import judge_nvme_controllers, read_nvme_controllers
from hpctl.detection.checks.host_nvme_smart import judge_nvme_smart_health, read_nvme_smart_health

CHECKS = {
    "host.disk": CheckFunctions(collect_disk_space_sample, judge_disk_space),
    "host.nvme": CheckFunctions(read_nvme_controllers, judge_nvme_controllers),
    "host.nvme.smart": CheckFunctions(read_nvme_smart_health, judge_nvme_smart_health),
}
"""What the runner calls, by the check's name."""
