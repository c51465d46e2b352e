"""What a job asks for and a node has: CPUs, memory, GPUs."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Tres(Struct, frozen=True):
    """CPUs, memory in MiB, and generic resources by name (`gpu`). Zero: none, or not counted."""

    cpus: int = 0
    memory: int = 0
    gres: tuple[tuple[str, int], ...] = ()


NOTHING_KNOWN: Final = Tres()


class JobResourceRequest(Struct, frozen=True):
    """What a pending job asks for; of an array, what each of its `tasks` that wait asks for.

    `nodes` at least, `each` on every one of them, `total` on all together. `whole`: no other job
    may be on its nodes. `features` is Slurm's expression. `named`: it wants certain nodes.
    """

    nodes: int = 1
    tasks: int = 1
    each: Tres = NOTHING_KNOWN
    total: Tres = NOTHING_KNOWN
    whole: bool = False
    features: str = ""
    named: bool = False
