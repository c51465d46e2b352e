"""Check `neuron.errors`: Neuron devices count no uncorrected memory errors."""

from functools import lru_cache
from pathlib import Path

from hpctl.detection.check import CheckedMachine, CheckObservation, Judged, Limits
from hpctl.detection.checks.neuron_reading import NeuronDevice, NeuronErrorReader
from hpctl.detection.counter_rules import list_check_counter_rules

# Uncorrectable memory errors of Neuron devices.
#
# The driver counts from when it was loaded, so any other number than zero happened in this boot,
# whether the agent ran then or not. AWS recommends replacing the instance for HBM and SRAM errors,
# and a reboot for repairable ones (Neuron Runtime troubleshooting guide).

RULES = list_check_counter_rules("neuron.errors")


@lru_cache(maxsize=4)
def _get_neuron_error_reader(root: Path) -> NeuronErrorReader:
    return NeuronErrorReader()


def read_neuron_error_counters(machine: CheckedMachine) -> tuple[NeuronDevice, ...]:
    """Read the error counters. Raises DeviceAbsentError where there is no Neuron device,
    CheckResultUnknownError."""
    return _get_neuron_error_reader(machine.root).read(machine)


def judge_neuron_error_counters(
    seen: tuple[NeuronDevice, ...], before: tuple[NeuronDevice, ...] | None, limits: Limits
) -> Judged:
    """Return each device and kind of error that reaches the limit."""
    for device in seen:
        for rule in RULES:
            count = device.errors.get(rule.name, 0)
            if count >= limits[rule.limit]:
                detail = f"{count} uncorrected errors"
                yield CheckObservation(rule.code, device.name, rule.verdict, detail, rule.name)
