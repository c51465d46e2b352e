"""Another user of a job's nodes, who has nearly all ports before the job begins: a real Slurm.

Fast saves and launchers find the ports that are left. Most of their connections pass through the
stranger, who relays them.
"""

import json
import os
import re
import shutil
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.adversary.bed import begin
from tests.checkpoints.checkpoint_files import dcp_metadata, pickle_of
from tests.live import EAGER, FAST, Live, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.integration,
    pytest.mark.adversary,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user"),
]

ROOT = Path(__file__).resolve().parents[2]
FIRST, LAST = 15_000, 30_016
"""The ports on which the parts of a job listen (`hpctl.wire.job_ports`)."""
WEIGHTS = "the weights of another user"
WORDS = (WEIGHTS, '"do"', '"hello"', '"start"', '"welcome"', "distcp")
RANK = """
import os, shutil, sys, time
from pathlib import Path
base, rank = Path(sys.argv[1]), os.environ["SLURM_PROCID"]
step = Path(os.environ["HPCTL_FAST_DIR"], "step-1")
step.mkdir(parents=True, exist_ok=True)
shutil.copy(base / f"__{rank}_0.distcp", step)
if rank == "0":
    time.sleep(1)
    shutil.copy(base / "metadata", step / ".metadata")
while not (base / "go").exists():
    time.sleep(0.2)
"""
MEMBER = """
import os
print("member", os.environ["RANK"], os.environ["MASTER_ADDR"], flush=True)
"""


def write_step(base: Path) -> dict[str, bytes]:
    """Write the files of a step of two ranks; return them by their names in a checkpoint."""
    made: dict[str, bytes] = {}
    for rank in range(2):
        out = BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", pickle_of({"x": 1}))
            archive.writestr("archive/data/0", WEIGHTS.encode() * 100_000)
            archive.writestr("archive/version", b"3\n")
        made[f"__{rank}_0.distcp"] = out.getvalue()
        (base / f"__{rank}_0.distcp").write_bytes(out.getvalue())
    made[".metadata"] = dcp_metadata([(name, 0, len(raw)) for name, raw in made.items()])
    (base / "metadata").write_bytes(made[".metadata"])
    return made


class SeizedJob:
    """A job of two nodes, beside the strangers of both."""

    def __init__(self, sandbox, base: Path) -> None:
        self.sandbox, self.live, self.base = sandbox, Live(sandbox), base
        self.log, self.saves = base / "log", base / "run"
        self.saves.mkdir()
        (base / "rank.py").write_text(RANK)
        (base / "member.py").write_text(MEMBER)
        launchers = (
            "HPCTL_ELASTIC_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"
            f" srun --ntasks-per-node=1 {sys.executable} -m hpctl.jobs.elastic"
            f" --nproc-per-node 1 -- {base}/member.py\n"
        )
        (base / "job.sh").write_text(
            "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
            f"#HPCTL --checkpoint-dir {self.saves}\n"
            f"#HPCTL --fast-dir local:{sandbox.spec.layout.disk}/run --fast-flush 3600s\n"
            f"export PYTHONPATH={ROOT}\n"
            f"srun {sys.executable} {base}/rank.py {base} || exit\n"
            f"export HPCTL_PYTHON={sys.executable}\n{launchers}{launchers}"
        )

    def submit(self) -> None:
        self.id = self.live.sbatch(self.base / "job.sh", f"--output={self.log}")

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def is_copied(self) -> bool:
        """Whether `hpctl checkpoint ls` names a step that both nodes hold."""
        words = ("checkpoint", "ls", "--job", str(self.id), "--json")
        shown = self.sandbox.run([sys.executable, "-m", "hpctl", *words], check=False)
        rows = json.loads(shown.stdout or "{}").get("fast", [])
        return any(row["copies"] == 2 and len(row["nodes"]) == 2 for row in rows)

    def has_ended(self) -> bool:
        """Whether the job has ended well. Raises AssertionError where it did not end so."""
        shown = self.sandbox.scontrol("-o", "show", "job", str(self.id))
        assert not re.search("JobState=(FAILED|CANCELLED|TIMEOUT)", shown), self.text()
        return "JobState=COMPLETED" in shown


def test_a_stranger_who_relays_reads_and_changes_nothing(sandbox_factory, shared):
    slurm = f"{EAGER}KillWait=30\n"
    sandbox = sandbox_factory(
        nodes=2, mode="own", daemon=True, config=FAST, slurm_conf=slurm, disks=True, netns=True
    )
    job, made, over = SeizedJob(sandbox, shared), write_step(shared), shared / "over"
    strangers = [
        begin(
            "seize_ports", network_of=node["slurmd_pid"], first=FIRST, last=LAST, seconds=250.0,
            words=WORDS, until=str(over),
        )
        for node in sandbox.status()["nodes"]
    ]  # fmt: skip
    for each in strangers:
        each.ready()
    job.submit()
    until(job.is_copied, 120, f"both nodes hold the step: {job.text()}")
    (shared / "go").touch()
    until(job.has_ended, 90, f"the job ends: {job.text()}")
    until((job.saves / "step-1").is_dir, 30, "the step is flushed at the end")
    saved = {path.name: path.read_bytes() for path in (job.saves / "step-1").iterdir()}
    assert {name: saved.get(name) for name in made} == made
    members = [line.split() for line in job.text().splitlines() if line.startswith("member ")]
    assert sorted(words[1] for words in members) == ["0", "0", "1", "1"], job.text()
    assert len({words[2] for words in members}) == 1
    over.touch()
    results = [each.result() for each in strangers]
    assert min(result["ports"] for result in results) > 10_000
    assert sum(result["relayed"] for result in results) > 0
    assert [result["words"] for result in results] == [[], []]
    shutil.rmtree(job.saves)
