"""From a rank's death to the first new step: every way to come back, the same fault, one sandbox.

A real Slurm and real PyTorch (DDP, gloo): two nodes, one rank each, `examples/torch_ddp`. Rank 1 is
killed with SIGKILL while it trains. By class, slowest first: the job is requeued (Slurm alone;
hpctl's daemon), the step is launched anew (`hpctl run`), the processes are (torchrun, NVIDIA's
ft_launcher where it is installed, `hpctl run --torch`).
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from benchmarks.lab import NotSeen
from benchmarks.table import Outcome, Row, median
from hpctl.sandbox.api import Sandbox

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
STEP_S, EVERY = 0.1, 10
UP_S, BACK_S = 90.0, 240.0
SITE: dict[str, Any] = {
    "job": {"prove_s": 1.0, "max_restarts": 1000},
    # What is measured is how soon, not how patient: software crashes wait 30 s by default.
    "run_policy": {"restarts": 1000, "same_signature": 1000, "backoff": {"first_s": 0.0}},
}
EAGER = "SchedulerParameters=batch_sched_delay=0\n"

PROGRAM = f"""
import os, pathlib, sys
sys.path.insert(0, {str(ROOT / "examples/torch_ddp")!r})
import train
save = pathlib.Path(os.environ["HPCTL_CHECKPOINT_DIR"])
(save / f"pid-{{os.environ['RANK']}}").write_text(str(os.getpid()))
# Where nobody tells it, the script looks for its checkpoint itself, as scripts do.
whole = sorted(save.glob("step-*.pt"))
if whole and "HPCTL_RESUME_FROM" not in os.environ:
    os.environ["HPCTL_RESUME_FROM"] = str(whole[-1])
