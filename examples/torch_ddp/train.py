"""Data-parallel training with PyTorch that comes back to the same bits however often it is killed.

    hpctl run --torch -- train.py --steps 400
    torchrun --nproc-per-node 2 train.py --checkpoint-dir /tmp/run

A small regression on made-up data, on CPU with gloo. By default weights are copied to every rank
(DDP) and rank 0 saves them with torch.save. `--fsdp` shards weights and optimiser (fully_shard),
and all ranks save their part as a distributed checkpoint (DCP). Either is written under a temporary
name and renamed when it is whole. With --fsdp and a directory on each node's own disk
(`hpctl sbatch --fast-dir`) all saves go there: hpctl tells which are whole, and drops old ones.

What makes an interrupted run equal to an undisturbed one: batches follow from the seed and the
step alone, weights and optimiser state are in the checkpoint, and the number of ranks stays the
same (a sum over other shares of the batch rounds otherwise).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

WIDTH, HIDDEN, ROWS = 16, 64, 32
saves_asked: list[int] = []


@record
def main() -> None:
    """One rank."""
    signal.signal(signal.SIGUSR1, lambda number, _frame: saves_asked.append(number))
    words = _arguments()
    torch.set_num_threads(1)  # on a GPU: torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    try:
        train(words)
    finally:
        dist.destroy_process_group()


def train(words: argparse.Namespace) -> None:
    """From the newest checkpoint, or the beginning, to the last step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    words.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(words.seed)
    model: Any = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    model = _sharded(model) if words.fsdp else _copied(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = load(words.resume_from, model, optimiser) if words.resume_from else 0
    while step < words.steps:
        begun = time.monotonic()
        step += 1
        inputs, targets = batch(words.seed, step, rank, world)
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()
        # The wish to save travels with the loss: every rank must take the same turn.
        told = torch.tensor([loss.item(), float(len(saves_asked))])
        dist.all_reduce(told)
        saves_asked.clear()
        _log(words.checkpoint_dir, rank, step, float(told[0]) / world)
        if told[1] or step % words.checkpoint_every == 0 or step == words.steps:
            save(words, step, model, optimiser)
        time.sleep(max(0.0, words.step_s - (time.monotonic() - begun)))
    finish(words.checkpoint_dir, model, rank)


def batch(seed: int, step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of one step's batch."""
    source = torch.Generator().manual_seed(seed * 1_000_003 + step)
    inputs = torch.randn(ROWS * world, WIDTH, generator=source)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    mine = slice(ROWS * rank, ROWS * (rank + 1))
    return inputs[mine], targets[mine]


def save(words: argparse.Namespace, step: int, model: Any, optimiser: Any) -> None:
    """All ranks together. A save that is interrupted leaves only something named `.tmp`."""
    if words.fsdp and words.fast_dir:
        import torch.distributed.checkpoint as dcp

        dcp.save(_state(model, optimiser), checkpoint_id=f"{words.fast_dir}/step-{step:08d}")
        return
    final = words.checkpoint_dir / f"step-{step:08d}{'' if words.fsdp else '.pt'}"
    temporary = words.checkpoint_dir / f".tmp-{step:08d}-{os.environ['MASTER_PORT']}"
    if words.fsdp:
        import torch.distributed.checkpoint as dcp

        dcp.save(_state(model, optimiser), checkpoint_id=str(temporary))
    elif dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    dist.barrier()
    if dist.get_rank() == 0 and not final.exists():
        temporary.rename(final)
        for old in sorted(words.checkpoint_dir.glob("step-*"))[:-3]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def load(path: Path, model: Any, optimiser: Any) -> int:
    """Fill model and optimiser from a checkpoint; the step that it was saved after."""
    if path.is_file():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        return int(state["step"])
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state(model, optimiser)
    dcp.load(state, checkpoint_id=str(path))
    set_state_dict(
        model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"]
    )
    return int(path.name.rpartition("-")[2])


def finish(directory: Path, model: nn.Module, rank: int) -> None:
    """Leave the digest of the trained weights in `final.json`, and say that the run is done.

    A fault may come right after the last save: the next start takes no step, and only the mark
    tells it from one that failed to train.
    """
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        whole: Callable[[], torch.Tensor] | None = getattr(value, "full_tensor", None)
        digest.update((whole() if whole else value).numpy().tobytes())
    if rank == 0:
        text = json.dumps({"sha256": digest.hexdigest()})
        (directory / "final.json").write_text(text)
        if mark := os.environ.get("HPCTL_DONE"):
            Path(mark).touch()


def _state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimiser)
    return {"model": weights, "optimiser": moments}


def _copied(model: nn.Module) -> nn.Module:
    # DDP lays its buckets out anew after the first step, in the order in which gradients came. With
    # three ranks or more the ring then adds them in another order, so that a resumed run's first
    # step would differ in its last bits from the same step without a restart. With this option DDP
    # keeps the first layout.
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    return model


def _log(directory: Path, rank: int, step: int, loss: float) -> None:
    """One line a step, for people and for whoever compares two runs."""
    if rank:
        return
    print(f"step {step} loss {loss:.6f}", flush=True)
    line = {"step": step, "loss": loss.hex(), "at": time.time(), "pid": os.getpid()}
    with (directory / "losses.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _arguments() -> argparse.Namespace:
    get = os.environ.get
    directory, resume = get("HPCTL_CHECKPOINT_DIR"), get("HPCTL_RESUME_FROM")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--checkpoint-dir", type=Path, default=directory, required=directory is None)
    add("--fast-dir", default=get("HPCTL_FAST_DIR"), help="on each node's own disk; with --fsdp")
    add("--resume-from", type=Path, default=Path(resume) if resume else None)
    add("--steps", type=int, default=200)
    add("--checkpoint-every", type=int, default=10, metavar="STEPS")
    add("--step-s", type=float, default=0.0, help="least seconds a step takes")
    add("--seed", type=int, default=1)
    add("--fsdp", action="store_true", help="shard model and optimiser instead of copying them")
    return parser.parse_args()


if __name__ == "__main__":
    main()
