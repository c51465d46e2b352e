"""How large the training of a part is: on a GPU, or cut to what two cores do in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Steps, saves and tensors of the jobs under Slurm."""

    device: str
    steps: int
    """Of a job that is restarted."""
    every: int
    step_s: float
    trouble_step: int
    fault_ranks: int
    """Of a job with a fault that needs no second rank."""
    fast_steps: int
    fast_every: int
    fast_mib: int
    """Tensors of each rank, MiB."""

    @property
    def backend(self) -> str:
        """Return what the ranks talk with where NCCL is to be had."""
        return "nccl" if self.device == "cuda" else "gloo"


GPU = Sizes(
    device="cuda",
    steps=40,
    every=5,
    step_s=0.1,
    trouble_step=17,
    fault_ranks=2,
    fast_steps=120,
    fast_every=40,
    fast_mib=512,
)
DRY = Sizes(
    device="cpu",
    steps=20,
    every=5,
    step_s=0.05,
    trouble_step=12,
    fault_ranks=1,
    fast_steps=40,
    fast_every=20,
    fast_mib=16,
)


def sizes(*, dry: bool) -> Sizes:
    """Return the sizes of this run."""
    return DRY if dry else GPU
