"""AWS Neuron devices: all present, and without uncorrected memory errors."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.neuron_devices import count_neuron_devices, judge_neuron_devices
from hpctl.detection.checks.neuron_errors import judge_neuron_errors, read_neuron_errors

CHECKS = {
    "neuron.devices": CheckFunctions(count_neuron_devices, judge_neuron_devices),
    "neuron.errors": CheckFunctions(read_neuron_errors, judge_neuron_errors),
}
"""What the runner calls, by the check's name."""
