"""The jobs of a soak: real training, submitted as a researcher would, and what became of them."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpctl.sandbox.training.model import read_attempts
from hpctl.toolkit.compat import parse_iso_time
from tests.daemon.chaos import Chaos
from tests.sandbox.test_training import ROOT, Run

STEP_S = 0.15
TRAIN = f"{sys.executable} -m hpctl.sandbox.training"


class Shape(Struct, frozen=True):
    """A way to run: how many ranks, how it is submitted, what its script does, and after how many
    steps it saves. `@disk@` in an option is a directory of the node's own."""

    name: str
    ranks: int
    body: str
    options: tuple[str, ...] = ()
    every: int = 10


SHAPES = (
    Shape("requeued", 2, "srun @train@"),
    Shape("supervised", 2, f"{sys.executable} -m hpctl run -- @train@", ("--spares=1",)),
    Shape("alone", 1, "srun @train@"),
)
SHARED, FAST = 400, 10
BESIDE = (
    Shape("shared", 2, "srun @train@", every=SHARED),
    Shape(
        "fast",
        2,
        "srun @train@",
        ("--fast-dir=local:@disk@/run", f"--fast-flush={SHARED * STEP_S:.0f}s"),
        every=FAST,
    ),
)
"""One job saves to the shared directory every minute, the other to its nodes' disks forty times as
often: what a fault costs each."""


class Job(Struct):
    """One submitted job. Times are the wall clock's, in seconds."""

    shape: Shape
    number: int
    directory: Path
    steps: int
    submitted: float
    ended: float = 0.0
    state: str = ""
    final: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0

    @property
    def lost(self) -> list[int]:
        """Steps that each attempt but the first trained again."""
        return self.final.get("steps_lost", [])

    @property
    def useful_s(self) -> float:
        """What its steps take undisturbed."""
        return self.steps * STEP_S

    def look(self, live: Chaos) -> bool:
        """Whether it has ended; then `state` and `final` tell how."""
        shown = live.sandbox.run(
            ["scontrol", "--oneliner", "show", "job", str(self.number)], check=False
        )
        fields = dict(w.partition("=")[::2] for w in shown.stdout.split() if "=" in w)
        state = fields.get("JobState", "")
        done = self.directory / "final.json"
        if state in ("", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"):
            return False
        # FAILED and the like end nothing yet: hpctl requeues the job within moments.
        if state != "COMPLETED" or not done.exists():
            return False
        self.ended, self.state = time.time(), state
        self.final = json.loads(done.read_text())
        self.attempts = sum(line["event"] == "start" for line in read_attempts(self.directory))
        return True


def submit(live: Chaos, base: Path, shape: Shape, steps: int, turn: int) -> Job:
    """Hand a job to Slurm through `hpctl sbatch`."""
    directory = base / f"{shape.name}-{turn}"
    train = f"{TRAIN} --steps {steps} --step-s {STEP_S} --checkpoint-every {shape.every}"
    disk = str(live.sandbox.spec.layout.disk)
    script = base / f"{directory.name}.sh"
    script.write_text(f"#!/bin/sh\nset -e\n{shape.body.replace('@train@', train)}\n")
    arguments = [
        sys.executable, "-m", "hpctl", "sbatch", "--parsable", f"--checkpoint-dir={directory}",
        f"--nodes={shape.ranks}", "--ntasks-per-node=1", "--gres=gpu:8",
        f"--output={base}/%x-%j.log", *(o.replace("@disk@", disk) for o in shape.options),
        str(script),
    ]  # fmt: skip
    env = {"PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}
    done = live.sandbox.run(arguments, env=env)
    return Job(shape, int(done.stdout.strip()), directory, steps, time.time())


def ran_twice(directory: Path) -> list[str]:
    """Attempts that did a step after a later one had done its first: a frozen node that thaws has
    processes for a moment, but they can do no step.
    """
    first = [line for line in read_attempts(directory) if line["event"] == "first_step"]
    found = []
    for n, newer in enumerate(first):
        for older in first[:n]:
            last = (directory / f"progress-{older['attempt']}.txt").stat().st_mtime
            if last > parse_iso_time(newer["at"]).timestamp():
                found.append(f"{older['attempt']} went on beside {newer['attempt']} in {directory}")
    return found


def undisturbed(base: Path, ranks: int, steps: int) -> str:
    """The digest of the weights that a run which nobody disturbs ends with."""
    directory = base / f"calm-{ranks}"
    calm = Run(directory, ranks, "--steps", str(steps))
    try:
        codes, output = calm.wait(120)
    finally:
        calm.kill()
    assert codes == [0] * ranks, output
    return str(json.loads((directory / "final.json").read_text())["sha256"])
