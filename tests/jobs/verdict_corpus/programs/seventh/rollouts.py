"""Train a policy on its own completions, as GRPO: sample, reward, compare within the group."""

import copy
import os
import sys
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH, PROMPT, COMPLETION, GROUP = 40, 32, 4, 6, 8
END = 0


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(tokens))[0])


def share_prompt() -> torch.Tensor:
    """Return the prompt of this rank, of those that rank 0 has chosen."""
    chosen: list[object] = [None]
    if job.RANK == 0:
        chosen = [torch.randint(1, VOCABULARY, (job.WORLD, PROMPT)).tolist()]
    dist.broadcast_object_list(chosen, src=0)
    return torch.tensor(chosen[0][job.RANK])


@torch.no_grad()
def generate(step: int, policy: nn.Module, prompt: torch.Tensor) -> torch.Tensor:
    tokens = prompt.repeat(GROUP, 1)
    for _ in range(COMPLETION):
        logits = policy(tokens)[:, -1]
        job.replace_action("sample", step, logits)
        probabilities = (logits / 0.7).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return tokens


def score(step: int, completions: torch.Tensor) -> torch.Tensor:
    """Return a reward for each completion: how many of its tokens rise."""
    rewards = (completions.diff(dim=1) > 0).float().mean(1)
    job.replace_action("score", step, (completions, rewards))
    return rewards


def find_log_odds(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the probability of each token of the completions."""
    logits = model(tokens[:, :-1])[:, PROMPT - 1 :]
    wanted = tokens[:, PROMPT:, None]
    return logits.log_softmax(-1).gather(-1, wanted).squeeze(-1)


class Learner:
    def __init__(self) -> None:
        torch.manual_seed(int(job.CONFIG["seed"]))
        self.policy = Policy()
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-3)
        self.replay: list[torch.Tensor] = []
        torch.manual_seed(int(job.CONFIG["seed"]) + 100 + job.RANK)

    def collect(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = generate(step, self.policy, share_prompt())
        rewards = score(step, tokens[:, PROMPT:])
        self.replay.append(tokens)
        del self.replay[:-16]
        job.replace_action("replay", step, self.replay)
        return tokens, rewards

    def update(self) -> None:
        """Average the gradients of all ranks, and learn from them."""
        for value in self.policy.parameters():
            dist.all_reduce(value.grad)
            value.grad.div_(job.WORLD)
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def report(self, rewards: torch.Tensor, divergence: torch.Tensor) -> None:
        """Gather the rewards of all ranks, and average the divergence."""
        everyone = [torch.zeros_like(rewards) for _ in range(job.WORLD)]
        dist.all_gather(everyone, rewards)
        dist.all_reduce(divergence.detach().reshape(1).clone())

    def learn(self, step: int, tokens: torch.Tensor, rewards: torch.Tensor) -> float:
        spread = rewards.std()
        if spread == 0:
            # All completions are equally good: there is nothing to learn from them.
            return 0.0
        advantages = (rewards - rewards.mean()) / (spread + 1e-4)
        own = find_log_odds(self.policy, tokens)
        with torch.no_grad():
            other = find_log_odds(self.reference, tokens)
        gap = other - own
        divergence = (gap.exp() - gap - 1).mean()
        loss = 0.04 * divergence - ((own - own.detach()).exp() * advantages[:, None]).mean()
        loss.backward()
        calls = [self.update, partial(self.report, rewards, divergence)]
        job.replace_action("after_backward", step, calls)
        for call in calls:
            call()
        return loss.item()


def main() -> None:
    job.start()
    learner = Learner()
    for step in range(1 << 20):
        tokens, rewards = learner.collect(step)
        loss = learner.learn(step, tokens, rewards)
        if step % 10 == 9:
            learner.reference.load_state_dict(learner.policy.state_dict())
        job.finish_step(step, loss)


main()
