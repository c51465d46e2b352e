"""A real Slurm on this machine, and training jobs on it that hpctl supervises."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.gpu.boxes import wait_for
from tests.gpu.training.ranks import PROGRAM, QUIET, read_marks

if TYPE_CHECKING:
    from hpctl.sandbox.api import Sandbox
    from tests.gpu.context import Context

T = TypeVar("T")
ROOMY = {"budgets": {"open_min": 20, "partition_min": 20, "per_hour": 100, "correlated_min": 20}}
"""Several nodes of one small cluster fail in two minutes, of which two with the same Xid."""
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
LOOK_S = 2.0
"""Seconds between two questions to slurmctld whether a job has ended."""
STARTS_S = 60.0
"""Seconds from sbatch to the first step at most: imports and CUDA contexts, several at once."""
ENDS_S = 70.0
"""Seconds from a fault to the end of the run at most: the restart, and the steps that are left."""


@dataclass
class Job:
    """One submitted job: its folder has the script, the log, the marks and the checkpoints."""

    bed: Bed
    id: int
    folder: Path
    submitted: float

    @property
    def checkpoints(self) -> Path:
        """Return where it saves."""
        return self.folder / "save"

    def marks(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return what a rank has told so far."""
        return read_marks(self.folder, rank)

    def log(self) -> str:
        """Return the job's log."""
        try:
            return (self.folder / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def find_end(self) -> str:
        """Return how the job has ended or that it is held, "" while it runs or may run again."""
        from tests.gpu.boxes import run_in

        shown = run_in(self.bed.sandbox, "scontrol", "--oneliner", "show", "job", str(self.id)).out
        found = re.search(r"JobState=(\S+) Reason=(\S+)", shown)
        if not found:
            return ""
        state, reason = found.groups()
        is_held = state == "PENDING" and "held" in reason.lower()
        return "" if state in LIVE and not is_held else f"{state} ({reason})"

    def treated(self) -> list[dict[str, Any]]:
        """Return the troubles that hpctl run has treated, from its history."""
        rows = []
        for place in sorted(self.folder.glob("save/.hpctl/run-*.jsonl")):
            for line in place.read_text(errors="replace").splitlines():
                with suppress(ValueError):
                    rows.append(json.loads(line))
        return [row for row in rows if row.get("type") == "treated"]

    def decisions(self) -> list[str]:
        """Return the lines in which hpctl run says what it has seen and does."""
        return [line[:300] for line in self.log().splitlines() if re.search(r"hpctl: .* -> ", line)]

    def wait(self, find: Callable[[], T], what: str, limit_s: float) -> T:
        """Return what `find` finds.

        Raises TimeoutError with the end of the log if it finds nothing in time, or if the job has
        ended before.
        """
        end = time.monotonic() + max(1.0, min(limit_s, self.bed.context.left_s() - 8.0))
        why = ""
        while True:
            found = wait_for(find, LOOK_S, 0.05)
            if found:
                return found
            if why or time.monotonic() > end:
                why = why or f"within {limit_s:.0f} s"
                raise TimeoutError(f"no {what}: {why}; log: {self.log()[-900:]}")
            # Once more after this: what is looked for may have come just before the end.
            why = self.find_end()

    def wait_for_step(self, step: int, rank: int = 0, limit_s: float = STARTS_S) -> None:
        """Wait until a rank has done a step."""

        def is_done() -> bool:
            return any(m["what"] == "step" and m["step"] >= step for m in self.marks(rank))

        self.wait(is_done, f"step {step}", limit_s)

    def wait_for_end(self, limit_s: float = ENDS_S) -> None:
        """Wait until rank 0 has done all steps."""
        self.wait(
            lambda: any(mark["what"] == "end" for mark in self.marks()), "end of the job", limit_s
        )


@dataclass
class Bed:
    """The sandbox of a part, and who runs in it. `has_disks`: each node has a disk of its own."""

    context: Context
    sandbox: Sandbox
    has_disks: bool

    def hpctl(self, *words: str) -> str:
        """Return what an `hpctl` command on the head node prints, both streams."""
        from tests.gpu.boxes import hpctl_in

        ran = hpctl_in(self.sandbox, *words)
        return ran.out + ran.err

    def node_line(self, node: str) -> str:
        """Return Slurm's state and reason of a node."""
        shown = self.sandbox.run(["sinfo", "-h", "-n", node, "-o", "%T %E"], check=False).stdout
        return shown.strip().splitlines()[0] if shown.strip() else ""

    def submit(
        self,
        name: str,
        program: Sequence[object],
        *,
        ranks: int,
        run_words: Sequence[str] = (),
        options: Sequence[str] = (),
        policy: str = "",
    ) -> Job:
        """Submit a job whose ranks run a Python program under `hpctl run`.

        `options` are those of hpctl sbatch beside the checkpoint directory, `run_words` those of
        hpctl run. With --torch among them, the launcher starts the program itself.
        """
        folder = self.context.scratch / name
        folder.mkdir()
        words = list(run_words)
        if policy:
            (folder / "policy.yaml").write_text(policy)
            words += ["--policy", str(folder / "policy.yaml")]
        command = [str(word) for word in program]
        if "--torch" not in words:
            command = [sys.executable, *command]
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in QUIET.items())
        run = shlex.join([sys.executable, "-m", "hpctl", "run", *words, "--", *command])
        more = "".join(f"#HPCTL {option}\n" for option in options)
        script = folder / "job.sh"
        script.write_text(
            f"#!/bin/sh\n#SBATCH --nodes={ranks} --ntasks-per-node=1 --exclusive --gres=gpu:1\n"
            f"#SBATCH --time=00:20:00\n#HPCTL --checkpoint-dir {folder}/save\n{more}{exports}"
            f"export PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])}\nexec {run}\n"
        )
        submitted = time.time()
        done = self.sandbox.run(
            [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "-o", str(folder / "log"),
             "--chdir", str(folder), str(script)],
            timeout=30.0,
        )  # fmt: skip
        number = int(done.stdout.strip().split(";")[0])
        return Job(self, number, folder, submitted)

    def submit_training(
        self, name: str, *words: object, ranks: int, device: str, **how: Any
    ) -> Job:
        """Submit `program.py` with these words of its own."""
        folder = self.context.scratch / name
        program = [PROGRAM, "--marks", folder, "--device", device, *words]
        return self.submit(name, program, ranks=ranks, **how)


