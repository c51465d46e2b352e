"""Hangs with CUDA tensors: `hpctl stacks` names the rank that the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.stories import Story

TITLE = "Hangs: whom hpctl stacks names"
LIMIT_S = 80
DRY_LIMIT_S = 100
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "torch", "py-spy"})

KINDS = {
    "gil_sleep": 3,
    "gil_spin": 3,
    "kernel": 3,
    "item": 3,
    "backward": 3,
    "order": 3,
    "skip": 2,
}
"""Each way to hang, and among how many ranks."""
DRY_KINDS = ("skip",)
DRY_WORLD = 2
FIRST_JOB = 7700
SETTLES_S = 1.5
AT_ONCE, DRY_AT_ONCE = 3, 2


def run(context: Context) -> None:
    """Let a rank hang in each way over gloo, and over NCCL where that is to be had."""
    from functools import partial

    from tests.gpu.stories import Story, tell_side_by_side

    stories = {}
    number = FIRST_JOB
    for backend in ("gloo", "nccl"):
        for kind, world in KINDS.items():
            if backend == "nccl" and kind != "kernel":
                continue  # the others are stories of the flight recorder
            number += 1
            story = Story(f"hang/{backend}-{kind}", "the culprit is named, and nobody else")
            stories[story] = partial(
                hang,
                context=context,
                kind=kind,
                backend=backend,
                world=DRY_WORLD if context.dry else world,
                job=number,
            )
    tell_side_by_side(context, stories, DRY_AT_ONCE if context.dry else AT_ONCE)


def hang(story: Story, *, context: Context, kind: str, backend: str, world: int, job: int) -> None:
    """Start the ranks, wait until they hang, and look at them without native frames and with."""
    import time

    from tests.gpu.training.collectives import find_culprit
    from tests.gpu.training.looks import look_at_stacks, names_only, wait_until_hung
    from tests.gpu.training.ranks import COLLECTIVES, kill_all, start_ranks

    if context.dry and backend == "nccl":
        story.skip("needs a GPU")
        return
    if context.dry and kind not in DRY_KINDS:
        story.skip("left out of a dry run for its time")
        return
    device = "cpu" if context.dry else "cuda"
    folder = context.scratch / f"{backend}-{kind}"
    culprit = find_culprit(world)
    ranks = start_ranks(
        context,
        folder,
        world,
        [COLLECTIVES, kind, backend, folder, device],
        job=job,
        environment={"NCCL_HOSTID": "host{rank}"},
    )
    try:
        why = wait_until_hung(folder, ranks, culprit, min(60.0, context.left_s() - 15.0))
        if why:
            story.held, story.observed = False, why
            return
        time.sleep(SETTLES_S)
        quick = look_at_stacks(job, world, native=False)
        full = look_at_stacks(job, world, native=True)
    finally:
        kill_all(ranks)
    story.facts = {"culprit": culprit, "quick": quick, "with_native_frames": full}
    story.figures = {"quick_s": quick["took_s"], "with_native_frames_s": full["took_s"]}
    checks = {
        "named without native frames": names_only(quick, culprit),
        "named with native frames": names_only(full, culprit),
    }
    story.conclude(checks, full["text"])
