"""Counts in how many failures srun loses the last lines of the rank that failed.

`python -m tests.jobs.last_lines [--runs 100] [--plugin] [--lives S]`: one job runs a step of two
tasks RUNS times, as `hpctl sbatch` runs it: rank 1 raises an exception, and SLURM_KILL_BAD_EXIT
ends the other. `--plugin` loads hpctl's SPANK plugin, built for the Slurm that runs. Prints the
number of logs without the exception, and the mean duration of a step.
"""

import argparse
import shutil
import subprocess
import time
from pathlib import Path

from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.packages import find_sandbox_programs
from tests.process import room

BUILD = Path(__file__).resolve().parents[2] / "slurm_plugins/build_spank.sh"
HEADERS = Path(shutil.which("sbatch") or "/usr/bin/sbatch").resolve().parents[1] / "include"
"""Of the Slurm that runs: a plugin is refused by every other release."""
PROGRAM = """\
import os, sys, time
time.sleep(float(sys.argv[1]))
if os.environ["SLURM_PROCID"] == "1":
    raise ValueError("bad batch")
time.sleep(600)
"""
SCRIPT = """\
#!/bin/sh
#SBATCH -N2 --ntasks-per-node=1
export SLURM_KILL_BAD_EXIT=1
run=0
while [ $run -lt $1 ]; do
    run=$((run + 1))
    srun -o srun-$run.log -e srun-$run.log python3 program.py $2
done
touch ended
"""


def load_plugin(base: Path) -> str:
    """Return slurm.conf's line that loads the plugin, built below `base`; "" where Slurm is 24.05
    or later and sends the lines by itself."""
    if find_sandbox_programs().version >= (24, 5):
        return ""
    plugin = base / "hpctl_spank.so"
    subprocess.run(
        [str(BUILD), str(plugin), str(HEADERS)], check=True, timeout=60, capture_output=True
    )
    (base / "plugstack.conf").write_text(f"optional {plugin}\n")
    return f"PlugStackConfig={base}/plugstack.conf\n"


def count_lost(slurm: Sandbox, base: Path, runs: int, lives_s: float = 0.0) -> tuple[int, float]:
    """Return how many of `runs` failures lost the exception, and the seconds of one.

    Raises TimeoutError when the job does not end.
    """
    (base / "program.py").write_text(PROGRAM)
    script = base / "lines.sh"
    script.write_text(SCRIPT)
    began = time.monotonic()
    command = ["sbatch", f"--chdir={base}", str(script), str(runs), str(lives_s)]
    slurm.run(command)
    while not (base / "ended").exists():
        if time.monotonic() - began > 60 + runs * (3 + lives_s):
            raise TimeoutError(f"the job of {runs} steps does not end")
        time.sleep(0.1)
    lasted_s = time.monotonic() - began
    logs = [(base / f"srun-{run}.log").read_text() for run in range(1, runs + 1)]
    lost = sum("ValueError: bad batch" not in log for log in logs)
    return lost, lasted_s / runs


def main() -> None:
    """Count on a Slurm of our own, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--plugin", action="store_true")
    parser.add_argument("--lives", type=float, default=0.0, metavar="S")
    given = parser.parse_args()
    with room() as base:
        conf = load_plugin(base) if given.plugin else ""
        settings = {"nodes": 2, "agents": False, "emulator": False, "slurm_conf": conf}
        with Sandbox("lines", state_dir=base / "s", **settings) as slurm:
            lost, each_s = count_lost(slurm, base, given.runs, given.lives)
            release = slurm.run(["sinfo", "--version"]).stdout.strip()
    print(f"{release}: {lost} of {given.runs} lost their last lines; {each_s * 1000:.0f} ms each")


if __name__ == "__main__":
    main()
