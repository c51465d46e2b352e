"""An order to a node's agent to reset GPUs."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from hpctl.vocabulary.identity import NodeGeneration

MOST_GPUS: Final = 32


_Word = Annotated[str, Meta(max_length=64)]


class GpuResetOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Reset the GPUs at these PCI addresses (all where none is named). `until`: Unix seconds."""

    recovery: _Word
    generation: NodeGeneration
    until: float
    devices: Annotated[tuple[_Word, ...], Meta(max_length=MOST_GPUS)] = ()
