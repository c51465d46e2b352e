"""What keeps a node in service: its systemd units, and its clock."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.host_clock import gather_clock, judge_clock
from hpctl.detection.checks.host_units import gather_units, judge_units

CHECKS = {
    "host.units": Functions(gather_units, judge_units),
    "host.clock": Functions(gather_clock, judge_clock),
}
"""What the runner calls, by the check's name."""
