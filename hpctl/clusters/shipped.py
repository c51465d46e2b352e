"""What hpctl brings for nodes and Slurm: in a wheel beside the code, else in the source tree."""

from __future__ import annotations

from pathlib import Path

from hpctl.errors import HpctlError

_HERE = Path(__file__).resolve().parent.parent


def lifecycle_scripts() -> Path:
    """The directory of what HyperPod runs on a node at birth. Raises HpctlError."""
    return _found("lifecycle_scripts")


def slurm_plugins() -> Path:
    """The directory of hpctl's plugins for Slurm. Raises HpctlError."""
    return _found("slurm_plugins")


def _found(name: str) -> Path:
    for place in (_HERE / "_shipped" / name, _HERE.parent / name):
        if place.is_dir():
            return place
    raise HpctlError(
        f"this installation of hpctl has no {name}", "install hpctl from its wheel or source tree"
    )
