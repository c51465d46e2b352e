"""A small deterministic training run: one rank of one or several, on CUDA or on CPUs.

    program.py --marks FOLDER --device cuda --backend nccl --trouble oom@17

The batches follow from the step and the rank alone, and everything that a step reads is in the
checkpoint, so that a run that was interrupted ends with the same weights as one that was not. Each
rank writes what happens to it as JSON lines to FOLDER/marks-RANK.jsonl, with the wall clock's time.
The update is written out instead of using torch.optim, whose first use imports a compiler.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

BORN = time.time()
CULPRIT = 1
WIDTH, ROWS = 256, 64
PATIENT_STEP_S = 4.0
"""How long a step takes while a fault of the node is on its way. The fault ends such a step early;
on a busy machine it needs seconds, and shorter steps would let a short run end before it."""


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line; directories default to what hpctl exports to a job."""
    get = os.environ.get
    parser = argparse.ArgumentParser(prog="program.py")
    add = parser.add_argument
    add("--marks", type=Path, required=True, help="folder for marks, the trouble's flag, the end")
    add("--directory", type=Path, default=get("HPCTL_CHECKPOINT_DIR"), help="where to save")
    add("--resume-from", type=Path, default=get("HPCTL_RESUME_FROM") or None)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--backend", choices=("gloo", "nccl", "none"), default="gloo")
    add("--group-timeout-s", type=float, default=0.0, help="of a collective; 0: torch's own")
    add("--steps", type=int, default=40)
    add("--every", type=int, default=10, help="steps from one save to the next")
    add("--step-s", type=float, default=0.0, help="least seconds of a step")
    add("--patient-from", type=int, default=0, help="step from which a first run awaits its fault")
    add("--format", default="rename", help="a name of formats.FORMATS")
    add("--ballast-mib", type=int, default=0, help="further tensors to save, each rank its own")
    add("--trouble", default="", metavar="KIND@STEP", help="what goes wrong there, once")
    return parser.parse_args(words)


class Marks:
    """What one rank tells about itself, on disk at once."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._place = folder / f"marks-{rank}.jsonl"

    def write(self, what: str, step: int, **more: Any) -> None:
        """Append one line."""
        row = {"what": what, "step": step, "at": time.time(), "pid": os.getpid(), **more}
        with self._place.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_place() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as a launcher or Slurm says."""
    get = os.environ.get
    rank = get("RANK") or get("SLURM_PROCID") or "0"
    world = get("WORLD_SIZE") or get("SLURM_STEP_NUM_TASKS") or get("SLURM_NTASKS") or "1"
    return int(rank), int(world)


def join_group(words: argparse.Namespace, rank: int, world: int) -> None:
    """Form the process group: over a launcher's store, else over a file of this attempt alone."""
    import torch
    import torch.distributed as dist

    more: dict[str, Any] = {}
    if words.backend == "nccl":
        more["device_id"] = torch.device("cuda:0")
    if words.group_timeout_s:
        more["timeout"] = datetime.timedelta(seconds=words.group_timeout_s)
    if "MASTER_PORT" in os.environ:
        dist.init_process_group(words.backend, **more)
        return
    get = os.environ.get
    parts = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "HPCTL_ATTEMPT")
    attempt = "-".join(get(part, "0") for part in parts)
    meeting = f"file://{words.marks.absolute()}/.meeting-{attempt}"
    dist.init_process_group(words.backend, init_method=meeting, rank=rank, world_size=world, **more)


