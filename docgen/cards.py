"""docs/cards.md: the floors of the acceptance test by card, from
hpctl/nodes/acceptance/card_figures.md."""

from hpctl.nodes.acceptance.cards import (
    CARDS,
    COMPARISONS,
    FIGURES,
    FLOOR_SHARE,
    GpuReferenceFigure,
    find_gpu_reference_figure,
)

HEAD = """# Floors of GPUs

The [acceptance test](acceptance.md) measures every GPU (`gpu.speed`, `gpu.burn`); of several GPUs
the slowest counts. A figure under the **floor** of its card fails the test, on the first node of a
cluster too. The floor is {share:.0f} % of what a healthy card is expected to give: a card that is
5 % slower passes, one that is 10 % slower than hpctl's own measurement fails. Once five nodes of
one instance type and card have passed, their median sets a narrower limit above the floor.

**Expected** is the known figure times a share, by where the figure is from:

| from | how it came about | share |
|---|---|---|
{evidence}

A card that is not listed has no floor until five nodes were tested. Neither have GPUs of several
kinds in one node, and GPUs with MIG slices. `hpctl acceptance baseline` shows which limit counts.

## What a figure depends on

- **Power limit.** GEMM on a data-center GPU is limited by power. A card whose limit was lowered
  (`nvidia-smi -pl`, or by the power management of the rack) is slower and healthy; the message then
  names both limits. Set `acceptance.floors` for such a fleet.
- **Temperature.** A hot card lowers its clocks. All GPUs of a node multiply at the same time, and
  `gpu.burn` does so for a minute: warm air or a hot neighbor shows there first.
- **Several GPUs.** The H200 was measured alone in its machine. Differences of
  [5 % between the GPUs of a node](https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md)
  are reported, and the slowest counts.
- **ECC.** HBM loses no bandwidth to ECC. On GDDR6 (L40S, L4, A10G) ECC takes a part of it; the
  floors allow for that.
- **Host.** Copies to and from the host depend on the PCIe link of the machine and on the NUMA node
  of the memory (the test takes the GPU's own). Where the host of an EC2 family is not known to be
  as fast, the family has a separate line.
- **Software.** The GEMM is torch's, and another cuBLAS is a little faster or slower. The figures of
  the H200 are of torch 2.11, CUDA 13.0 and driver 580.159.

## Other floors

A site sets its own in `hpctl.yaml`, by card or by instance type (which goes first); 0 is no floor:

```yaml
acceptance:
  floors:
    NVIDIA H200: {{bf16_tflops: 600}}
    p5en.48xlarge: {{h2d_gbs: 0, read_gbs: 20}}
```

Any figure of any test can have one, also those of the site's own tests. For a figure that is better
low (`_us`, `_ms`, `_s`) it is the most that passes.
"""

EVIDENCE = {
    "measured": ("by hpctl's own test on a real card", "1"),
    "published": (
        "by others, with other programs",
        "by [comparison on an H200](#other-programs); less where the source says why",
    ),
    "data sheet": ("no measurement was found", "low: the floor finds only what is broken"),
}

COMPARED = """## Other programs

hpctl's test and others' programs on H200s. The share is the quotient times 0.93, because it rests
on one card; for copies to and from the host it is 0.93 at most, because hosts differ. Short runs of
torch.matmul, and mamf-finder, are probably over before the power limit lowers the clocks.
"""
FOOT = """A result that names no card is judged by the instance type: {families}.
"""


def page() -> str:
    """Return the page's text."""
    evidence = [f"| {kind} | {how} | {share} |" for kind, (how, share) in EVIDENCE.items()]
    parts = [HEAD.format(share=100 * FLOOR_SHARE, evidence="\n".join(evidence))]
    for card in dict.fromkeys(row.card for row in FIGURES):
        rows = [row for row in FIGURES if row.card == card]
        parts += [f"## {card}", "", *_make_table(rows), ""]
    families = ", ".join(f"{family} ({card})" for family, card in CARDS.items())
    parts += [COMPARED, *_compare_cards(), ""]
    return "\n".join([*parts, FOOT.format(families=families)])


def _compare_cards() -> list[str]:
    lines = [
        "| program | figure | its figure | hpctl's | quotient | share |",
        "|---|---|---|---|---|---|",
    ]
    for row in COMPARISONS:
        own = find_gpu_reference_figure("NVIDIA H200", row.figure, "")
        if own is None:
            raise ValueError(f"no H200 was measured for {row.figure}")
        lines.append(
            f"| [{row.program}]({row.reference}) | {row.figure} | {row.theirs:g} "
            f"| {own.healthy:g} | {own.healthy / row.theirs:.2f} | {row.share:g} |"
        )
    return lines


def _make_table(rows: list[GpuReferenceFigure]) -> list[str]:
    lines = [
        "| figure | on | floor | expected | figure known | share | from | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row.figure} | {_list_machines(row)} | {row.floor:.4g} | {row.expected:.4g} "
        f"| {row.healthy:g} | {row.share:g} | {row.kind} | {_link_source(row)} |"
        for row in rows
    ]


def _list_machines(row: GpuReferenceFigure) -> str:
    return " ".join(row.on) or "any"


def _link_source(row: GpuReferenceFigure) -> str:
    if row.reference.startswith("https://"):
        return f"[{row.source}]({row.reference})"
    return f"{row.source} (`{row.reference}`)"
