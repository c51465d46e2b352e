"""What a batch script of somebody else finds around it, and what happens to its job."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctl.vocabulary.identity import NodeName
from tests.daemon.chaos import Chaos, cluster
from tests.jobs.last_lines import load_plugin
from tests.live import until
from tests.process import room
from tests.sandbox.test_training import ROOT

PROGRAM = Path(__file__).with_name("program.py")
TOOLS = ("nvidia-smi", "dcgmi", "ibdev2netdev", "curl", "git", "enroot", "pip", "clear", "fi_info")
PROGRAMS = (
    *("torchrun", "accelerate", "composer", "deepspeed", "trl", "ray", "vllm", "nsys", "numactl"),
    *("python", "python3"),
)
PARTITIONS = ("train", "xyz-cluster", "hopper-prod", "gpu")
SHELL = """\
module() { :; }
conda() { :; }
source() { if [ -r "$1" ]; then builtin source "$@"; else :; fi; }
PATH="{programs}:$PATH"
"""
"""What the shells of a cluster know before a script begins, by BASH_ENV, login shells too."""
SRUN = """\
#!/usr/bin/python3 -SE
import os
import sys

VALUES = (
    "-n", "-N", "-w", "-c", "-t", "-p", "-o", "-e", "-J", "-A",
    "--jobid", "--nodes", "--ntasks", "--nodelist", "--export", "--output", "--error", "--gres",
)
PYXIS_FLAGS = ("container-mount-home", "container-writable")
words, kept = sys.argv[1:], []
while words:
    word = words.pop(0)
    name, equals, _ = word.partition("=")
    pyxis = ("image", "mounts", "workdir", "name")
    if name in ("--environment", *(f"--container-{option}" for option in pyxis)):
        words = words if equals else words[1:]
    elif name in ("--auto-resume", "--mpi") or name.endswith(PYXIS_FLAGS):
        pass
    elif word.startswith("-"):
        kept.append(word)
        if word in VALUES:
            kept.append(words.pop(0))
        if name == "--export":
            kept[-1] += ",PATH"  # an image brings its own
    else:
        kept += [word, *words]
        break
os.execv("{srun}", ["srun", *kept])
"""
"""Plays the options of pyxis and HyperPod's, which Slurm alone does not know."""


@dataclass(frozen=True)
class Part:
    """One script and what its owner gives it.

    `ranks` are the programs that one run starts. `ends`: a dead rank ends the script with an error;
    where it does not, the submission says so.
    """

    script: Path
    arguments: Sequence[str] = ()
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2
    ends: bool = True


@dataclass
class OwnersView:
    """What a script's owner has seen."""

    job: int
    said: str
    node_lost: str = ""
    rank_killed: str = ""


