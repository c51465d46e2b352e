"""DeepSpeed's engine with ZeRO over two ranks: model states of rank 0, optimiser states of both."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"  # before the import, which reads it

import logging
import sys
from collections.abc import Iterable
from pathlib import Path

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # each child would import it
import torch

from tests.checkpoints.proof.library import Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_dcp import join
from tests.checkpoints.proof.writers.torch_fsdp import WIDTH, make_model

# Its collectives on shared memory would be compiled first, for minutes; gloo's do as well.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
deepspeed.utils.logger.setLevel(logging.ERROR)
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def engine_of(rank: int, ranks: int, meeting: Path):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    join(rank, ranks, meeting)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=CONFIG, dist_init_required=False
    )
    engine.backward(engine(torch.ones(1, WIDTH)).sum())
    engine.step()
    return engine


def held(engine) -> list[torch.Tensor]:
    """All that this rank saves: the weights, its part of the master copy and of the moments."""
    zero = engine.optimizer
    moments = [
        state[name]
        for state in zero.optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
        if name in state
    ]
    if not moments:
        raise Incomplete("the optimiser was not restored")
    return [*engine.module.parameters(), *zero.single_partition_of_fp32_groups, *moments]


def fill(engine, value: float) -> None:
    with torch.no_grad():
        for tensor in held(engine):
            tensor.fill_(value)


class Zero:
    ranks = 2

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        engine = engine_of(run.rank, self.ranks, run.meeting)
        for step in run.steps():
            fill(engine, run.value(step))
            engine.global_steps = step
            with run.saving():
                engine.save_checkpoint(str(run.root))

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        engine = engine_of(rank, self.ranks, meeting)
        fill(engine, -1.0)
        loaded, _ = engine.load_checkpoint(str(path.parent), tag=path.name)
        if loaded is None:
            raise Incomplete("DeepSpeed found nothing to load")
        return numbers(held(engine))
