"""Tasks that hang in a driver or a file server, zombies, the limits of tasks and files."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.host_dstate import gather_dstate, judge_dstate
from hpctl.detection.checks.host_zombies import gather_zombies, judge_zombies

CHECKS = {
    "host.dstate": Functions(gather_dstate, judge_dstate),
    "host.zombies": Functions(gather_zombies, judge_zombies),
}
"""What the runner calls, by the check's name."""