@contextmanager
def open_bed(context: Context, nodes: int) -> Iterator[Bed]:
    """Start a sandbox whose daemon drains, replaces and requeues; it is down afterwards."""
    from tests.gpu.boxes import sandbox

    has_disks = may_mount(context)
    settings = {"nodes": nodes, "disks": has_disks, "config": ROOMY}
    with sandbox(context, "training", **settings) as box:
        yield Bed(context, box, has_disks and prepare_disks(box))


def prepare_disks(box: Sandbox) -> bool:
    """Give each node a directory on its own disk, and one in memory that no other node sees.

    Returns whether that went well.
    """
    from tests.gpu.boxes import run_in

    disk = box.spec.layout.disk
    command = f"mkdir {disk}/disk {disk}/ram && mount -t tmpfs tmpfs {disk}/ram"
    nodes = f"--nodes={len(box.nodes)}"
    return run_in(box, "srun", nodes, "--ntasks-per-node=1", "sh", "-c", command).code == 0


def may_mount(context: Context) -> bool:
    """Return whether a process may have a disk of its own at a path that others see too."""
    if os.geteuid() != 0:
        return False
    trial = context.scratch / "mount"
    trial.mkdir()
    probe = 'mount --bind "$1" "$1" && mount -t tmpfs tmpfs "$1"'
    ran = context.run(["unshare", "--mount", "sh", "-c", probe, "sh", trial], 5.0)
    return ran.code == 0
