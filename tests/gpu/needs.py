"""What parts need, and whether it is here."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.gpu.context import program_path


def _has_program(*names: str) -> Callable[[], bool]:
    """Look on PATH and beside the interpreter, where parts have them first (see stand_ins.py)."""
    path = os.pathsep.join([os.path.dirname(sys.executable), program_path(os.environ["PATH"])])
    return lambda: all(shutil.which(name, path=path) for name in names)


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
