"""One module a library: how it saves, and how it loads."""

import importlib
from importlib.util import find_spec

from msgspec import Struct

from tests.checkpoints.proof.library import Library


class Way(Struct, frozen=True):
    """How one kind of checkpoint is written: the class that does it, and what it imports."""

    made: str
    needs: tuple[str, ...]
    kills: int = 7
    """Of the 104 that `make test` does: fewer where each takes long."""
    stale: bool = False
    """Whether what marks a save as ended may be the save's before, over files of the next one: such
    a checkpoint may load, and nothing proves it."""
    declares: tuple[str, ...] = ()
    """The patterns of --checkpoint-files."""


WAYS = {
    "torch.save": Way("torch_file:TorchSave", ("torch",), kills=10),
    "torch.save, nanoGPT in place": Way(
        "torch_programs:NanoGpt", ("torch", "safetensors"), kills=5, stale=True
    ),
    "torch.save, legacy": Way("torch_programs:Legacy", ("torch", "safetensors"), kills=4),
    "torch.save, a file a rank": Way("torch_programs:RankFiles", ("torch", "safetensors"), kills=4),
    "safetensors and torch.save": Way(
        "torch_programs:Separate",
        ("torch", "safetensors"),
        kills=5,
        declares=("model_{step}.safetensors", "optim_{step}.pt"),
    ),
    "Accelerate": Way("accelerate_state:SaveState", ("torch", "accelerate"), kills=4),
    "DCP": Way("torch_dcp:OneRank", ("torch",), kills=8),
    "DCP async": Way("torch_dcp:Async", ("torch",), kills=8),
    "DCP in place": Way("torch_dcp:InPlace", ("torch",), kills=8, stale=True),
    "DCP FSDP, 2 ranks": Way("torch_fsdp:Sharded", ("torch",), kills=6),
    "Lightning": Way("lightning_trainer:Lightning", ("torch", "lightning"), kills=7),
    "HF Trainer": Way("hf:HFTrainer", ("torch", "transformers", "accelerate"), kills=6),
    "DeepSpeed, 2 ranks": Way("deepspeed_engine:Zero", ("torch", "deepspeed"), kills=6),
    "Megatron Core, 2 ranks": Way("megatron_core:TorchDist", ("torch", "megatron.core"), kills=6),
    "Megatron-LM legacy, 2 ranks": Way("megatron_legacy:MegatronLegacy", ("torch",), kills=8),
    "Composer": Way("composer_file:Composer", ("torch",), kills=5),
    "torchtune": Way("torchtune_hf:Torchtune", ("torch", "safetensors"), kills=5),
    "Orbax": Way("orbax_jax:Managed", ("orbax.checkpoint",), kills=5),
    "Orbax zarr, in place": Way("orbax_jax:InPlace", ("orbax.checkpoint",), kills=5),
}
ENGINES = ("deepspeed", "megatron.core", "orbax.checkpoint")
"""What may fail to install: without them their checkpoints are not tested."""


def missing(name: str) -> list[str]:
    """What a way needs and is not installed."""
    return [need for need in WAYS[name].needs if not _is_there(need)]


def make(name: str) -> Library:
    """The library of that name, imported. Raises ImportError where it is not installed."""
    module, made = WAYS[name].made.split(":")
    library: Library = getattr(importlib.import_module(f"{__name__}.{module}"), made)()
    return library


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
