"""AWS Neuron devices: all present, and without uncorrected memory errors."""

from hpctl.detection.check import CheckFunctions
from hpctl.detection.checks.neuron_devices import (
    collect_neuron_device_sample,
    judge_neuron_device_count,
)
from hpctl.detection.checks.neuron_errors import (
    judge_neuron_error_counters,
    read_neuron_error_counters,
)

CHECKS = {
    "neuron.devices": CheckFunctions(collect_neuron_device_sample, judge_neuron_device_count),
    "neuron.errors": CheckFunctions(read_neuron_error_counters, judge_neuron_error_counters),
}
"""What the runner calls, by the check's name."""
