"""Fast saves under Slurm: a node is lost, and what it has saved comes from its peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.gpu.boxes import wait_for
from tests.gpu.stories import Story, leave_out
from tests.gpu.training.measures import (
    find_last,
    find_weights,
    has_loaded_what_was_saved,
    measure_recovery,
    median_ms,
)
from tests.gpu.training.slurm_bed import STARTS_S

if TYPE_CHECKING:
    from tests.gpu.training.reference import Reference
    from tests.gpu.training.settings import Sizes
    from tests.gpu.training.slurm_bed import Bed, Job

RANKS = 2
PLACES = {"disk": "local", "ram": "mem"}
COPYING_STEPS = 15
"""Steps at full speed after the first save, whose durations show what the copying costs."""


def plan_fast_saves(
    bed: Bed, sizes: Sizes, reference: Reference
) -> dict[Story, Callable[[Story], None]]:
    """Return the stories and what runs each."""
    stories: dict[Story, Callable[[Story], None]] = {}
    for place in PLACES:
        story = Story(
            f"fast-saves/{place}",
            f"a node that saved to its own {place} is lost: the job goes on from the newest step"
            " that its peer holds, with the same bytes",
        )
        if not bed.has_disks:
            stories[story] = lack_mounts
        elif bed.context.dry and place == "ram":
            stories[story] = leave_out
        else:
            stories[story] = partial(
                act_fast_saves, bed=bed, sizes=sizes, reference=reference, place=place
            )
    return stories


def lack_mounts(story: Story) -> None:
    """Conclude that "nodes" of this machine cannot have disks of their own."""
    story.skip("mount namespaces are not permitted here, so that all nodes would share one disk")


def act_fast_saves(
    story: Story, *, bed: Bed, sizes: Sizes, reference: Reference, place: str
) -> None:
    """Train, save, wait for the copies, lose a node, and compare what was restored."""
    name = story.name.replace("/", "-")
    directory = bed.sandbox.spec.layout.disk / place
    size_mib = 8 * sizes.fast_mib
    words = ["--backend", "gloo", "--format", "dcp", "--ballast-mib", sizes.fast_mib]
    words += ["--steps", sizes.fast_steps, "--every", sizes.fast_every, "--step-s", "0.05"]
    words += ["--patient-from", sizes.fast_every + COPYING_STEPS]
    options = ["--spares 1", f"--fast-dir {PLACES[place]}:{directory}/run", "--fast-flush 1h"]
    if place == "ram":
        options.append(f"--fast-size {size_mib}M")
    job = bed.submit_training(name, *words, ranks=RANKS, device=sizes.device, options=options)
    try:
        follow_copies(story, job, sizes)
        node = str(find_last(job.marks(1), "start")["node"])  # type: ignore[index]
        lost_at = time.time()
        story.facts["kernel_line"] = bed.sandbox.inject(node, "xid", code=79)
        job.wait_for_end()
    finally:
        bed.context.keep(f"slurm/{name}.log", job.log())
    compare(story, job, sizes, reference, lost_at, node)


def follow_copies(story: Story, job: Job, sizes: Sizes) -> None:
    """Wait until the first save lies on two nodes, and note how that went."""
    from hpctl.checkpoints.fast import spec as specs
    from tests.checkpoints.fast.cluster import is_held

    step = sizes.fast_every

    def find_saved() -> dict[str, Any] | None:
        marks = [mark for mark in job.marks() if mark["what"] == "saved" and mark["step"] == step]
        return marks[0] if marks else None

    saved = job.wait(find_saved, "save", STARTS_S)
    (place,) = [
        found
        for found in (job.checkpoints / specs.META).glob("*.json")
        if found.name == f"{job.id}.json"
    ]
    spec = specs.read_fast_save_spec(place)
    is_safe = wait_for(
        lambda: is_held(spec, spec.hosts, f"step-{step}", 2),
        min(20.0, job.bed.context.left_s()),
        0.02,
    )
    safe_at = time.time()
    marks = job.marks()
    size = RANKS * (sizes.fast_mib << 20)
    begun = find_last(marks, "start")["at"]  # type: ignore[index]
    first_save = next(mark["at"] for mark in marks if mark["what"] == "save")
    calm, copying = (median_ms(marks, begun, first_save), median_ms(marks, saved["at"], safe_at))
    story.figures |= {
        "save_GBps": round(size / 1e9 / saved["took_s"], 2),
        "safe_after_s": round(safe_at - saved["at"], 2) if is_safe else None,
        "copied_GBps": round(size / 1e9 / max(0.05, safe_at - saved["at"]), 2) if is_safe else None,
        "step_calm_ms": calm,
        "step_while_copying_ms": copying,
        "slowdown_percent": round(100 * (copying / calm - 1), 1) if calm and copying else None,
    }
    story.facts["bytes"] = size
    story.facts["safe"] = bool(is_safe)


def compare(
    story: Story, job: Job, sizes: Sizes, reference: Reference, lost_at: float, node: str
) -> None:
    """Judge what was restored."""
    marks = job.marks()
    recovery = measure_recovery(marks, lost_at)
    weights = find_weights(marks, sizes.fast_steps)
    restored = [line[-200:] for line in job.log().splitlines() if " copy of " in line]
    story.facts |= {"decisions": job.decisions(), "recovery": recovery, "restored": restored}
    story.figures |= {
        "fault_to_first_step_s": recovery.to_first_step_s,
        "resumed_step": recovery.resumed_step,
    }
    checks = {
        "a copy on a second node": story.facts["safe"],
        "restored from the peer": any(f"copy of {node}" in line for line in restored),
        "same bytes on every rank": all(
            has_loaded_what_was_saved(job.marks(rank)) for rank in range(RANKS)
        ),
        "same weights as an undisturbed run": bool(weights)
        and weights == reference.weights(RANKS, sizes.fast_steps),
    }
    story.conclude(checks, "; ".join(restored) or "nothing was restored")
