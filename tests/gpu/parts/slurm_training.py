"""Training jobs under a real Slurm: restarts, fast saves, faults, and JAX's crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "Training under a real Slurm"
LIMIT_S = 160
DRY_LIMIT_S = 200
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu", "slurm", "torch"})

NODES, DRY_NODES = 18, 5


def run(context: Context) -> None:
    """Run one sandbox with every story in it: what was never measured comes first.

    Each group of stories ends before the next begins, so that sixteen cores are enough and the
    figures of one are not those of all. A dry run measures nothing and starts everything at once.
    """
    from tests.gpu.stories import tell_side_by_side
    from tests.gpu.training.fast_saves import plan_fast_saves
    from tests.gpu.training.faults import plan_faults
    from tests.gpu.training.jax_crashes import plan_jax
    from tests.gpu.training.reference import Reference
    from tests.gpu.training.restarts import plan_restarts
    from tests.gpu.training.settings import sizes
    from tests.gpu.training.slurm_bed import open_bed

    size = sizes(dry=context.dry)
    worlds = tuple(sorted({2, size.fault_ranks}))
    with (
        Reference(context, size, worlds) as reference,
        open_bed(context, DRY_NODES if context.dry else NODES) as bed,
    ):
        groups = [
            plan_restarts(bed, size, reference),
            plan_fast_saves(bed, size, reference) | plan_jax(bed, size),
            plan_faults(bed, size, reference),
        ]
        if context.dry:
            groups = [groups[0] | groups[1] | groups[2]]
        for group in groups:
            tell_side_by_side(context, group, at_once=2 if context.dry else len(group))
        for log in bed.sandbox.log_files():
            if "daemon" in log.name:
                context.keep(f"slurm/{log.name}", log.read_bytes()[-200_000:])
