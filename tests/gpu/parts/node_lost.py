"""A node lost under CUDA training on a real Slurm: requeued and run to its end, and with a spare.

The requeue is the demo's (hpctl/sandbox/demo.py) without plain Slurm's two minutes of waiting: the
same configuration, the same figures as seen in slurmctld, and training on the GPU.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctl.sandbox.api import Sandbox
    from hpctl.sandbox.demo import SlurmPoller
    from tests.gpu.context import Context

TITLE = "A node lost under CUDA training"
LIMIT_S = 140
DRY_LIMIT_S = 150
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu", "slurm", "torch"})

ROOT = Path(__file__).resolve().parents[3]
TRAIN = Path(__file__).parents[1] / "programs/train.py"
NODES, RANKS = 6, 2
DRY_NODES, DRY_RANKS = 2, 1
STEPS, EVERY, STEP_S = 60, 10, 0.12
FAULT_AFTER_STEP = EVERY + 3
LOOK_S, DRY_LOOK_S = 0.1, 0.5
"""Seconds between two questions to slurmctld: how exact the figures are."""
START_LIMIT_S = 45.0
"""For a job's first step: imports and the CUDA context took 10 s on an H200."""
SPARE_NEEDS_S = 50.0


def run(context: Context) -> None:
    """Train undisturbed outside Slurm, then lose a node under a job, then under one with a
    spare."""
    from hpctl.sandbox.demo import SITE, SlurmPoller
    from tests.gpu.boxes import run_in, sandbox

    reference: dict[str, Any] = {}
    undisturbed = threading.Thread(target=_train_undisturbed, args=(context, reference))
    undisturbed.start()
    found: dict[str, Any] = {"ref": reference}
    settings = {"nodes": DRY_NODES if context.dry else NODES, "boot_time": 3.0, "config": SITE}
    with sandbox(context, "lost", **settings) as box:
        states = run_in(box, "sinfo", "-N", "-h", "-o", "%N %T %G %E").out.splitlines()
        context.record("nodes", states)
        undisturbed.join()
        with SlurmPoller(box, DRY_LOOK_S if context.dry else LOOK_S) as watch:
            for name, has_spare in (("requeue", False), ("spare", True)):
                if has_spare and context.dry:
                    break  # Most of this is the same, and a dry run is short of processor time.
                if has_spare and context.left_s() < SPARE_NEEDS_S:
                    context.say("no time left for the job with a spare")
                    break
                found[name] = _lose_node(context, box, watch, name, has_spare, reference)
                context.record(name, found[name])
                context.keep_json("sandbox-on-gpu.json", found)


def _count_ranks(context: Context) -> int:
    return DRY_RANKS if context.dry else RANKS


def _options(context: Context, directory: Path, step_s: float) -> list[str]:
    return [
        *("--checkpoint-dir", str(directory), "--steps", str(STEPS)),
        *("--checkpoint-every", str(EVERY), "--step-s", str(step_s)),
        *("--device", "cpu" if context.dry else "cuda"),
    ]


def _train_undisturbed(context: Context, reference: dict[str, Any]) -> None:
    """Run the same ranks outside Slurm; `reference` gets the digest of the weights."""
    directory = context.scratch / "undisturbed/save"
    command = [sys.executable, str(TRAIN), *_options(context, directory, 0.0)]
    done: list[Any] = []
    count = _count_ranks(context)

    def run_rank(rank: int) -> None:
        environment = {"RANK": str(rank), "WORLD_SIZE": str(count)}
        done.append(context.run(command, 60, environment=environment))

    ranks = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(count)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    reference["codes"] = [each.code for each in done]
    reference["sha256"] = _read_final(directory).get("sha256", "")
    reference["took_s"] = max(each.took_s for each in done)
    if not reference["sha256"]:
        reference["err"] = done[0].err[-2000:]
    context.record("reference", dict(reference))
    context.say(f"undisturbed: {STEPS} steps in {reference['took_s']} s, start included")


