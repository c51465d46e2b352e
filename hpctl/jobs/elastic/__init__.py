"""Process-level restarts for PyTorch: one launcher a node, inside one Slurm step.

`python -m hpctl.jobs.elastic -- train.py` starts the ranks of its node with torchrun's own
environment. When a rank dies, every rank of the group is ended and started again, without a new
step. docs/run.md has the rest; this file is what a supervisor needs to start it.
"""

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from hpctl.toolkit.compat import SAFE_PATH

SECRET = "HPCTL_ELASTIC_SECRET"  # noqa: S105 (the variable's name)
"""The secret of the launchers of one step: at least 16 characters."""
RESULT = "HPCTL_ELASTIC_RESULT"
"""The file that the first node's launcher keeps its account in (`controller.read_account`)."""


PYTHON = "HPCTL_PYTHON"
"""The interpreter that has hpctl, for a rank whose own need not."""


def build_rank_launcher_command(
    program: Sequence[str],
    nproc: int = 0,
    *,
    in_process: bool = False,
    final_exit_codes: Sequence[int] = (93, 16, 17),
) -> list[str]:
    """Return what srun starts, one task a node, to run `program` as a group of ranks.

    `program` is a script with its arguments, `-m module ...`, or any command. `nproc` ranks a node;
    0 asks Slurm (GPUs of the step, else 1). `in_process`: see in_process.py. The environment must
    hold what `build_rank_launcher_environment` gives.
    """
    codes = ",".join(str(code) for code in final_exit_codes)
    options = [f"--nproc-per-node={nproc or 'auto'}", f"--final-exit-codes={codes}"]
    options += ["--in-process"] * in_process
    return [sys.executable, *SAFE_PATH, "hpctl.jobs.elastic", *options, "--", *program]


def build_rank_launcher_environment(result: Path | None = None) -> dict[str, str]:
    """Return what the launchers' environment needs beyond Slurm's own: a fresh secret for each
    step, and where the first node's launcher writes its account (a path on that node)."""
    fresh = {SECRET: secrets.token_hex(16)}
    if result is not None:
        fresh[RESULT] = str(result)
    return fresh
