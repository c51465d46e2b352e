"""What parts need, and whether it is here."""

import importlib.util
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path


def _has_program(*names: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(name) for name in names)


def _has_module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


PROBES: dict[str, tuple[str, Callable[[], bool]]] = {
    "gpu": ("no NVIDIA GPU", lambda: Path("/dev/nvidiactl").exists()),
    "slurm": ("no Slurm", _has_program("slurmctld", "slurmd", "srun", "munged")),
    "torch": ("no torch", _has_module("torch")),
    "jax": ("no JAX", _has_module("jax")),
    "nvrx": ("no nvidia-resiliency-ext", _has_module("nvidia_resiliency_ext")),
    "transformers": ("no transformers", _has_module("transformers")),
    "nvcc": ("no nvcc", _has_program("nvcc")),
    "pytest": ("no pytest", _has_module("pytest")),
    "py-spy": ("no py-spy", _has_program("py-spy")),
}
"""By need: what to say where it is missing, and the test. A dry run has a stand-in for "gpu"."""


def find_missing(needs: Iterable[str], *, dry: bool) -> str:
    """Return what is missing in words, "" if nothing is. KeyError for a need that is none."""
    missing = []
    for need in sorted(needs):
        words, is_here = PROBES[need]
        if dry and need == "gpu":
            continue
        if not is_here():
            missing.append(words)
    return ", ".join(missing)