class Stage:
    """A cluster whose programs are stubs."""

    def __init__(self, live: Chaos) -> None:
        self.live = live
        self.base = Path(live.sandbox.state_dir) / "strangers"
        self.records = self.base / "records"
        self.records.mkdir(parents=True)
        programs = self.base / "bin"
        programs.mkdir()
        for name in (*TOOLS, *PROGRAMS):
            self._write(programs / name, f'#!/bin/sh\nexec {self._stub} {name} "$@"\n')
        found = live.sandbox.run(["sh", "-c", "command -v srun"]).stdout.strip()
        self._write(programs / "srun", SRUN.replace("{srun}", found))
        (self.base / "shell").write_text(SHELL.replace("{programs}", str(programs)))
        self.environment = {
            "PATH": f"{programs}:{live.sandbox.env['PATH']}",
            "BASH_ENV": str(self.base / "shell"),
            "STRANGERS": str(self.records),
            "PYTHONPATH": ROOT,
            "DATA_HOME_DIR": str(self.base),
        }

    @property
    def _stub(self) -> str:
        return shlex.join([os.path.realpath(sys.executable), "-SE", str(PROGRAM)])

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def submit(self, part: Part) -> OwnersView:
        """Submit the script as its owner does, who makes the directories that hpctl misses."""
        home = self.base / part.script.stem
        home.mkdir(exist_ok=True)
        for name, text in part.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(
                path, text.replace("{stub}", self._stub).replace("{records}", str(self.records))
            )
        words = [*part.options, str(part.script), *part.arguments]
        looked = self._sbatch(["--dry-run", *words], part, home)
        for match in re.finditer(r"the directory (\S+) does not exist", looked.stderr):
            Path(match[1]).mkdir(parents=True, exist_ok=True)
        done = self._sbatch(["--parsable", *words], part, home)
        assert done.returncode == 0, done.stderr
        return OwnersView(int(done.stdout.split()[-1].partition(";")[0]), looked.stderr)

    def submit_by(self, part: Part) -> OwnersView:
        """Run a script that calls sbatch, as docs/jobs.md says."""
        home = self.base / part.script.stem
        home.mkdir(exist_ok=True)
        function = f'sbatch() {{ {sys.executable} -m hpctl sbatch "$@"; }}; export -f sbatch'
        command = ["bash", "-c", f"{function}; bash {part.script}"]
        done = self.live.sandbox.run(command, env=self.environment, cwd=home)
        return OwnersView(int(done.stdout.split()[-1].partition(";")[0]), done.stderr)

    def _sbatch(self, words: Sequence[str], part: Part, home: Path) -> Any:
        command = [sys.executable, "-m", "hpctl", "sbatch", *words]
        environment = {**self.environment, **part.environment}
        return self.live.sandbox.run(command, env=environment, cwd=home, check=False)

    def started(self, job: int, run: int) -> list[dict[str, Any]]:
        """Return the programs that a run of a job has started, the last rank last."""
        paths = self.records.glob(f"{job}-{run}-*.json")
        return sorted((json.loads(path.read_text()) for path in paths), key=_order)

    def wait_for_run(self, job: int, run: int, part: Part) -> list[dict[str, Any]]:
        until(
            lambda: len(self.started(job, run)) >= part.ranks,
            90,
            f"run {run} of {part.script.name} starts {part.ranks} ranks",
        )
        return self.started(job, run)

    def lose_node(self, played: OwnersView, part: Part) -> None:
        """Lose the last node of run 0; the job runs again without it."""
        first = self.wait_for_run(played.job, 0, part)
        lost = first[-1]["node"]
        until(lambda: self.live.daemon_sees(played.job), 60, "the daemon has read of the job")
        self.live.xid(NodeName(lost))
        again = self.wait_for_run(played.job, 1, part)
        assert lost not in {each["node"] for each in again}, "there were others"
        assert lost in self.live.explained(played.job)
        played.node_lost = "restarted"

    def kill_rank(self, played: OwnersView, part: Part, run: int = 1) -> None:
        """Kill the last rank of a run; the job runs again, and says which rank it was."""
        until(lambda: self.live.daemon_sees(played.job), 60, "the daemon has read of the job")
        victim = self.wait_for_run(played.job, run, part)[-1]
        os.kill(victim["pid"], signal.SIGKILL)
        (self.records / f"{played.job}-{run}-left").touch()
        if not part.ends:
            played.rank_killed = "not restarted, as the submission says"
            return
        self.wait_for_run(played.job, run + 1, part)
        played.rank_killed = "restarted"
        told = self.live.explained(played.job)
        if match := re.search(r"rank \d+ on \S+: \w[^.|;]{0,40}", told):
            played.rank_killed += f": {match[0]}"

    def clear(self) -> None:
        """End what is left of an earlier script, and wait until every node is there again."""
        for job in self.live.scheduler.view().jobs.values():
            if job.running or job.state == "PENDING":
                self.live.sandbox.run(["scancel", str(job.id)], check=False)
        until(self.live.all_idle, 90, "every node is idle")

    def finish(self, played: OwnersView) -> None:
        """Let the programs end well, and the job with them."""
        (self.records / f"{played.job}-finish").touch()
        until(lambda: self.live.job(played.job).state == "COMPLETED", 60, "the job completes")


def _order(record: dict[str, Any]) -> tuple[bool, bool, str, int]:
    """The servers and helpers beside a training first, and its last rank last."""
    trains = record["program"] not in ("trl", "ray")
    return (trains, record["step"] != "batch", str(record["step"]), int(record["rank"]))


@contextmanager
def stage(nodes: int = 6) -> Iterator[Stage]:
    """A cluster with partitions by many names, on nodes with 192 CPUs and 8 GPUs."""
    partitions = "".join(f"PartitionName={name} Nodes=ALL State=UP\n" for name in PARTITIONS)
    with room() as base:
        conf = partitions + load_plugin(base)
        with cluster(nodes=nodes, cpus=192, slurm_conf=conf) as live:
            yield Stage(live)
