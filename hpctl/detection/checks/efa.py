"""EFA devices: present, linked, alive, answering, without bursts of errors or retransmissions."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.efa_commands import judge_commands
from hpctl.detection.checks.efa_devices import gather_devices, judge_devices
from hpctl.detection.checks.efa_errors import gauges_errors, judge_errors
from hpctl.detection.checks.efa_keepalive import judge_keepalive
from hpctl.detection.checks.efa_link import gather_link, judge_link
from hpctl.detection.checks.efa_reading import read_trace
from hpctl.detection.checks.efa_retrans import gauges_retrans, judge_retrans

CHECKS = {
    "efa.devices": Functions(gather_devices, judge_devices),
    "efa.link": Functions(gather_link, judge_link),
    "efa.keepalive": Functions(read_trace, judge_keepalive),
    "efa.commands": Functions(read_trace, judge_commands),
    "efa.errors": Functions(read_trace, judge_errors, gauges_errors),
    "efa.retrans": Functions(read_trace, judge_retrans, gauges_retrans),
}
"""What the runner calls, by the check's name."""
