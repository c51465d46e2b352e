"""`hpctl run --torch` under Slurm: ranks that raise begin again, in their processes if they can."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tests.gpu.stories import Story, need_gpu
from tests.gpu.training.measures import Marks, find_last, find_weights, measure_recovery

if TYPE_CHECKING:
    from tests.gpu.training.reference import Reference
    from tests.gpu.training.settings import Sizes
    from tests.gpu.training.slurm_bed import Bed

RANKS = 2
TROUBLES = {
    "raise": "an exception on one rank",
    "oom": "CUDA runs out of memory on one rank",
    "nccl": "one rank aborts its communicator: an NCCL error on every rank",
    "assert": "a device-side assert on one rank",
}
"""Those that a process survives come first. NCCL's error and the assert may end the process."""
SURVIVED = ("raise", "oom")
ON_CPU = ("raise",)


def plan_restarts(
    bed: Bed, sizes: Sizes, reference: Reference
) -> dict[Story, Callable[[Story], None]]:
    """Return the stories and what runs each."""
    in_process = find_spec("nvidia_resiliency_ext") is not None
    stories = {}
    for kind, words in TROUBLES.items():
        how = "in their processes" if in_process and kind in SURVIVED else "inside the step"
        story = Story(
            f"restart/{kind}",
            f"after {words} the ranks begin again {how}, from the last save, with the same bits",
        )
        if sizes.device == "cpu" and kind not in ON_CPU:
            stories[story] = need_gpu
            continue
        stories[story] = partial(
            act_restart, bed=bed, sizes=sizes, reference=reference, kind=kind, in_process=in_process
        )
    return stories


def act_restart(
    story: Story, *, bed: Bed, sizes: Sizes, reference: Reference, kind: str, in_process: bool
) -> None:
    """Submit the job, wait for its end, and compare it with an undisturbed run."""
    name = story.name.replace("/", "-")
    backend = "nccl" if kind == "nccl" else "gloo"
    words = ["--backend", backend, "--steps", sizes.steps, "--every", sizes.every]
    words += ["--step-s", sizes.step_s, "--trouble", f"{kind}@{sizes.trouble_step}"]
    run_words = ["--torch", "--nproc", "1"]
    if in_process:
        run_words.append("--in-process")
    job = bed.submit_training(name, *words, ranks=RANKS, device=sizes.device, run_words=run_words)
    try:
        job.wait_for_end()
    finally:
        bed.context.keep(f"slurm/{name}.log", job.log())
    culprit, first = job.marks(1), job.marks(0)
    trouble = find_last(culprit, "trouble")
    recovery = measure_recovery(first, trouble["at"]) if trouble else None
    account = job.log()
    same_steps = "attempt 2" not in account
    weights = find_weights(first, sizes.steps)
    story.facts = {
        "backend": backend,
        "in_process_asked": in_process,
        "decisions": job.decisions(),
        "recovery": recovery,
        "treated": job.treated(),
        "pids": [sorted({mark["pid"] for mark in job.marks(rank)}) for rank in range(RANKS)],
    }
    story.figures = {
        "fault_to_first_step_s": recovery.to_first_step_s if recovery else None,
        "resumed_step": recovery.resumed_step if recovery else None,
        "submit_to_first_step_s": round(first_step_at(first) - job.submitted, 2),
    }
    checks = {
        "the trouble came": recovery is not None,
        "resumed from the newest save": recovery is not None and recovery.is_right,
        "no new Slurm step": same_steps,
        "same weights as an undisturbed run": bool(weights)
        and weights == reference.weights(RANKS, sizes.steps),
    }
    if in_process and kind in SURVIVED:
        checks["same processes"] = recovery is not None and bool(recovery.same_process)
    kept = "same" if recovery is not None and recovery.same_process else "new"
    observed = f"{kept} processes, resumed at step {story.figures['resumed_step']}"
    story.conclude(checks, observed)


def first_step_at(marks: Marks) -> float:
    """Return when the first step of a run was done."""
    return float(next((mark["at"] for mark in marks if mark["what"] == "step"), 0.0))
