"""Checkpoints of CUDA tensors: killed in a save and in a step, judged, loaded, resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.stories import Story

TITLE = "Checkpoints of runs that are killed"
LIMIT_S = 85
DRY_LIMIT_S = 120
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "torch"})

AT_ONCE, DRY_AT_ONCE = 6, 2
DRY_FORMATS = ("inplace", "dcp")
LIBRARIES = ("HF Trainer", "Lightning", "Orbax")
KILLS = 4
"""Of each library's writers; tests/checkpoints does the same on CPUs, many times more often."""


def run(context: Context) -> None:
    """Kill runs of every format, then the writers of libraries that have formats of their own."""
    from functools import partial

    from tests.gpu.stories import Story, leave_out, tell_side_by_side
    from tests.gpu.training.kill_chain import ChainSizes, forms, run_undisturbed
    from tests.gpu.training.ranks import QUIET
    from tests.gpu.training.warm import WarmPrograms

    if context.dry:
        sizes = ChainSizes(device="cpu", steps=20, every=4, ballast_mib=16, limit_s=60.0)
    else:
        sizes = ChainSizes(device="cuda", steps=60, every=10, ballast_mib=256, limit_s=40.0)
    rounds: dict[str, Any] = {}
    with WarmPrograms({**context.environment, **QUIET}) as programs:
        weights = run_undisturbed(context, programs, sizes)
        stories = {}
        for form in forms():
            story = Story(
                f"checkpoint/{form.name}",
                "no damaged one is called whole, the newest that loads is chosen, the run resumes"
                " and ends with the same bits",
            )
            if context.dry and form.name not in DRY_FORMATS:
                stories[story] = leave_out
                continue
            stories[story] = partial(
                play,
                context=context,
                programs=programs,
                form=form,
                sizes=sizes,
                weights=weights,
                rounds=rounds,
            )
        for library in LIBRARIES:
            story = Story(
                f"checkpoint/{library}",
                f"of {KILLS} killed writers, no damaged one is called whole",
            )
            kill = partial(kill_writers, context=context, library=library)
            stories[story] = leave_out if context.dry else kill
        tell_side_by_side(context, stories, DRY_AT_ONCE if context.dry else AT_ONCE)
    context.keep_json("checkpoints-killed.json", rounds)


def play(story: Story, *, rounds: dict[str, Any], weights: str, **given: Any) -> None:
    """Run one format's chain."""
    from tests.gpu.training.kill_chain import KillChain

    chain = KillChain(**given)
    try:
        chain.run(story, weights)
    finally:
        rounds[story.name] = chain.rounds


def kill_writers(story: Story, *, context: Context, library: str) -> None:
    """Have the harness of tests/checkpoints kill a library's writers, with tensors on the GPU."""
    import os

    from tests.checkpoints.proof.killing import Kills
    from tests.checkpoints.proof.template import Template
    from tests.checkpoints.proof.writers import missing

    if lacking := missing(library):
        story.skip(f"no {', '.join(lacking)}")
        return
    os.environ["HPCTL_TEST_DEVICE"] = "cuda"
    # Libraries ask at import whether there is a GPU. CUDA's own answer would make it useless in the
    # processes that are forked afterwards; the driver's does not.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    place = context.scratch / library.replace(" ", "-")
    with Template(library, place) as template:
        count = Kills(template, place, seed=1).run(KILLS)
    story.figures = {"kills": count.kills, "in_a_save": count.within, "whole": count.whole}
    story.facts = {"false_whole": count.false_whole, "false_passed": count.false_passed}
    checks = {"nothing damaged is called whole": not count.false_whole}
    story.conclude(checks, f"{count.kills} kills, {count.within} of them in a save")
