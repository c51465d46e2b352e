"""`hpctl run` asks only those processes to save that have a handler: any other would end by it."""

import sys
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PROGRAM = """import os, signal, sys, threading
where = f"{sys.argv[1]}/{os.environ['SLURM_PROCID']}"
if sys.argv[2] == "saves":
    signal.signal(signal.SIGUSR1, lambda *_: open(f"{where}.saved", "w").close())
open(f"{where}.runs", "a").write("runs\\n")
while not os.path.exists(f"{sys.argv[1]}/go"):
    threading.Event().wait(0.2)
"""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as found:
        yield found


def start(live: Chaos, how: str) -> tuple[int, Path]:
    """A job whose ranks run beneath a shell, which handles no signal. Wait for both ranks."""
    base = Path(live.sandbox.state_dir) / how
    base.mkdir()
    (base / "train.py").write_text(PROGRAM)
    script, program = base / "job.sh", f"{sys.executable} {base}/train.py {base} {how}; exit $?"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\n"
        f"exec {sys.executable} -m hpctl run -- sh -c '{program}'\n"
    )
    job = live.sbatch(script)
    for rank in range(2):
        until((base / f"{rank}.runs").exists, 60, f"rank {rank} runs")
    return job, base


def ask(live: Chaos, job: int) -> None:
    """What Slurm sends before the time limit, by --signal=B:USR1@120."""
    live.sandbox.run(["scancel", "--batch", "--signal=USR1", str(job)])


def end(live: Chaos, job: int, base: Path) -> None:
    (base / "go").touch()
    until(lambda: live.job(job).state == "COMPLETED", 60, "its only run has completed")
    for rank in range(2):
        assert (base / f"{rank}.runs").read_text() == "runs\n"


def test_ranks_without_a_handler_run_on(live):
    job, base = start(live, "forgets")
    ask(live, job)
    said = "no process has a handler for SIGUSR1: none is asked to save"
    until(lambda: said in (base / "log").read_text(), 60, "the log says that nobody is asked")
    end(live, job, base)


def test_ranks_with_a_handler_save_and_run_on(live):
    job, base = start(live, "saves")
    ask(live, job)
    for rank in range(2):
        until((base / f"{rank}.saved").exists, 60, f"rank {rank} saves")
    said = "2 processes have a handler for SIGUSR1 and are asked to save"
    until(lambda: said in (base / "log").read_text(), 60, "the log says who is asked")
    end(live, job, base)
