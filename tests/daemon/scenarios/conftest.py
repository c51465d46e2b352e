"""What the scenarios share: a sandbox without a cluster, and hpctl run in it as a program."""

import json
import subprocess
import sys

import pytest
import yaml

from tests.live import EAGER

EVERY = ("--every", "0.3s")


class World:
    """An account without a cluster, a head node that waits for one, and a file that names it."""

    def __init__(self, sandbox, directory):
        self.sandbox = sandbox
        self.file = directory / "cluster.yaml"
        self.write()

    def write(self, workers: int = 2, **more) -> None:
        """cluster.yaml: a controller and `workers` of one group, `more` being keys of the group."""
        spec = yaml.safe_load(self.sandbox.cluster_file.read_text())
        (group,) = (g for g in spec["instance_groups"] if g["role"] == "compute")
        group |= {"name": "workers", "partition": "workers", "count": workers, **more}
        self.file.write_text(yaml.safe_dump(spec, sort_keys=False))

    def hpctl(self, *arguments: str, code: int = 0, timeout: float = 60.0) -> str:
        """What `hpctl WORDS` prints, both streams as a terminal shows them."""
        done = subprocess.run(
            [sys.executable, "-m", "hpctl", *arguments], env=self.env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{done.returncode} of {arguments}:\n{done.stdout}"
        return done.stdout

    def seen(self, *arguments: str):
        """The JSON that `hpctl WORDS --json` prints."""
        return json.loads(self.hpctl(*arguments, "--json"))

    def create(self, *arguments: str, **how) -> str:
        return self.hpctl("cluster", "create", str(self.file), "--yes", *EVERY, *arguments, **how)

    @property
    def env(self) -> dict[str, str]:
        return {**self.sandbox.env, "COLUMNS": "120", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}

    def slurm(self) -> dict[str, str]:
        """The workers that Slurm knows, and their states."""
        lines = self.sandbox.run(["sinfo", "-h", "-N", "-p", "workers", "-o", "%N %T"]).stdout
        return dict(line.split() for line in lines.splitlines())

    def nodes(self):
        """The nodes of the group, as `hpctl cluster instances` has them."""
        return list(self.seen("cluster", "nodes", "--group", "workers")["nodes"])

    def submit(self, body: str, *options: str) -> int:
        out = self.file.parent / "job-%j.log"
        script = self.file.parent / "job.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        arguments = ["sbatch", "--parsable", f"--output={out}", *options, str(script)]
        return int(self.sandbox.run(arguments, cwd=self.file.parent).stdout)

    def job(self, number: int) -> str:
        """A job's state, "" once Slurm has forgotten it, and its nodes."""
        return self.sandbox.run(
            ["squeue", "-h", "-t", "all", "-j", str(number), "-o", "%T %N"]
        ).stdout.strip()

    def runs(self, number: int) -> bool:
        return self.job(number).startswith("RUNNING")

    def where(self, number: int) -> list[str]:
        """The nodes that a job has, or had."""
        return self.sandbox.run(
            ["squeue", "-h", "-t", "all", "-j", str(number), "-o", "%N"]
        ).stdout.split()


@pytest.fixture
def node_names() -> str:
    """How Slurm's nodes are named: a test may ask for `group`."""
    return "ip"


@pytest.fixture
def world(sandbox_factory, tmp_path, node_names):
    """An empty sandbox of four places, with nothing of hpctl's running in it."""
    empty = {"empty": True, "nodes": 4, "moto": True, "agents": False, "slurm_conf": EAGER}
    return World(sandbox_factory(node_names=node_names, **empty), tmp_path)
