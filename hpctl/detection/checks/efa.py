"""EFA devices: present, linked, alive, answering, without bursts of errors or retransmissions."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.efa_commands import judge_efa_commands
from hpctl.detection.checks.efa_devices import count_efa_devices, judge_efa_devices
from hpctl.detection.checks.efa_errors import judge_efa_errors, measure_efa_errors
from hpctl.detection.checks.efa_keepalive import judge_efa_keepalive
from hpctl.detection.checks.efa_link import judge_efa_links, read_efa_links
from hpctl.detection.checks.efa_reading import read_efa_counter_trace
from hpctl.detection.checks.efa_retrans import judge_efa_retransmits, measure_efa_retransmits

CHECKS = {
    "efa.devices": CheckFunctions(count_efa_devices, judge_efa_devices),
    "efa.link": CheckFunctions(read_efa_links, judge_efa_links),
    "efa.keepalive": CheckFunctions(read_efa_counter_trace, judge_efa_keepalive),
    "efa.commands": CheckFunctions(read_efa_counter_trace, judge_efa_commands),
    "efa.errors": CheckFunctions(read_efa_counter_trace, judge_efa_errors, measure_efa_errors),
    "efa.retrans": CheckFunctions(
        read_efa_counter_trace, judge_efa_retransmits, measure_efa_retransmits
    ),
}
"""What the runner calls, by the check's name."""
