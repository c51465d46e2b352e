"""What `hpctl sbatch` asks the controller before it submits: one question, bounded, optional."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ASK_S = 5.0
"""A controller that is busy must not keep a submission waiting that would itself go through."""


def expedites(sbatch: str) -> bool:
    """Whether `--requeue=expedite` is enabled (Slurm 25.11 and later). False where unknown.

    It is asked of the scontrol beside that sbatch.
    """
    try:
        done = subprocess.run(
            [str(Path(sbatch).with_name("scontrol")), "show", "config"],
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return enabled(done.stdout.decode(errors="replace"))


def enabled(config: str) -> bool:
    """Whether `scontrol show config` tells of expedited requeue, and of a release that has it."""
    version = re.search(r"^SLURM_VERSION\s*=\s*(\d+)\.(\d+)", config, re.MULTILINE)
    parameters = re.search(r"^SlurmctldParameters\s*=\s*(.*)$", config, re.MULTILINE)
    if version is None or parameters is None:
        return False
    named = {word.strip().lower() for word in parameters[1].split(",")}
    return (int(version[1]), int(version[2])) >= (25, 11) and "enable_expedited_requeue" in named
