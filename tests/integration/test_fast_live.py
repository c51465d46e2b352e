"""Saves on the nodes' own disks survive a node that is lost with its disk: a real Slurm and DCP."""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.live import EAGER, FAST, Live, until
from tests.integration.test_training import ROOT

pytestmark = pytest.mark.slurm


@pytest.fixture
def shared():
    path = Path(tempfile.mkdtemp(prefix="hpctl-fast-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def left_on_nodes(sandbox) -> list[Path]:
    return [path for disk in sandbox.spec.layout.state.rglob("disk-i-*") for path in disk.iterdir()]


def test_a_job_resumes_from_its_last_fast_saves(sandbox_factory, shared):
    pytest.importorskip("torch")
    sandbox = sandbox_factory(
        nodes=4, mode="own", daemon=True, config=FAST, slurm_conf=EAGER, disks=True
    )
    live = Live(sandbox)
    script, log, saves = shared / "job.sh", shared / "log", shared / "run"
    saves.mkdir()
    rank = Path(__file__).with_name("fast_ranks.py")
    script.write_text(
        "#!/bin/sh\n#SBATCH --nodes=3 --ntasks-per-node=1 --gres=gpu:8\n"
        f"#HPCTL --checkpoint-dir {saves}\n"
        f"#HPCTL --fast-dir local:{sandbox.spec.layout.disk}/run --fast-flush 3s\n"
        f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1\nexec srun {sys.executable} {rank} 24\n"
    )
    given = [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "-o", str(log), "--chdir"]
    done = sandbox.run([*given, str(shared), str(script)], env={"PYTHONPATH": ROOT}, cwd=shared)
    job = int(done.stdout)

    def text() -> str:
        return log.read_text() if log.exists() else ""

    until(lambda: "saved 6" in text(), 60, "six saves")
    assert left_on_nodes(sandbox)
    listed = [sys.executable, "-m", "hpctl", "checkpoint", "ls", "--job", str(job), "--json"]
    rows = json.loads(sandbox.run(listed, check=False).stdout)["fast"]
    assert any(row["copies"] == 2 and len(row["nodes"]) == 3 for row in rows), rows
    victim = str(sorted(live.job(job).nodes)[-1])
    sandbox.inject(victim, "xid", code=79)
    until(lambda: "resumed from" in text(), 60, "it runs again")
    before = max(int(n) for n in re.findall(r"saved (\d+)", text().split("resumed from")[0]))
    (step,) = set(re.findall(r"resumed from \S*/step-(\d+)", text()))
    assert before - 1 <= int(step) <= before, text()
    assert str(sandbox.spec.layout.disk) in text().partition("resumed from ")[2].splitlines()[0]
    assert re.search(rf"step {step} comes from .*copy of {victim}", text()), text()
    until(lambda: live.job(job).state == "COMPLETED", 60, "it ends")
    assert text().count(f"done {64.0 * 24}") == 3
    until((saves / "step-24").is_dir, 30, "the last one is flushed at the end")
    try:
        until(lambda: not left_on_nodes(sandbox), 30, "nothing stays on the nodes")
    except AssertionError:
        raise AssertionError(left_on_nodes(sandbox), text()) from None
