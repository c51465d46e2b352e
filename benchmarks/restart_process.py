"""From a rank's death to the first training step after it: torchrun's restart, and ours.

Real PyTorch (DDP, gloo) on loopback: two agents or launchers, one rank each, as on two nodes.
Rank 1 is killed with SIGKILL while it trains. Needs torch; `measure` raises NoTorch without it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from hpctl.jobs.elastic import environment

ROOT = Path(__file__).resolve().parents[1]
RUNS = 3
TORCHRUN = "torchrun, c10d rendezvous"
OURS = "hpctl"
LIMIT_S = 90.0

_PROGRAM = """
import os, pathlib, sys
sys.path.insert(0, {folder!r})
import train
save = pathlib.Path(os.environ["HPCTL_CHECKPOINT_DIR"])
(save / f"pid-{{os.environ['RANK']}}").write_text(str(os.getpid()))
# Under torchrun the script must look for its checkpoint itself, as scripts for it do.
whole = sorted(save.glob("step-*.pt"))
if whole and "HPCTL_RESUME_FROM" not in os.environ:
    os.environ["HPCTL_RESUME_FROM"] = str(whole[-1])
train.main()
"""


class NoTorch(Exception):
    """torch does not import here."""


def measure(runs: int = RUNS) -> dict[str, list[float]]:
    """Seconds of each run, by name of what restarted. The two take turns, so that a busy moment
    hits them alike. Takes about half a minute a round. Raises NoTorch, and AssertionError where a
    run does not come back."""
    if find_spec("torch") is None:
        raise NoTorch("torch does not import")
    values: dict[str, list[float]] = {TORCHRUN: [], OURS: []}
    for _ in range(runs):
        values[TORCHRUN].append(_once(_torchrun))
        values[OURS].append(_once(_ours))
    return values


def _torchrun(node: int, port: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
        f"--node-rank={node}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=bench", "--max-restarts=3",
    ]  # fmt: skip


def _ours(node: int, _port: int) -> list[str]:
    return [
        "env", "SLURM_NNODES=2", f"SLURM_PROCID={node}", "SLURM_STEP_NODELIST=127.0.0.1",
        sys.executable, "-m", "hpctl.jobs.elastic", "--nproc-per-node=1", "--",
    ]  # fmt: skip


def _once(command: Callable[[int, int], Sequence[str]]) -> float:
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        directory = Path(name)
        save = directory / "save"
        save.mkdir()
        script = directory / "program.py"
        script.write_text(_PROGRAM.format(folder=str(ROOT / "examples/torch_ddp")))
        arguments = [str(script), "--steps=100000", "--checkpoint-every=10", "--step-s=0.05"]
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCTL_"))},
            **environment(),
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            # torchrun's ranks share one store over all restarts by default (torch 2.13), with the
            # keys of the dead in it: now and then the new ranks then never find each other.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "HPCTL_CHECKPOINT_DIR": str(save),
        }
        port = _free_port()
        with (directory / "out").open("ab") as out:
            agents = [
                subprocess.Popen(
                    [*command(node, port), *arguments], env=env, stdout=out, stderr=out,
                    start_new_session=True,
                )
                for node in range(2)
            ]  # fmt: skip
        try:
            return _restart_s(save, agents, directory / "out")
        finally:
            _end(agents)


def _restart_s(save: Path, agents: list[subprocess.Popen[bytes]], out: Path) -> float:
    # Twenty steps and two checkpoints: everybody has long settled down.
    _await(lambda: len(_steps(save)) >= 20, agents, out)
    lived = _steps(save)[0][1]
    victim = int((save / "pid-1").read_text())
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    # By rank 0's process: under torchrun its node counts no restart when another node's rank dies.
    _await(lambda: _steps(save)[-1][1] != lived, agents, out)
    return next(at for at, pid in _steps(save) if pid != lived) - killed


def _steps(save: Path) -> list[tuple[float, int]]:
    """When each step was done, in seconds since the epoch, and by which process of rank 0."""
    path = save / "losses.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(line["at"], line["pid"]) for line in values]


def _await(test: Callable[[], bool], agents: list[subprocess.Popen[bytes]], out: Path) -> None:
    limit = time.monotonic() + LIMIT_S
    while not test():
        if time.monotonic() > limit or any(each.poll() is not None for each in agents):
            raise AssertionError(f"it did not train on:\n{out.read_text()[-3000:]}")
        time.sleep(0.02)


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    """Their ranks end with them: the launcher's by the kernel, torchrun's by its handler."""
    for each in agents:
        each.terminate()
    for each in agents:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(40)
        each.kill()
        each.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Print the medians."""
    for name, seconds in measure().items():
        each = " ".join(f"{value:.2f}" for value in seconds)
        print(f"{name:28} median {median(seconds):.2f} s   ({each})")


if __name__ == "__main__":
    main()
