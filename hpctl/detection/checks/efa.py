"""EFA devices: present, linked, alive, answering, without bursts of errors or retransmissions."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.efa_commands import judge_efa_admin_commands
from hpctl.detection.checks.efa_devices import collect_efa_device_sample, judge_efa_device_count
from hpctl.detection.checks.efa_errors import compute_efa_error_rates, judge_efa_error_counters
from hpctl.detection.checks.efa_keepalive import judge_efa_keepalive_counters
from hpctl.detection.checks.efa_link import judge_efa_port_states, read_efa_port_states
from hpctl.detection.checks.efa_reading import read_efa_counter_trace
from hpctl.detection.checks.efa_retrans import compute_efa_retransmit_rates, judge_efa_retransmits

CHECKS = {
    "efa.devices": CheckFunctions(collect_efa_device_sample, judge_efa_device_count),
    "efa.link": CheckFunctions(read_efa_port_states, judge_efa_port_states),
    "efa.keepalive": CheckFunctions(read_efa_counter_trace, judge_efa_keepalive_counters),
    "efa.commands": CheckFunctions(read_efa_counter_trace, judge_efa_admin_commands),
    "efa.errors": CheckFunctions(
        read_efa_counter_trace, judge_efa_error_counters, compute_efa_error_rates
    ),
    "efa.retrans": CheckFunctions(
        read_efa_counter_trace, judge_efa_retransmits, compute_efa_retransmit_rates
    ),
}
"""What the runner calls, by the check's name."""
