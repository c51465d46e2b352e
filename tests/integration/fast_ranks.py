"""One rank of a job that saves by torch's DCP to its node's own disk, a second a step."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

STEPS = int(sys.argv[1])


def main() -> None:
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    attempt = f"{os.environ['SLURM_JOB_ID']}-{os.environ['HPCTL_RESTART_COUNT']}"
    meeting = f"{os.environ['HPCTL_CHECKPOINT_DIR']}/.meet-{attempt}"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    state = {"shared": torch.zeros(64), f"own-{rank}": torch.full((1000,), float(rank)), "step": 0}
    resume = os.environ.get("HPCTL_RESUME_FROM")
    if resume:
        dcp.load(state, checkpoint_id=resume)
        state["step"] = int(state["step"])
        assert torch.equal(state[f"own-{rank}"], torch.full((1000,), rank + float(state["step"])))
        assert torch.equal(state["shared"], torch.full((64,), float(state["step"])))
        print(f"rank {rank} resumed from {resume}", flush=True)
    for step in range(state["step"] + 1, STEPS + 1):
        time.sleep(0.5)
        state["shared"] += 1
        state[f"own-{rank}"] += 1
        state["step"] = step
        dcp.save(state, checkpoint_id=f"{os.environ['HPCTL_FAST_DIR']}/step-{step}")
        if rank == 0:
            print(f"saved {step}", flush=True)
    print(f"rank {rank} done {float(state['shared'].sum())}", flush=True)
    # gloo aborts a rank whose neighbors leave before it.
    dist.barrier()
    dist.destroy_process_group()


main()