train.main()
"""
WORDS = f"@program@ --steps=100000 --checkpoint-every={EVERY} --step-s={STEP_S}"


def _torchrun(restarts: int, program: str = "-m torch.distributed.run") -> str:
    return (
        f"{sys.executable} {program} --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d"
        " --rdzv-id=$SLURM_JOB_ID-$SLURM_RESTART_COUNT --rdzv-endpoint=@first@:@port@"
        f" --max-restarts={restarts} {WORDS}"
    )


class Way(Struct, frozen=True):
    """One way to come back. `hpctl`: submitted with `hpctl sbatch`, its `options` included."""

    name: str
    body: str
    hpctl: bool = False
    options: tuple[str, ...] = ()


_HPCTL = f"{sys.executable} -m hpctl"
_TORCH = f"{_HPCTL} run --torch --nproc=1"
PLAIN = Way(
    "plain Slurm requeue", f"srun {_torchrun(0)} || {{ scontrol requeue $SLURM_JOB_ID; sleep 60; }}"
)
REQUEUE = Way("hpctl requeue", f"srun {_torchrun(0)}", hpctl=True)
STEP = Way("hpctl step restart", f"{_HPCTL} run -- {_torchrun(0)}", hpctl=True)
TORCHRUN = Way("torchrun's own restart", f"srun {_torchrun(3)}")
FT = Way(
    "NVIDIA ft_launcher",
    "srun "
    + _torchrun(
        3, "-m nvidia_resiliency_ext.fault_tolerance.launcher --ignore-missing-fault-tol-cfg"
    ),
)
PROCESS = Way("hpctl process restart", f"{_TORCH} -- {WORDS}", hpctl=True)


class Seen(Struct):
    """What came of one way: seconds to the first new step, and steps trained again."""

    seconds: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


def run() -> Outcome:
    """All ways in turn, round after round; Slurm alone waits two minutes and is asked once."""
    if find_spec("torch") is None:
        raise NotSeen("torch does not import: pip install torch")
    ways = [STEP, TORCHRUN, PROCESS, REQUEUE]
    if find_spec("nvidia_resiliency_ext") is not None:
        ways.insert(2, FT)
    seen = {way.name: Seen() for way in [PLAIN, *ways]}
    with tempfile.TemporaryDirectory(prefix="hpctl-restart-") as name:
        Path(name).chmod(0o755)
        lab = _Lab(Path(name))
        with lab.sandbox:
            lab.once(PLAIN, seen)
            for _ in range(ROUNDS):
                for way in ways:
                    lab.once(way, seen)
    return _told(seen)


def _told(seen: dict[str, Seen]) -> Outcome:
    outcome = Outcome("restart: from a rank's death to the first new step")
    classes = ((REQUEUE, PLAIN), (STEP, PLAIN), (PROCESS, TORCHRUN), (PROCESS, FT))
    for ours, rival in classes:
        if rival.name not in seen:
            continue
        mine, theirs = median(seen[ours.name].seconds), median(seen[rival.name].seconds)
        outcome.rows.append(Row(ours.name, mine, "s", rival.name, theirs, theirs))
    for name, one in seen.items():
        each = ", ".join(f"{s:.2f}" for s in one.seconds)
        outcome.notes.append(f"{name}: {each} s; steps trained again {one.lost}")
    if FT.name not in seen:
        outcome.notes.append("ft_launcher: not installed (pip install nvidia-resiliency-ext)")
    outcome.notes.append("importing torch is in every figure")
    return outcome


class _Lab:
    """The sandbox, and one job after the other in it."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._turn = 0
        self.sandbox = Sandbox(
            "restart",
            state_dir=base / "s",
            nodes=4,
            mode="own",
            daemon=True,
            config=SITE,
            slurm_conf=EAGER,
        )

    def once(self, way: Way, seen: dict[str, Seen]) -> None:
        """Submit, let it train, kill rank 1, and time the first new step. Raises NotSeen."""
        self._turn += 1
        save = self._base / f"job-{self._turn}"
        save.mkdir()
        number = self._submit(way, save)
        try:
            seconds, lost = self._fault(save)
        except NotSeen as error:
            log = self._base / f"{number}.log"
            output = log.read_text(errors="replace")[-4000:] if log.exists() else "(no output)"
            raise NotSeen(f"{way.name}: {error}\n{output}") from error
        finally:
            self.sandbox.run(["scancel", str(number)], check=False)
            _until(lambda: not self._there(number), 60, "the job is gone")
        seen[way.name].seconds.append(seconds)
        seen[way.name].lost.append(lost)

    def _submit(self, way: Way, save: Path) -> int:
        program = self._base / "program.py"
        program.write_text(PROGRAM)
        body = way.body.replace("@program@", str(program)).replace("@port@", str(_free_port()))
        first = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1 | tr - . | cut -c4-)"
        script = self._base / f"job-{self._turn}.sh"
        lines = [
            "#!/bin/bash",
            f"export HPCTL_CHECKPOINT_DIR={save} SLURM_RESTART_COUNT=${{SLURM_RESTART_COUNT:-0}}",
            f"export PYTHONPATH={ROOT} GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1",
            # torchrun's restarts hang now and then where its ranks share one store with it: they
            # find addresses of the dead. Without that it is at its best.
            "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            f"first={first}",
            body.replace("@first@", "$first"),
        ]
        script.write_text("\n".join(lines) + "\n")
        submit = ["sbatch"]
        if way.hpctl:
            submit = [sys.executable, "-m", "hpctl", "sbatch", f"--checkpoint-dir={save}"]
        arguments = [
            *submit, "--parsable", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", "--requeue",
            "--open-mode=append", f"--output={self._base}/%j.log", *way.options, str(script),
        ]  # fmt: skip
        done = self.sandbox.run(arguments, env={"PYTHONPATH": str(ROOT)})
        return int(done.stdout.strip())

    def _fault(self, save: Path) -> tuple[float, int]:
        # Two checkpoints and a bit: everybody has long settled down.
        _until(lambda: len(_steps(save)) >= 2 * EVERY + 4, UP_S, "it trains")
        victim = int((save / "pid-1").read_text())
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        _until(lambda: any(at > killed + STEP_S for at, _ in _steps(save)), BACK_S, "a new step")
        before = [step for at, step in _steps(save) if at <= killed + STEP_S]
        at, step = next((at, step) for at, step in _steps(save) if at > killed + STEP_S)
        return at - killed, before[-1] - step + 1

    def _there(self, number: int) -> bool:
        return bool(self.sandbox.run(["squeue", "-h", "-j", str(number)], check=False).stdout)


def _steps(save: Path) -> list[tuple[float, int]]:
    """When each step was done (seconds since the epoch), and its number, in the order done."""
    path = save / "losses.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(line["at"], line["step"]) for line in values]


def _until(test: Callable[[], bool], timeout_s: float, what: str) -> None:
    limit = time.monotonic() + timeout_s
    while not test():
        if time.monotonic() > limit:
            raise NotSeen(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
