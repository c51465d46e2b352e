"""A machine made of files, and the shipped limits, for the tests of the host checks."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hpctl.agent.check import Expected, Limits, Machine, Observation
from hpctl.core.faults.table import CHECKS
from hpctl.core.model import Verdict


def machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    instance_type: str = "",
    monotonic: Callable[[], float] = lambda: 0.0,
) -> Machine:
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root, Expected(instance_type), monotonic=monotonic)


def limits(name: str) -> Limits:
    """The shipped limits of one check."""
    (spec,) = (spec for spec in CHECKS if spec.name == name)
    return {limit: row.value for limit, row in spec.limits.items()}


def said(observations: Iterable[Observation]) -> list[tuple[str, str, Verdict]]:
    return [(seen.code, seen.device, seen.verdict) for seen in observations]
