"""What `examples/megatron/train.sbatch` runs, in the shape of Megatron-LM's own pretrain_gpt.py.

Its options, its pointer file, its exit codes and its checkpoints by Megatron Core itself; the model
is one vector, and it runs on CPUs. Megatron Core asks CUDA twice for things that a machine without
a GPU cannot say; both are answered for it.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing import ShardedTensor  # noqa: E402

LENGTH = 4096
POINTER = "latest_checkpointed_iteration.txt"


def main() -> int:
    logging.disable(logging.WARNING)
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights = torch.arange(LENGTH, dtype=torch.float64) / LENGTH + rank
    done = load(args, weights, rank, world)
    if done is None:
        print("unable to find a checkpoint and --exit-on-missing-checkpoint is set", flush=True)
        return 1
    (args.save / f"pid-{rank}").write_text(str(os.getpid()))
    while done < args.train_iters:
        done += 1
        noise = torch.Generator().manual_seed(1_000_003 * done)
        gradient = torch.randn(LENGTH, generator=noise, dtype=torch.float64)
        dist.all_reduce(gradient)
        weights.mul_(0.999).add_(gradient, alpha=0.01)
        time.sleep(args.step_s)
        if rank == 0:
            print(f" iteration {done:8d}/{args.train_iters:8d} | lm loss: 1.0E+00 |", flush=True)
        if done % args.save_interval == 0 or done == args.train_iters:
            save(args.save, done, weights, rank, world)
    finish(args.save, weights, rank)
    dist.destroy_process_group()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--save-interval", type=int, required=True)
    parser.add_argument("--ckpt-format", choices=["torch_dist"], required=True)
    parser.add_argument("--exit-on-missing-checkpoint", action="store_true")
    parser.add_argument("--train-iters", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    return parser.parse_args()


def sharded(weights: torch.Tensor, rank: int, world: int) -> dict[str, Any]:
    return {"weights": ShardedTensor.from_rank_offsets("weights", weights, (0, rank, world))}


def load(args: argparse.Namespace, weights: torch.Tensor, rank: int, world: int) -> int | None:
    """The iteration that the pointer names, loaded; 0 for a first start, None where it must not."""
    pointer = args.load / POINTER
    if not pointer.exists():
        return None if args.exit_on_missing_checkpoint else 0
    named = pointer.read_text().strip()
    if not named.isdigit():
        print(f"ERROR: Invalid metadata file {pointer}. Exiting", flush=True)
        sys.exit()  # as Megatron-LM does: exit code 0
    path = args.load / f"iter_{int(named):07d}"
    loaded = dist_checkpointing.load(sharded(torch.zeros_like(weights), rank, world), str(path))
    weights.copy_(loaded["weights"])
    return int(named)


def save(folder: Path, done: int, weights: torch.Tensor, rank: int, world: int) -> None:
    path = folder / f"iter_{done:07d}"
    path.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save({**sharded(weights, rank, world), "iteration": done}, str(path))
    if rank == 0:
        (folder / POINTER).write_text(str(done))
    dist.barrier()


def finish(folder: Path, weights: torch.Tensor, rank: int) -> None:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    if rank == 0:
        (folder / "final.json").write_text(json.dumps(everyone))


if __name__ == "__main__":
    sys.exit(main())
