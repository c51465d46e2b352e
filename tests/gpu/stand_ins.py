"""The environment that the parts run in: the machine's own, or the stand-ins of a dry run."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.context import program_path

if TYPE_CHECKING:
    from tests.stubs.nvml import Stub

KMSG = Path("/dev/kmsg")
ROOT = Path(__file__).resolve().parents[2]


def kernel_log(scratch: Path, *, dry: bool) -> Path:
    """Return the kernel's log: a plain file in a dry run, which parts may write to."""
    return scratch / "kmsg" if dry else KMSG


@lru_cache
def stand_in_gpu(scratch: Path) -> Stub:
    """Return the scripted library of a dry run's part, which answers as the recorded H200 did.
    What is set on it holds from the next call of NVML on, in every process of the part."""
    from tests.stubs.nvml import Stub

    return Stub(scratch).recorded("idle")


def install_smi(scratch: Path) -> Path:
    """Install the recorded nvidia-smi, and return a folder for PATH that has nothing else."""
    from tests.fakes.nvidia_smi import install_recorded

    root, folder = scratch / "smi", scratch / "stand-ins"
    for place in (root, folder):
        place.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.unlink(missing_ok=True)
    program.symlink_to(install_recorded(root, "idle"))
    return folder


def prepare_environment(scratch: Path, *, dry: bool) -> dict[str, str]:
    """Return the environment of a part and of its programs.

    In a dry run NVML (tests/stubs/nvml) and nvidia-smi (tests/fakes/nvidia_smi.py) answer as the
    recorded H200, and the kernel's log is an empty file. NVML's script is at $HPCTL_NVML_STUB.
    """
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "HPCTL_"))
    }
    here = os.path.dirname(sys.executable)
    environment["PATH"] = program_path(here + os.pathsep + environment.get("PATH", ""))
    environment["PYTHONPATH"] = str(ROOT)
    environment["PYTHONUNBUFFERED"] = "1"
    if not dry:
        return environment
    kernel_log(scratch, dry=dry).touch()
    environment |= stand_in_gpu(scratch).env()
    environment["PATH"] = str(install_smi(scratch)) + os.pathsep + environment["PATH"]
    return environment