class Training:
    """The model, its momentum and the ballast of one rank."""

    def __init__(self, words: argparse.Namespace, rank: int, world: int) -> None:
        import torch

        self.rank, self.world = rank, world
        self.device = torch.device(words.device)
        source = torch.Generator().manual_seed(1)
        shapes = {"first": (WIDTH, WIDTH), "second": (WIDTH, 1)}
        self.weights = {
            name: (0.05 * torch.randn(shape, generator=source)).to(self.device)
            for name, shape in shapes.items()
        }
        self.momentum = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        count = 8 if words.ballast_mib else 0
        size = (words.ballast_mib << 18) // 8
        self.ballast = {
            f"ballast-{rank}-{number}": torch.zeros(size, device=self.device)
            for number in range(count)
        }

    def make_step(self, step: int) -> float:
        """Train one step, all ranks together; return the loss."""
        import torch
        import torch.distributed as dist

        source = torch.Generator().manual_seed(1_000_003 * step + self.rank)
        inputs = torch.randn(ROWS, WIDTH, generator=source).to(self.device)
        weights = {name: value.requires_grad_() for name, value in self.weights.items()}
        hidden = torch.tanh(inputs @ weights["first"])
        targets = torch.sin(inputs.sum(dim=1, keepdim=True))
        loss = (hidden @ weights["second"] - targets).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).detach()
        if self.world > 1:
            dist.all_reduce(flat)
        begin = 0
        with torch.no_grad():
            for name, weight in weights.items():
                part = flat[begin : begin + weight.numel()].view_as(weight) / self.world
                begin += weight.numel()
                self.momentum[name].mul_(0.9).add_(part)
                weight.sub_(0.003 * self.momentum[name])
                weight.requires_grad_(False)
            for value in self.ballast.values():
                value.add_(step)
        # The loss on the host: the step is done on the device when this returns.
        return float(loss.detach())

    def state(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of this rank holds."""
        return {
            "step": step,
            "weights": self.weights,
            "momentum": self.momentum,
            "ballast": self.ballast,
        }

    def take(self, state: dict[str, Any]) -> int:
        """Fill weights, momentum and ballast from a loaded checkpoint; return its step."""
        for own, loaded in (
            (self.weights, state["weights"]),
            (self.momentum, state["momentum"]),
            (self.ballast, state["ballast"]),
        ):
            for name, value in own.items():
                value.copy_(loaded[name])
        return int(state["step"])

    def digest(self, *, with_ballast: bool) -> str:
        """Return the SHA-256 of all weights and the momentum, and of this rank's ballast."""
        whole = hashlib.sha256()
        parts = [self.weights, self.momentum]
        if with_ballast:
            parts.append(self.ballast)
        for part in parts:
            for _, value in sorted(part.items()):
                whole.update(value.cpu().numpy().tobytes())
        return whole.hexdigest()


def cause_trouble(kind: str, training: Training) -> None:
    """Go wrong as asked; never returns."""
    import torch
    import torch.distributed as dist

    if kind == "raise":
        raise RuntimeError("a bug that shows once")
    if kind == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        wait_forever()
    if kind == "order":
        # Rank 0 reduces meanwhile.
        dist.broadcast(torch.ones(4, device=training.device), CULPRIT)
        wait_forever()
    if kind == "oom":
        torch.empty(1 << 42, dtype=torch.uint8, device=training.device)
    if kind == "assert":
        index = torch.tensor([9], device=training.device)
        torch.ones(4, device=training.device)[index].sum().item()
    if kind == "ecc":
        # What CUDA says when the driver has contained a memory error (Xid 94).
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if kind == "nccl":
        # The other ranks read "remote process exited or there was a network error".
        group = dist.distributed_c10d._get_default_group()
        group._get_backend(training.device).abort()
        dist.all_reduce(torch.ones(4, device=training.device))
        torch.cuda.synchronize()
    raise RuntimeError(f"{kind} went unnoticed on {training.device}")


def wait_forever() -> None:
    """Stay away from the next collective, as a rank does that waits for its data."""
    while True:
        time.sleep(1.0)


def prepare_environment(words: argparse.Namespace, rank: int) -> None:
    """Set what CUDA and NCCL read when they are first used."""
    if words.device == "cuda":
        # Slurm numbers the GPUs that it was told of; the machine has one.
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    if words.backend == "nccl":
        # NCCL refuses two ranks on one GPU of one host.
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    if words.group_timeout_s:
        # How long a rank lives on after its collective has timed out; torch's default is 8 minutes.
        os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Run:
    """One rank's run, from the resume point to the last step."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.rank, self.world = read_place()
        words.marks.mkdir(parents=True, exist_ok=True)
        self.marks = Marks(words.marks, self.rank)
        self.marks.write("born", 0)
        prepare_environment(words, self.rank)
        import torch

        from tests.gpu.training.formats import FORMATS

        torch.set_num_threads(1)
        if words.device == "cuda":
            # One thread of a CPU is deterministic anyway, and this imports torch's compiler.
            torch.use_deterministic_algorithms(True)
        if words.backend != "none":
            join_group(words, self.rank, self.world)
        self.form = FORMATS[words.format]
        self.training = Training(words, self.rank, self.world)
        self.directory = Path(os.environ.get("HPCTL_FAST_DIR") or words.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.first = self.resume()

    def resume(self) -> int:
        """Load the checkpoint to resume from, if there is one; return its step, else 0."""
        first, digest = 0, ""
        place = self.words.resume_from
        if place:
            state = self.form.load(place, self.training.state(-1), self.training.device)
            first = self.training.take(state)
            digest = self.training.digest(with_ballast=True)
        self.marks.write(
            "start",
            first,
            resume=str(place or ""),
            digest=digest,
            since_start_s=round(time.time() - BORN, 3),
            node=os.environ.get("SLURMD_NODENAME", ""),
            attempt=os.environ.get("HPCTL_ATTEMPT", ""),
        )
        return first

    def train(self) -> None:
        """Make every step, and say that the run is done."""
        from hpctl import progress

        for step in range(self.first + 1, self.words.steps + 1):
            began = time.monotonic()
            self.go_wrong(step)
            loss = self.training.make_step(step)
            self.marks.write("step", step, took_s=round(time.monotonic() - began, 5))
            progress.step(step, loss=loss)
            if self.rank == 0:
                print(f"step {step} loss {loss:.6f}", flush=True)
            if step % self.words.every == 0 or step == self.words.steps:
                self.save(step)
            time.sleep(max(0.0, self.least_s(step) - (time.monotonic() - began)))
        weights = self.training.digest(with_ballast=False)
        self.marks.write("end", self.words.steps, weights=weights)
        progress.done()

    def go_wrong(self, step: int) -> None:
        """Cause the trouble that was asked for, if this is its rank and step, once."""
        kind, _, at = self.words.trouble.partition("@")
        flag = self.words.marks / "trouble"
        is_culprit = self.rank == min(CULPRIT, self.world - 1)
        if kind and is_culprit and step == int(at) and not flag.exists():
            flag.touch()
            self.marks.write("trouble", step, kind=kind)
            cause_trouble(kind, self.training)

    def save(self, step: int) -> None:
        """Save, all ranks together."""
        digest = self.training.digest(with_ballast=True)
        weights = self.training.digest(with_ballast=False)
        self.marks.write("save", step, digest=digest, weights=weights)
        began = time.monotonic()
        self.form.save(self.training.state(step), self.directory, step, self.rank)
        self.marks.write("saved", step, took_s=round(time.monotonic() - began, 5))
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()

    def least_s(self, step: int) -> float:
        """Return how long a step takes at least."""
        awaits_fault = 0 < self.words.patient_from <= step and not self.first
        return float(PATIENT_STEP_S if awaits_fault else self.words.step_s)

    def leave(self) -> None:
        """Leave the process group: gloo aborts a rank whose neighbors leave before it."""
        if self.words.backend != "none":
            import torch.distributed as dist

            dist.barrier()
            dist.destroy_process_group()


def main(words: list[str]) -> None:
    """Run one rank."""
    run = Run(parse(words))
    run.train()
    run.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
