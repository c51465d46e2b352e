"""Crashes of JAX under Slurm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tests.gpu.stories import Story
from tests.gpu.training.ranks import HERE

if TYPE_CHECKING:
    from tests.gpu.training.settings import Sizes
    from tests.gpu.training.slurm_bed import Bed

PROGRAM = HERE / "jax_program.py"
KINDS = {"oom": ("gpu_memory", "host_memory"), "raise": ("crash",)}


def plan_jax(bed: Bed, sizes: Sizes) -> dict[Story, Callable[[Story], None]]:
    """Return the stories and what runs each."""
    stories: dict[Story, Callable[[Story], None]] = {}
    for kind, right in KINDS.items():
        wanted = right[:1] if sizes.device == "cuda" else right
        story = Story(f"jax/{kind}", f"JAX ends by {kind}: called {' or '.join(wanted)}, run again")
        if find_spec("jax") is None:
            stories[story] = lack_jax
        else:
            stories[story] = partial(act_jax, bed=bed, sizes=sizes, kind=kind, right=wanted)
    return stories


def lack_jax(story: Story) -> None:
    """Conclude that JAX is not here."""
    story.skip("no JAX")


def act_jax(story: Story, *, bed: Bed, sizes: Sizes, kind: str, right: tuple[str, ...]) -> None:
    """Submit the job, whose first attempt fails, and wait for its second."""
    name = story.name.replace("/", "-")
    folder = bed.context.scratch / name
    job = bed.submit(name, [PROGRAM, folder, sizes.device, kind], ranks=1)
    done = folder / "done"
    try:
        job.wait(done.exists, "second attempt", 90.0)
    finally:
        bed.context.keep(f"slurm/{name}.log", job.log())
    treated = job.treated()
    kinds = [str(row["trouble"]["kind"]) for row in treated]
    story.facts = {"treated": treated, "decisions": job.decisions()}
    checks = {"the kind of trouble": bool(kinds) and kinds[0] in right}
    story.conclude(checks, "; ".join(job.decisions()) or "hpctl run said nothing")