def _lose_node(
    context: Context,
    box: Sandbox,
    watch: SlurmPoller,
    name: str,
    has_spare: bool,
    reference: dict[str, Any],
) -> dict[str, Any]:
    """Submit a job, let one of its nodes lose a GPU, and follow the job to its end."""
    from hpctl.sandbox.demo import make_job_running_test, make_node_state_test
    from hpctl.sandbox.training.model import find_last_finished_step, read_attempts
    from hpctl.vocabulary.identity import JobId
    from tests.gpu.boxes import hpctl_in, run_in, wait_for

    directory = context.scratch / name / "save"
    job = _submit(context, box, directory, has_spare)
    fact: dict[str, Any] = {"job": job}
    submitted = time.monotonic()

    def reached() -> bool:
        starts = [row for row in read_attempts(directory) if row.get("event") == "start"]
        return (
            bool(starts)
            and find_last_finished_step(directory, starts[-1]["attempt"]) >= FAULT_AFTER_STEP
        )

    if not wait_for(reached, START_LIMIT_S):
        fact["log"] = _read_log(directory)
        fact["state"] = run_in(box, "scontrol", "show", "job", str(job)).out[-2000:]
        context.say(f"{name}: never reached step {FAULT_AFTER_STEP}: {fact['log'][-300:]}")
        return fact
    fact["submit_to_fault_s"] = round(time.monotonic() - submitted, 2)

    def has_nodes() -> bool:
        seen = watch.job(job)
        return seen is not None and bool(seen.nodes)

    # The ranks train already, and the watch reads Slurm's answers a moment later.
    wait_for(has_nodes, START_LIMIT_S)
    known = watch.job(job)
    assert known is not None
    nodes = [str(node) for node in known.nodes]
    # With a spare the batch host must live, and the spare is the last.
    victim = nodes[-1]
    fact |= {"nodes": nodes, "victim": victim}
    watch.expect("drained", make_node_state_test(victim, lambda node: node.drained))
    watch.expect("again", make_job_running_test(job, known.restarts + 1))
    watch.expect(
        "completed",
        lambda view: JobId(job) in view.jobs and view.jobs[JobId(job)].state == "COMPLETED",
    )
    fault, fault_at = time.monotonic(), time.time()
    fact["fault"] = box.inject(victim, "xid", code=79)
    end = fault + min(70.0, context.left_s() - 12.0)
    wait_for(lambda: watch.get_first_time_test_passed("drained"), end - time.monotonic())
    watch.expect(
        "returned", make_node_state_test(victim, lambda node: node.in_service and node.responding)
    )
    for mark in ("completed", "returned"):
        wait_for(lambda mark=mark: watch.get_first_time_test_passed(mark), end - time.monotonic())
    marks = ("drained", "returned", "completed")
    for mark in marks if has_spare else (*marks, "again"):
        seen = watch.get_first_time_test_passed(mark)
        fact[f"fault_to_{mark}_s"] = None if seen is None else round(seen - fault, 2)
    fact |= _read_attempts(directory, fault_at)
    final = _read_final(directory)
    fact["final"] = final
    fact["identical"] = bool(final) and final.get("sha256") == reference.get("sha256")
    fact["explain"] = hpctl_in(box, "explain", victim).out[-3000:]
    ls = hpctl_in(box, "checkpoint", "ls", str(directory))
    fact["checkpoint_ls"] = {"rc": ls.code, "out": ls.out[-3000:]}
    fact["log"] = _read_log(directory)
    _tell(context, name, fact)
    return fact


def _submit(context: Context, box: Sandbox, directory: Path, has_spare: bool) -> int:
    """Submit by `hpctl sbatch`. Raises RuntimeError with what it said."""
    from tests.gpu.boxes import hpctl_in

    directory.parent.mkdir(parents=True)
    train = f"{sys.executable} {TRAIN} {' '.join(_options(context, directory, STEP_S))}"
    start = f"{sys.executable} -m hpctl run --" if has_spare else "srun --kill-on-bad-exit=1"
    script = directory.parent / "job.sh"
    count = _count_ranks(context)
    script.write_text(
        "#!/bin/sh\n"
        f"#SBATCH --job-name=train --nodes={count} --ntasks-per-node=1 --gres=gpu:1\n"
        "#SBATCH --time=00:10:00 --open-mode=append\n"
        f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n"
        f"exec {start} {train}\n"
    )
    spare = ["--spares", "1"] if has_spare else []
    done = hpctl_in(
        box,
        *("sbatch", "--checkpoint-dir", str(directory), *spare, "--parsable"),
        *(f"--output={directory.parent}/job.log", str(script)),
    )
    job = done.out.strip().partition(";")[0]
    if not job.isdigit():
        raise RuntimeError(f"hpctl sbatch: {done.code} {done.out} {done.err}")
    return int(job)


def _read_attempts(directory: Path, fault_at: float) -> dict[str, Any]:
    """Return when the next attempt began and did its first step, in seconds after the fault."""
    from hpctl.sandbox.training.model import read_attempts

    rows = read_attempts(directory)
    found: dict[str, Any] = {"attempts": rows}
    for event in ("start", "first_step"):
        times = [row["at"] for row in rows if row.get("event") == event]
        if len(times) > 1:
            seconds = datetime.fromisoformat(times[1]).timestamp() - fault_at
            found[f"fault_to_{event}_s"] = round(seconds, 2)
    return found


def _read_final(directory: Path) -> dict[str, Any]:
    from hpctl.sandbox.training.model import FINAL

    with suppress(OSError, ValueError):
        return dict(json.loads((directory / FINAL).read_text()))
    return {}


def _read_log(directory: Path) -> str:
    with suppress(OSError):
        return (directory.parent / "job.log").read_text(errors="replace")[-4000:]
    return ""


def _tell(context: Context, name: str, fact: dict[str, Any]) -> None:
    final = fact["final"]
    context.say(
        f"{name}: drained after {fact['fault_to_drained_s']} s, "
        f"running again after {fact.get('fault_to_again_s', 'the same job')}, next attempt's ranks "
        f"met after {fact.get('fault_to_start_s')} s, first new step after "
        f"{fact.get('fault_to_first_step_s')} s, COMPLETED after {fact['fault_to_completed_s']} s, "
        f"the node back in service after {fact['fault_to_returned_s']} s"
    )
    context.say(
        f"{name}: resumed from step {final.get('resumed_from')}, steps lost "
        f"{final.get('steps_lost')}, weights "
        f"{'identical to' if fact['identical'] else 'DIFFERENT from'} the undisturbed run's"
    )
