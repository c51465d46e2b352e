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
STAND_INS = Path(__file__).with_name("stand_in_programs")
ROOT = Path(__file__).resolve().parents[2]


def kernel_log(scratch: Path, *, dry: bool) -> Path:
    """Return the kernel's log: a plain file in a dry run, which parts may write to."""
    return scratch / "kmsg" if dry else KMSG


@lru_cache
def stand_in_gpu(scratch: Path) -> Stub:
    """Return the scripted library of a dry run's part, with one GPU. What is set on it holds from
    the next call of NVML on, in every process of the part."""
    from tests.stubs.nvml import Stub

    return Stub(scratch).gpus(1)


def prepare_environment(scratch: Path, *, dry: bool) -> dict[str, str]:
    """Return the environment of a part and of its programs.

    In a dry run NVML is the scripted library of tests/stubs/nvml with one GPU, nvidia-smi prints a
    recording, and the kernel's log is an empty file. NVML's script is at $HPCTL_NVML_STUB.
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
    environment["PATH"] = str(STAND_INS) + os.pathsep + environment["PATH"]
    return environment
