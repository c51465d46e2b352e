"""One rank of a job that saves to its node's own disk: `fast_ranks.py STEPS [FORMAT [SECONDS]]`.

FORMAT: dcp (torch's own writer), deepspeed or megatron (their files in their order, by torch.save).
What is loaded must be what an undisturbed run has at that step, to the bit. $FAST_MARKS names a
file that gets a line for each start of a load or save and for each save that all ranks ended.
After step $FAST_STAY_AT the first run does not go on: it waits to be ended.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

NAMES = {"dcp": "step-{}", "deepspeed": "global_step{}", "megatron": "iter_{:07d}"}
SIZE = 100_000
State = dict[str, torch.Tensor]


def first(rank: int) -> State:
    """What a rank begins with: `shared` is the same on all."""
    own = torch.full((SIZE,), float(rank))
    return {"shared": torch.zeros(64), f"own-{rank}": own, f"momentum-{rank}": torch.zeros(SIZE)}


def train(state: State, rank: int, step: int) -> None:
    """A step of SGD with momentum on gradients that the step and the rank alone decide."""
    chance = torch.Generator().manual_seed(1_000_003 * step + rank)
    own, momentum = state[f"own-{rank}"], state[f"momentum-{rank}"]
    momentum.mul_(0.9).add_(torch.randn(SIZE, generator=chance) + 0.01 * own)
    own.sub_(0.05 * momentum)
    state["shared"] += 1


def digest(state: State) -> str:
    """Of all bytes."""
    whole = hashlib.sha256()
    for name in sorted(state):
        whole.update(state[name].numpy().tobytes())
    return whole.hexdigest()


class Rank:
    """One process of the job."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.rank, self.ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        self.attempt = os.environ["HPCTL_RESTART_COUNT"]
        meeting = f".meet-{os.environ['SLURM_JOB_ID']}-{self.attempt}"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['HPCTL_CHECKPOINT_DIR']}/{meeting}",
            rank=self.rank,
            world_size=self.ranks,
        )
        self.root = Path(os.environ["HPCTL_FAST_DIR"])
        self.state = first(self.rank)

    def mark(self, what: str, step: int) -> None:
        """Known outside at once, whatever becomes of this node and of the job's log."""
        if self.rank == 0 and (path := os.environ.get("FAST_MARKS")):
            with open(path, "a") as file:
                file.write(f"{self.attempt} {what} {step}\n")

    def save(self, step: int) -> None:
        place = self.root / NAMES[self.form].format(step)
        if self.form == "dcp":
            dcp.save({**self.state, "step": step}, checkpoint_id=str(place))
            return
        if self.form == "deepspeed":
            place.mkdir(exist_ok=True)
            sizes = {"dp_world_size": self.ranks, "mp_world_size": 1, "global_steps": step}
            if self.rank == 0:
                model = {**sizes, "optimizer": None, "module": {"shared": self.state["shared"]}}
                torch.save(model, place / "mp_rank_00_model_states.pt")
            optimizer = place / f"zero_pp_rank_{self.rank}_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": self.state}, optimizer)
        else:
            sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": self.ranks}
            args = argparse.Namespace(**sizes, use_distributed_optimizer=True)
            place /= f"mp_rank_00_{self.rank:03d}"
            place.mkdir(parents=True, exist_ok=True)
            torch.save(self.state, place / "distrib_optim.pt")
            model = {"args": args, "iteration": step, "model": {"shared": self.state["shared"]}}
            torch.save(model, place / "model_optim_rng.pt")
        dist.barrier()
        if self.rank == 0:
            pointer = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt"}
            name = NAMES[self.form].format(step) if self.form == "deepspeed" else str(step)
            (self.root / pointer[self.form]).write_text(name)

    def load(self, place: Path) -> int:
        if self.form == "dcp":
            step: dict[str, int] = {"step": 0}
            dcp.load(both := {**self.state, **step}, checkpoint_id=str(place))
            return int(both["step"])
        if self.form == "deepspeed":
            model = torch.load(place / "mp_rank_00_model_states.pt", weights_only=False)
            own = torch.load(place / f"zero_pp_rank_{self.rank}_mp_rank_00_optim_states.pt")
            held, shared, reached = own["optimizer_state_dict"], "module", model["global_steps"]
        else:
            place /= f"mp_rank_00_{self.rank:03d}"
            model = torch.load(place / "model_optim_rng.pt", weights_only=False)
            held, shared = torch.load(place / "distrib_optim.pt"), "model"
            reached = model["iteration"]
        assert torch.equal(model[shared]["shared"], held["shared"])
        for name, tensor in self.state.items():
            tensor.copy_(held[name])
        return int(reached)

    def resume(self, place: str) -> int:
        """The step that was loaded, once it is proved to be that step's of an undisturbed run."""
        try:
            step = self.load(Path(place))
        except Exception as error:
            print(f"rank {self.rank} cannot load {place}: {error!r}", flush=True)
            raise
        found = digest(self.state)
        told = f"rank {self.rank} resumed from {place} at step {step}"
        print(f"{told} attempt {self.attempt} sha256 {found}", flush=True)
        undisturbed = first(self.rank)
        for number in range(step):
            train(undisturbed, self.rank, number + 1)
        assert found == digest(undisturbed), f"{place} holds other weights than step {step}"
        return step


def main() -> None:
    steps = int(sys.argv[1])
    form = sys.argv[2] if len(sys.argv) > 2 else "dcp"
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
    job = Rank(form)
    place = os.environ.get("HPCTL_RESUME_FROM")
    step = job.resume(place) if place else 0
    job.mark("runs", step)
    stay_at = int(os.environ.get("FAST_STAY_AT", "-1"))
    while step < steps:
        while job.attempt == "0" and step == stay_at:
            time.sleep(0.1)
        time.sleep(pause)
        step += 1
        train(job.state, job.rank, step)
        job.mark("saves", step)
        job.save(step)
        job.mark("saved", step)
        if job.rank == 0:
            print(f"saved {step}", flush=True)
    print(f"rank {job.rank} done {float(job.state['shared'].sum())}", flush=True)
    # gloo aborts a rank whose neighbors leave before it.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
