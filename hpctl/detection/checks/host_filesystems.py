"""File systems: local ones that went read-only, network ones that hang or fail."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.host_mounts import gather_mounts, judge_mounts
from hpctl.detection.checks.host_readonly import gather_readonly, judge_readonly

CHECKS = {
    "host.readonly": Functions(gather_readonly, judge_readonly),
    "host.mounts": Functions(gather_mounts, judge_mounts),
}
"""What the runner calls, by the check's name."""
