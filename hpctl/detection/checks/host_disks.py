"""Disks: full ones, and NVMe by the kernel's view and by its own health log."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.host_disk import gather_full, judge_full
from hpctl.detection.checks.host_nvme import gather_nvme, judge_nvme
from hpctl.detection.checks.host_nvme_smart import gather_smart, judge_smart

CHECKS = {
    "host.disk": Functions(gather_full, judge_full),
    "host.nvme": Functions(gather_nvme, judge_nvme),
    "host.nvme.smart": Functions(gather_smart, judge_smart),
}
"""What the runner calls, by the check's name."""
