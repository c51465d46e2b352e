"""Programs of one or several ranks on this machine, started as Slurm would, without Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context

HERE = Path(__file__).parent
PROGRAM, COLLECTIVES = HERE / "program.py", HERE / "collectives.py"

QUIET = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "HF_HUB_OFFLINE": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""One machine stands for several nodes: they meet on loopback, and nobody takes the whole GPU."""


class Rank:
    """One process in a group of its own, with its output in files. `code` is None while it runs."""

    def __init__(
        self, command: Sequence[object], name: str, folder: Path, environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.out_file, self.err_file = folder / f"{name}.stdout", folder / f"{name}.stderr"
        self.began = time.monotonic()
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """Return the exit code, negative for a signal."""
        return self._process.poll()

    @property
    def out(self) -> str:
        """Return what it has printed."""
        return self.out_file.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Return what it has written to standard error."""
        return self.err_file.read_text(errors="replace")

    def wait(self, limit_s: float) -> int | None:
        """Wait for its end; None, and it is killed, if that does not come in time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.1, limit_s))
        self.kill()
        return None

    def kill(self) -> None:
        """Kill it and what it started in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)


def start_ranks(
    context: Context,
    folder: Path,
    world: int,
    command: Sequence[object],
    *,
    job: int,
    environment: Mapping[str, str] | None = None,
) -> list[Rank]:
    """Start `world` ranks of one job, each on a "node" of its own: n0, n1, ...

    `{rank}` in a value of `environment` is the rank's number.
    """
    ranks = []
    for number in range(world):
        own = {
            key: value.replace("{rank}", str(number)) for key, value in (environment or {}).items()
        }
        slurm = {
            "SLURM_JOB_ID": str(job),
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(number),
            "SLURM_NTASKS": str(world),
            "SLURMD_NODENAME": f"n{number}",
        }
        everything = {**context.environment, **QUIET, **slurm, **own}
        ranks.append(Rank([sys.executable, *command], f"rank{number}", folder, everything))
    return ranks


def kill_all(ranks: Sequence[Rank]) -> None:
    """Kill what is left of them."""
    for rank in ranks:
        rank.kill()


def read_marks(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return what one rank of program.py has told so far, without a line that is incomplete."""
    try:
        text = (folder / f"marks-{rank}.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
