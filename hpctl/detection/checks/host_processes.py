"""Tasks that hang in a driver or a file server, zombies, the limits of tasks and files."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.host_dstate import judge_stuck_tasks, list_stuck_tasks
from hpctl.detection.checks.host_zombies import (
    count_processes_and_open_files,
    judge_process_and_file_counts,
)

CHECKS = {
    "host.dstate": CheckFunctions(list_stuck_tasks, judge_stuck_tasks),
    "host.zombies": CheckFunctions(count_processes_and_open_files, judge_process_and_file_counts),
}
"""What the runner calls, by the check's name."""
