"""Restarts outside Slurm: in the same processes against new ones, with the launchers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.stories import Story

TITLE = "Restarts in the same processes against new ones, without Slurm"
LIMIT_S = 70
DRY_LIMIT_S = 60
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "torch"})

CASES = {
    "calm": ("", "gloo", False),
    "new_processes": ("raise", "gloo", False),
    "new_processes_nccl": ("raise", "nccl", False),
    "new_processes_assert": ("assert", "gloo", False),
    "in_process": ("raise", "gloo", True),
    "in_process_nccl": ("raise", "nccl", True),
    "in_process_oom": ("oom", "gloo", True),
    "in_process_assert": ("assert", "gloo", True),
}
"""By the name of its recording: what goes wrong, the backend, and whether processes are kept."""
ENDS_PROCESS = ("assert",)
STEPS, EVERY, TROUBLE_STEP = 30, 5, 17
FIRST_JOB, LIMIT_OF_RUN_S = 7800, 60.0
AT_ONCE = 4


def run(context: Context) -> None:
    """Run the cases side by side."""
    from functools import partial

    from tests.gpu.stories import Story, tell_side_by_side

    figures: dict[str, Any] = {}
    stories = {}
    for number, name in enumerate(CASES):
        story = Story(f"launcher/{name}", "resumed from the last save, ended with the same bits")
        play = partial(restart, context=context, name=name, job=FIRST_JOB + number, figures=figures)
        stories[story] = leave_out if context.dry else play
    tell_side_by_side(context, stories, AT_ONCE)
    context.keep_json("in-process/figures.json", figures)
    calm = figures.get("calm", {}).get("weights")
    same = {name: figure["weights"] == calm for name, figure in figures.items()}
    context.record("same_weights", same)
    context.say(f"same weights as the undisturbed run: {same}")


def leave_out(story: Story) -> None:
    """Conclude that a dry run restarts ranks under Slurm alone."""
    story.skip("left out of a dry run, which restarts ranks under Slurm")


def restart(
    story: Story,
    *,
    context: Context,
    name: str,
    job: int,
    figures: dict[str, Any],
    device: str = "cuda",
) -> None:
    """Start two launchers with a rank each, and measure how the run goes on after the trouble."""
    import secrets
    import sys
    from importlib.util import find_spec

    from tests.gpu.training.measures import find_last, find_weights, measure_recovery
    from tests.gpu.training.ranks import PROGRAM, kill_all, read_marks, start_ranks

    trouble, backend, keeps = CASES[name]
    if keeps and find_spec("nvidia_resiliency_ext") is None:
        story.skip("no nvidia-resiliency-ext")
        return
    folder = context.scratch / name
    (folder / "save").mkdir(parents=True)
    words: list[object] = ["-m", "hpctl.jobs.elastic", "--nproc-per-node=1"]
    words += ["--in-process"] * keeps
    words += ["--", PROGRAM, "--marks", folder, "--device", device, "--backend", backend]
    words += ["--steps", STEPS, "--every", EVERY, "--step-s", "0.05"]
    if trouble:
        words += ["--trouble", f"{trouble}@{TROUBLE_STEP}"]
    environment = {
        "SLURM_NNODES": "2",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "HPCTL_ELASTIC_SECRET": secrets.token_hex(16),
        "HPCTL_ELASTIC_RESULT": str(folder / "account.json"),
        "HPCTL_CHECKPOINT_DIR": str(folder / "save"),
        "HPCTL_PYTHON": sys.executable,
    }
    launchers = start_ranks(context, folder, 2, words, job=job, environment=environment)
    try:
        limit_s = min(LIMIT_OF_RUN_S, context.left_s() - 3.0)
        codes = [launcher.wait(limit_s) for launcher in launchers]
    finally:
        kill_all(launchers)
        context.keep(f"in-process/{name}.log", "".join(each.err for each in launchers))
    marks = read_marks(folder)
    weights = find_weights(marks, STEPS)
    fault = find_last(read_marks(folder, 1), "trouble")
    recovery = measure_recovery(marks, fault["at"]) if fault else None
    figures[name] = {
        "codes": codes,
        "resumed": [mark["resume"] for mark in marks if mark["what"] == "start"],
        "raised_to_next_step_s": recovery.to_first_step_s if recovery else None,
        "same_process": recovery.same_process if recovery else None,
        "weights": weights,
    }
    story.figures = {"fault_to_first_step_s": figures[name]["raised_to_next_step_s"]}
    story.facts = dict(figures[name])
    checks = {"exit codes": codes == [0, 0], "all steps": bool(weights)}
    if trouble:
        checks["resumed from the newest save"] = recovery is not None and recovery.is_right
    if keeps and trouble not in ENDS_PROCESS:
        checks["same processes"] = recovery is not None and bool(recovery.same_process)
    story.conclude(checks, f"resumed from {figures[name]['resumed'][1:]}")
