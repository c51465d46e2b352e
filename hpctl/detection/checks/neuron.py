"""AWS Neuron devices: all present, and without uncorrected memory errors."""

from hpctl.detection.check import Functions
from hpctl.detection.checks.neuron_devices import gather_devices, judge_devices
from hpctl.detection.checks.neuron_errors import gather_errors, judge_errors

CHECKS = {
    "neuron.devices": Functions(gather_devices, judge_devices),
    "neuron.errors": Functions(gather_errors, judge_errors),
}
"""What the runner calls, by the check's name."""
