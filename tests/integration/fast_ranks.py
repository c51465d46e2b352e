"""One rank of a job that saves to its node's own disk: `fast_ranks.py STEPS [FORMAT [SECONDS]]`.

FORMAT: dcp (torch's own writer), deepspeed or megatron (their files in their order, by torch.save).
What is loaded must be what this rank saved at that step, to the bit.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

STEPS = int(sys.argv[1])
FORMAT = sys.argv[2] if len(sys.argv) > 2 else "dcp"
STEP_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
NAMES = {"dcp": "step-{}", "deepspeed": "global_step{}", "megatron": "iter_{:07d}"}
State = dict[str, torch.Tensor]


def save(state: State, step: int, rank: int, ranks: int, root: Path) -> None:
    place = root / NAMES[FORMAT].format(step)
    if FORMAT == "dcp":
        dcp.save({**state, "step": step}, checkpoint_id=str(place))
        return
    held = {"shared": state["shared"], "own": state[f"own-{rank}"]}
    if FORMAT == "deepspeed":
        place.mkdir(exist_ok=True)
        sizes = {"dp_world_size": ranks, "mp_world_size": 1, "global_steps": step}
        if rank == 0:
            torch.save(
                {**sizes, "optimizer": None, "module": held}, place / "mp_rank_00_model_states.pt"
            )
        optimizer = place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": held}, optimizer)
    else:
        sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": ranks}
        args = argparse.Namespace(**sizes, use_distributed_optimizer=True)
        place /= f"mp_rank_00_{rank:03d}"
        place.mkdir(parents=True, exist_ok=True)
        torch.save(held, place / "distrib_optim.pt")
        torch.save({"args": args, "iteration": step, "model": held}, place / "model_optim_rng.pt")
    dist.barrier()
    if rank == 0:
        pointer = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt"}
        (root / pointer[FORMAT]).write_text(place.name if FORMAT == "deepspeed" else str(step))


def load(state: State, rank: int, place: Path) -> int:
    if FORMAT == "dcp":
        step: dict[str, int] = {"step": 0}
        dcp.load(both := {**state, **step}, checkpoint_id=str(place))
        return int(both["step"])
    if FORMAT == "deepspeed":
        model = torch.load(place / "mp_rank_00_model_states.pt", weights_only=False)
        own = torch.load(place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        held, reached = own["optimizer_state_dict"], model["global_steps"]
        assert torch.equal(model["module"]["shared"], held["shared"])
    else:
        place /= f"mp_rank_00_{rank:03d}"
        model = torch.load(place / "model_optim_rng.pt", weights_only=False)
        held, reached = torch.load(place / "distrib_optim.pt"), model["iteration"]
        assert torch.equal(model["model"]["own"], held["own"])
    state["shared"].copy_(held["shared"])
    state[f"own-{rank}"].copy_(held["own"])
    return int(reached)


def main() -> None:
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    attempt = f"{os.environ['SLURM_JOB_ID']}-{os.environ['HPCTL_RESTART_COUNT']}"
    meeting = f"{os.environ['HPCTL_CHECKPOINT_DIR']}/.meet-{attempt}"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    root = Path(os.environ["HPCTL_FAST_DIR"])
    state = {"shared": torch.zeros(64), f"own-{rank}": torch.full((1000,), float(rank))}
    step = 0
    resume = os.environ.get("HPCTL_RESUME_FROM")
    if resume:
        step = load(state, rank, Path(resume))
        assert torch.equal(state[f"own-{rank}"], torch.full((1000,), rank + float(step))), resume
        assert torch.equal(state["shared"], torch.full((64,), float(step))), resume
        print(f"rank {rank} resumed from {resume} at step {step}", flush=True)
    while step < STEPS:
        time.sleep(STEP_S)
        step += 1
        state["shared"] += 1
        state[f"own-{rank}"] += 1
        save(state, step, rank, ranks, root)
        if rank == 0:
            print(f"saved {step}", flush=True)
    print(f"rank {rank} done {float(state['shared'].sum())}", flush=True)
    # gloo aborts a rank whose neighbors leave before it.
    dist.barrier()
    dist.destroy_process_group()


main()
