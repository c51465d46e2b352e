"""File systems: local ones that went read-only, network ones that hang or fail."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_mounts import judge_network_mounts, probe_network_mounts
from hpctl.detection.checks.host_readonly import (
    judge_readonly_mounts,
    probe_local_mount_writability,
)

CHECKS = {
    "host.readonly": CheckFunctions(probe_local_mount_writability, judge_readonly_mounts),
    "host.mounts": CheckFunctions(probe_network_mounts, judge_network_mounts),
}
"""What the runner calls, by the check's name."""
