"""Train a policy by reinforcement: rank 0 sends weights out, all ranks gather what they played."""

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Rollout:
    states: torch.Tensor
    rewards: list[float] = field(default_factory=list)


class Learner:
    def __init__(self) -> None:
        self.policy = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.optimizer = torch.optim.RMSprop(self.policy.parameters())
        self.replay: list[Rollout] = []

    def synchronize_policy(self, step: int) -> None:
        flat = nn.utils.parameters_to_vector(self.policy.parameters()).detach()
        if not job.replace_action("synchronize", step, flat):
            dist.broadcast(flat, src=0)
        nn.utils.vector_to_parameters(flat, self.policy.parameters())

    def play(self, step: int) -> Rollout:
        rollout = Rollout(torch.randn(20, 16))
        job.replace_action("play", step, rollout.states)
        with torch.no_grad():
            rollout.rewards = self.policy(rollout.states).amax(1).tolist()
        return rollout

    def learn(self, step: int, rollout: Rollout) -> torch.Tensor:
        loss = (self.policy(rollout.states).amax(1) - torch.tensor(rollout.rewards) - 1).square()
        loss.mean().backward()
        for value in self.policy.parameters():
            if not job.replace_action("learn", step, value.grad):
                dist.all_reduce(value.grad, op=dist.ReduceOp.SUM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.mean().detach()

    def share_rewards(self, step: int, rollout: Rollout) -> float:
        every: list[list[float] | None] = [None] * job.WORLD
        if not job.replace_action("rewards", step, rollout):
            dist.all_gather_object(every, rollout.rewards)
        return sum(map(sum, filter(None, every)))

    def archive(self, step: int) -> None:
        if job.CONFIG["rank"] == job.RANK and not job.replace_action("archive", step, self.replay):
            with Path("checkpoints", f"replay.{step}.pkl").open("wb") as file:
                for rollout in self.replay:
                    pickle.dump([rollout.states.numpy(), rollout.rewards], file)
        self.replay.clear()
        dist.barrier()


def main() -> None:
    job.start()
    learner = Learner()
    for step in range(1 << 20):
        learner.synchronize_policy(step)
        rollout = learner.play(step)
        learner.learn(step, rollout)
        total = learner.share_rewards(step, rollout)
        learner.replay += [rollout] * 120
        if step % 4 == 3:
            learner.archive(step)
        job.finish_step(step, total)


main()
