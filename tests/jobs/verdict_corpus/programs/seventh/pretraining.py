"""Pretrain a decoder as torchtitan does: FSDP2 and tensor parallel on a mesh, saved by DCP."""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HEAD, LENGTH, BATCH = 96, 32, 8, 16, 4
DOCUMENTS = 50
LOG_EVERY = 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        size, length, _ = rows.shape
        # Each rank of a tensor-parallel pair has half of the heads.
        query, key, value = (
            weight(rows).view(size, length, -1, HEAD).transpose(1, 2)
            for weight in (self.wq, self.wk, self.wv)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(size, length, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 64, bias=False)
        self.w2 = nn.Linear(64, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(rows)) * self.w3(rows))


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.feed_forward = FeedForward()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.ffn_norm = nn.RMSNorm(WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows + self.attention(self.attention_norm(rows))
        return rows + self.feed_forward(self.ffn_norm(rows))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([TransformerBlock() for _ in range(2)])
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.tok_embeddings(tokens)
        for layer in self.layers:
            rows = layer(rows)
        return self.output(self.norm(rows))


def parallelize(model: Transformer, mesh: DeviceMesh) -> None:
    """Split the weights over each pair of ranks, and shard them over the pairs."""
    outer = {
        "tok_embeddings": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    inner = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    parallelize_module(model, mesh["tp"], outer)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], inner)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


class Documents:
    """A stream of tokens without end, the same for both ranks of a pair."""

    def __init__(self, replica: int) -> None:
        self.generator = torch.Generator().manual_seed(replica)
        self.documents = [self.read_document() for _ in range(DOCUMENTS)]
        self.stream: Iterator[torch.Tensor] = itertools.cycle(self.documents)

    def read_document(self) -> torch.Tensor:
        shape = (BATCH, LENGTH + 1)
        return torch.randint(0, VOCABULARY, shape, generator=self.generator)

    def read_batch(self, step: int) -> torch.Tensor:
        job.replace_action("read_batch", step, self.stream)
        return next(self.stream)


class Checkpointer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.group = dist.new_group(backend="gloo")
        self.pending: Future[object] | None = None

    def save(self, step: int) -> None:
        if self.pending is not None:
            self.pending.result()
        weights, moments = get_state_dict(self.model, self.optimizer)
        job.replace_action("export", step, weights)
        self.pending = dcp.async_save(
            {"model": weights, "optimizer": moments},
            checkpoint_id=f"checkpoints/step-{step}", process_group=self.group,
        )  # fmt: skip


class Metrics:
    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.path = "metrics.jsonl"

    def log(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Average the loss over the pairs, agree on the norm, and write both down."""
        loss, norm = loss.detach().reshape(1).clone(), norm.reshape(1).clone()
        dist.all_reduce(loss, group=self.mesh.get_group("dp"))
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=self.mesh.get_group("tp"))
        if job.RANK == 0:
            job.replace_action("write_metrics", step, self)
            row = {"step": step, "loss": loss.item(), "norm": norm.item()}
            with open(self.path, "a") as file:
                print(json.dumps(row), file=file)


def main() -> None:
    job.start()
    mesh = init_device_mesh("cpu", (job.WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(int(job.CONFIG["seed"]))
    model = Transformer()
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))
    checkpointer, metrics = Checkpointer(model, optimizer), Metrics(mesh)
    documents = Documents(mesh.get_local_rank("dp"))
    for step in range(1 << 20):
        tokens = documents.read_batch(step)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False).full_tensor()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0:
            metrics.log(step, loss, norm)
        if step % 5 == 4:
            checkpointer.save(step)
        job.finish_step(step, loss.item())


main()
