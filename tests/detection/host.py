"""A machine made of files, and the shipped limits, for the tests of the host checks."""

from collections.abc import Iterable

from hpctl.detection.check import CheckedMachine, CheckObservation, ExpectedHardware
from hpctl.vocabulary.model import DeviceVerdict
from tests.fakes.fabric import limits

__all__ = ["limits", "machine", "summary"]


def machine(root, files=None, *, instance_type="", monotonic=lambda: 0.0):
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckedMachine(root, ExpectedHardware(instance_type), monotonic=monotonic)


def summary(observations: Iterable[CheckObservation]) -> list[tuple[str, str, DeviceVerdict]]:
    return [(seen.code, seen.device, seen.verdict) for seen in observations]
