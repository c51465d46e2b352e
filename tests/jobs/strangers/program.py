"""A stub for every program that a batch script starts: `program.py NAME ARGUMENT...`.

A tool ends at once. A training program writes down that it runs, and on which node, and waits for
the end of its job; a launcher has a child that does so, and reports its death as torchrun does.
$STRANGERS is the directory of the records.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LAUNCHERS = ("torchrun", "accelerate", "composer", "deepspeed")
LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate")
REPORT = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : {host}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


def main() -> int:
    name, *arguments = sys.argv[1:]
    os.environ.update(find_lost_variables())
    if name in ("nsys", "numactl"):
        return run_rest(arguments)
    if name.startswith("python"):
        return play_python(name, arguments)
    if name in LAUNCHERS:
        return launch(name, arguments)
    if name == "ray" and arguments[0] == "status":
        print(f" 0.0/{8 * int(os.environ['SLURM_JOB_NUM_NODES'])}.0 worker_units")
        return 0
    if name == "ray" and (arguments[0] == "stop" or "--block" not in arguments):
        return 0
    if name in ("trl", "ray", "vllm", "rank"):
        return train(name, arguments)
    return 0


def find_lost_variables() -> dict[str, str]:
    """Return what Slurm gave the task where its script has unset that, as some do for Ray."""
    pid = os.getpid()
    while "SLURM_JOB_ID" not in os.environ and pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        try:
            words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        except PermissionError:
            break
        found = dict(word.partition("=")[::2] for word in words if word.startswith("SLURM"))
        if "SLURM_JOB_ID" in found:
            return found
    return {}


def run_rest(arguments: list[str]) -> int:
    """Play a profiler: run the program that follows its options."""
    at = next(i for i, word in enumerate(arguments) if word.startswith("python"))
    os.execvp(arguments[at], arguments[at:])


def play_python(name: str, arguments: list[str]) -> int:
    """Play the interpreter of a training environment."""
    words = [word for word in arguments if word != "-u"]
    if words[:1] == ["-m"] and words[1].startswith(LAUNCHING_MODULES):
        return launch(words[1], words[2:])
    if words[:1] == ["-c"] and "SLURM_STEP_ID" in os.environ:
        print(8)  # what a script may ask for: GPUs that are there
        return 0
    if words[:1] == ["-c"]:
        os.execv(sys.executable, [sys.executable, *arguments])
    return train(name, arguments)


def launch(name: str, arguments: list[str]) -> int:
    """Start one rank, and report its death as torchrun does."""
    child = subprocess.Popen([sys.executable, "-SE", __file__, "rank", name, *arguments])
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    if code in (0, -signal.SIGTERM):
        return 0 if code == 0 else 1
    how = "To enable traceback see: https://pytorch.org"
    if code < 0:
        how = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {child.pid}"
    values = {
        "host": os.environ.get("SLURMD_NODENAME", "localhost"),
        "rank": find_rank(),
        "code": code,
        "pid": child.pid,
        "traceback": how,
    }
    sys.stderr.write(REPORT.format(**values))
    return 1


def find_rank() -> int:
    """Return the rank that this process is, as far as Slurm tells."""
    return int(os.environ.get("SLURM_PROCID", "0"))


def train(name: str, arguments: list[str]) -> int:
    """Train until the job's owner is content, or the peers are gone."""
    records = Path(os.environ["STRANGERS"])
    job, run = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
    kept = ("HPCTL_RESUME_FROM", "HPCTL_CHECKPOINT_DIR", "HPCTL_RESTART_COUNT", "TRAINING_HOME")
    record = {
        "program": name,
        "arguments": arguments,
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "step": os.environ.get("SLURM_STEP_ID", "batch"),
        "rank": find_rank(),
        "pid": os.getpid(),
        "environment": {key: os.environ[key] for key in kept if key in os.environ},
    }
    path = records / f"{job}-{run}-{record['step']}-{record['rank']}-{os.getpid()}.json"
    path.with_suffix(".part").write_text(json.dumps(record))
    path.with_suffix(".part").rename(path)
    print(f"training: run {run}, rank {record['rank']}", flush=True)
    finished, left = records / f"{job}-finish", records / f"{job}-{run}-left"
    serves = arguments[:1] == ["vllm-serve"] or name == "ray"
    while not finished.exists():
        if left.exists() and not serves:
            time.sleep(3)
            print("RuntimeError: Connection closed by peer", file=sys.stderr, flush=True)
            return 1
        time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
