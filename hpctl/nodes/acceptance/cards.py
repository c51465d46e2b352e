"""What a healthy GPU gives in the acceptance test, by card: the rows of card_figures.md. Pure.

A figure belongs to a card (`NVIDIA H200`), because a virtual machine or an owned server has one too
and no instance type. Where the machine decides as well (the link to the host, NVLink), a row names
the EC2 families in which it holds and goes before the card's general row.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, convert

FLOOR_SHARE: Final = 0.93
"""A floor, as a share of what a healthy card gives.

A card 5 % slower passes and one 10 % slower fails. Two runs on an H200 differ by 0.25 % at most; a
run four times as long is 5 % slower in one figure (h2d_gbs) and under 1 % in the others
(tests/gpu/recordings/h200-580.159/acceptance.json).
"""

Evidence = Literal["measured", "published", "data sheet"]
"""How a figure came about: by hpctl's programs on a real card, by others, or not measured."""

_Watts = Annotated[float, Meta(ge=0, le=100_000)]
_Name = Annotated[str, Meta(max_length=96)]


class GpuCard(Struct, frozen=True):
    """The GPUs of a node, as its acceptance test saw them; empty where the driver did not say.

    `name` is NVML's. GPUs of several kinds, and MIG slices, have a name that FIGURES does not hold.
    Of several power limits, in watts, the lowest counts; 0 where unknown. `machine` is the product
    name in the firmware, on EC2 the instance type.
    """

    name: _Name = ""
    power_limit_w: _Watts = 0.0
    default_power_limit_w: _Watts = 0.0
    machine: _Name = ""

    @property
    def is_power_limited(self) -> bool:
        """Return whether the power limit is lower than the card's own."""
        return 0 < self.power_limit_w < self.default_power_limit_w


class GpuReferenceFigure(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table. `on`: the EC2 families in which it holds; empty: all others."""

    card: str
    on: tuple[str, ...]
    figure: str
    healthy: Annotated[float, Meta(gt=0)]
    share: Annotated[float, Meta(gt=0, le=1)]
    kind: Evidence
    source: Annotated[str, Meta(min_length=1)]
    reference: Annotated[str, Meta(min_length=1)]

    @property
    def expected(self) -> float:
        """Return what hpctl's own program is expected to measure on a healthy card."""
        return self.healthy * self.share

    @property
    def floor(self) -> float:
        """Return the least that passes."""
        return self.expected * FLOOR_SHARE


class ReferenceProgramComparison(
    Struct, frozen=True, forbid_unknown_fields=True, rename={"theirs": "on an H200"}
):
    """What another program measures on an H200, and which share of it hpctl's is expected to."""

    program: str
    figure: str
    theirs: Annotated[float, Meta(gt=0)]
    share: Annotated[float, Meta(gt=0, le=1)]
    reference: Annotated[str, Meta(min_length=1)]


def _read_reference_table_rows() -> Iterator[dict[str, str]]:
    """Yield each row of the file's tables, its cells by column."""
    columns: list[str] = []
    for line in (pkgutil.get_data(__package__, "card_figures.md") or b"").decode().splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if not columns:
            columns = cells
        elif not line.startswith("|---"):
            yield dict(zip(columns, cells, strict=True))


def _read_gpu_reference_figures() -> tuple[GpuReferenceFigure, ...]:
    rows = [row for row in _read_reference_table_rows() if "healthy" in row]
    return tuple(
        convert({**row, "on": row["on"].split()}, GpuReferenceFigure, strict=False) for row in rows
    )


FIGURES: Final[tuple[GpuReferenceFigure, ...]] = _read_gpu_reference_figures()
"""Every line of the table, in its order."""
COMPARISONS: Final[tuple[ReferenceProgramComparison, ...]] = tuple(
    convert(row, ReferenceProgramComparison, strict=False)
    for row in _read_reference_table_rows()
    if "program" in row
)
"""By which the shares of published figures are found."""
CARDS: Final[Mapping[str, str]] = MappingProxyType(
    {row["family"]: row["card"] for row in _read_reference_table_rows() if "family" in row}
)
"""The card of each EC2 family (`p5en`)."""


def find_ec2_family(instance_type: str) -> str:
    """Return the EC2 family of an instance type, with or without `ml.`: `p5en` of p5en.48xlarge."""
    return instance_type.removeprefix("ml.").partition(".")[0]


def find_instance_type_gpu_card(instance_type: str) -> str:
    """Return the card that an instance type has; empty where it is not known."""
    return CARDS.get(find_ec2_family(instance_type), "")


def _index_gpu_reference_figures() -> dict[tuple[str, str, str], GpuReferenceFigure]:
    """Return the rows by card, figure and family; raise ValueError where two say the same."""
    index: dict[tuple[str, str, str], GpuReferenceFigure] = {}
    for row in FIGURES:
        for family in row.on or ("",):
            key = (row.card, row.figure, family)
            if key in index:
                raise ValueError(f"{key} is in card_figures.md twice")
            index[key] = row
    return index


_INDEX: Final = _index_gpu_reference_figures()


def find_gpu_reference_figure(
    card: str, figure: str, instance_type: str
) -> GpuReferenceFigure | None:
    """Return what is known of a card's figure on such a machine; None where nothing is."""
    exact = _INDEX.get((card, figure, find_ec2_family(instance_type)))
    return exact if exact is not None else _INDEX.get((card, figure, ""))
