"""What keeps a node in service: its systemd units, and its clock."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_clock import judge_clock_offset, read_system_clock_offset
from hpctl.detection.checks.host_units import judge_systemd_units, read_systemd_units

CHECKS = {
    "host.units": CheckFunctions(read_systemd_units, judge_systemd_units),
    "host.clock": CheckFunctions(read_system_clock_offset, judge_clock_offset),
}
"""What the runner calls, by the check's name."""
