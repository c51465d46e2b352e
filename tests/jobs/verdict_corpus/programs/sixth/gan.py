"""Train two networks against each other, from a resumed state to a final evaluation.

Collectives are checked as TORCH_DISTRIBUTED_DEBUG=DETAIL does, for which each waits in a monitored
barrier. The training has as many steps as
the case's step, so that the final phase follows it.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn

STEPS = max(int(job.CONFIG["step"]), 4)
DUE = int(job.CONFIG["step"])
"""The start and the end come at no step of the training: what goes wrong there is always due."""
FINAL = 400


def read_settings() -> dict[str, int]:
    """Return what rank 0 read from its command line."""
    settings: list[object] = [{"width": 32, "latent": 16} if job.RANK == 0 else None]
    dist.broadcast_object_list(settings, src=0)
    return settings[0]


def resume(generator: nn.Module) -> None:
    path = Path(f"generator-{job.RANK}.pt")
    torch.save(generator.state_dict(), path)
    if not job.replace_action("resume", DUE, generator):
        generator.load_state_dict(torch.load(path, weights_only=True))


def train_discriminator(step: int, fake: torch.Tensor, judge: nn.Module) -> torch.Tensor:
    real = torch.randn(8, 24)
    loss = judge(fake.detach()).mean() - judge(real).mean()
    job.replace_action("judge_loss", step, loss)
    return loss


def average_gradients(network: nn.Module) -> None:
    """Average by hand: DistributedDataParallel of torch 2.13 crashes on checked collectives."""
    for value in network.parameters():
        dist.all_reduce(value.grad)
        value.grad.div_(job.WORLD)


def share_scores(step: int, score: torch.Tensor) -> list[torch.Tensor]:
    scores = [torch.zeros(4) for _ in range(job.WORLD)]
    if not job.replace_action("scores_all", step, score):
        dist.all_gather(scores, score)
        dist.all_reduce(score)
    return scores


def evaluate_finally(generator: nn.Module, latent: int) -> None:
    """Sample many batches; the ranks sum a distance after each."""
    for number in range(FINAL):
        with torch.no_grad():
            distance = generator(torch.randn(16, latent)).square().mean().reshape(1)
        if number != 3 or not job.replace_action("final_distance", DUE, distance):
            dist.all_reduce(distance)
        job.finish_step(STEPS + number, distance.item())


def main() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    job.start()
    settings = read_settings()
    width, latent = settings["width"], settings["latent"]
    network = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 24))
    resume(network)
    generator = network
    judge = nn.Sequential(nn.Linear(24, width), nn.LeakyReLU(), nn.Linear(width, 1))
    rates = {"lr": 1e-4, "betas": (0.5, 0.999)}
    generator_steps = torch.optim.Adam(generator.parameters(), **rates)
    judge_steps = torch.optim.Adam(judge.parameters(), **rates)
    for step in range(STEPS + 1):
        fake = generator(torch.randn(8, latent))
        loss = train_discriminator(step, fake, judge)
        loss.backward()
        average_gradients(judge)
        judge_steps.step()
        judge_steps.zero_grad()
        (-judge(fake).mean()).backward()
        average_gradients(generator)
        generator_steps.step()
        generator_steps.zero_grad()
        share_scores(step, loss.detach().repeat(4))
        dist.barrier()
        job.finish_step(step, loss.item())
    evaluate_finally(generator, latent)


main()
