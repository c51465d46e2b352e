"""Counter traces as literals, and the limits as shipped, for the tests of the fabric's checks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from hpctl.detection.check import CheckedMachine, CheckObservation, ExpectedHardware
from hpctl.detection.rdma_counters import (
    CounterSweepTrace,
    DeviceCounterReading,
    DeviceCounterSweep,
)
from hpctl.faults.table import CHECKS

BORN = (64768, 4711)


def limits(check: str) -> dict[str, float]:
    spec = next(spec for spec in CHECKS if spec.name == check)
    return {name: limit.value for name, limit in spec.limits.items()}


def traces(
    counters: Mapping[str, Mapping[str, Sequence[int]]], every_s: float = 12.0
) -> list[CounterSweepTrace]:
    """One trace a sweep, from `{device: {counter: [values]}}`; those before it are its past."""
    length = max(len(values) for device in counters.values() for values in device.values())
    sweeps = [
        DeviceCounterSweep(
            1000.0 + i * every_s,
            {
                device: DeviceCounterReading(
                    BORN, {name: values[i] for name, values in named.items()}
                )
                for device, named in counters.items()
            },
        )
        for i in range(length)
    ]
    return [CounterSweepTrace(sweep, tuple(sweeps[:i])) for i, sweep in enumerate(sweeps)]


def codes(observations: Iterable[CheckObservation]) -> list[tuple[str, str]]:
    return sorted((o.code, o.device) for o in observations)


class Clock(Struct):
    """A clock that a test moves."""

    now: float = 5000.0

    def __call__(self) -> float:
        return self.now


class Node(Struct):
    """A machine on a fake root, with its clock."""

    root: Path
    expected: ExpectedHardware = field(default_factory=ExpectedHardware)
    clock: Clock = field(default_factory=Clock)

    @property
    def machine(self) -> CheckedMachine:
        return CheckedMachine(self.root, self.expected, monotonic=self.clock)
