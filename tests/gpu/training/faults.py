"""`hpctl run` under Slurm: what it says and does when a rank dies or hangs, or a GPU fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.gpu.stories import Story, leave_out, need_gpu
from tests.gpu.training.measures import find_last, find_weights, measure_recovery
from tests.gpu.training.slurm_bed import STARTS_S

if TYPE_CHECKING:
    from tests.gpu.training.reference import Reference
    from tests.gpu.training.settings import Sizes
    from tests.gpu.training.slurm_bed import Bed, Job

SOON_HUNG = "hang_floor_s: 4\nhang_start_s: 90\n"
LATE_HUNG = "hang_floor_s: 120\nhang_start_s: 180\n"
"""For a collective that times out before the run counts as hung."""
GROUP_TIMEOUT_S = 12


@dataclass(frozen=True)
class Fault:
    """One way in which a run is disturbed, and what hpctl is expected to say and do.

    `trouble` is what one rank does itself; `xid` is a line that its node's kernel logs. `kinds` are
    the kinds of trouble that are right. `leaves_node`: the next step must not use that node.
    `names_rank`: the culprit must be named, which takes a second rank and NCCL's witnesses.
    """

    name: str
    words: str
    kinds: tuple[str, ...]
    trouble: str = ""
    xid: int = 0
    leaves_node: bool = False
    names_rank: bool = False
    times_out: bool = False
    """The collective's own limit ends the ranks, and what they dumped names the culprit."""
    needs_gpu: bool = False
    long: bool = False
    """Left out of a dry run: another fault takes the same way through the code."""


FAULTS = (
    Fault("sigkill", "one rank is killed", ("killed",), trouble="sigkill", long=True),
    Fault(
        "hang",
        "one rank stops coming to the collective",
        ("hang",),
        trouble="hang",
        names_rank=True,
    ),
    Fault("assert", "a device-side assert", ("crash",), trouble="assert", needs_gpu=True),
    Fault(
        "xid-95",
        "an uncontained memory error (Xid 95)",
        ("node",),
        xid=95,
        leaves_node=True,
        long=True,
    ),
    Fault(
        "xid-94",
        "a contained memory error (Xid 94), of which the program dies",
        # Whichever is seen first: the program's own word, or that the node is closed.
        ("cuda", "node"),
        trouble="ecc",
        xid=94,
        leaves_node=True,
        long=True,
    ),
    Fault(
        "timeout",
        "a collective times out because one rank stays away",
        ("hang",),
        trouble="hang",
        names_rank=True,
        times_out=True,
        needs_gpu=True,
    ),
    Fault(
        "order",
        "a collective times out because one rank is in another collective",
        ("crash",),
        trouble="order",
        times_out=True,
        needs_gpu=True,
    ),
)


def plan_faults(
    bed: Bed, sizes: Sizes, reference: Reference
) -> dict[Story, Callable[[Story], None]]:
    """Return the stories and what runs each."""
    stories = {}
    for fault in FAULTS:
        place = ", on another node" if fault.leaves_node else ""
        story = Story(
            f"run/{fault.name}",
            f"{fault.words}: called {' or '.join(fault.kinds)}, and the next step goes on from the"
            f" last save{place}, with the same bits",
        )
        if sizes.device == "cpu" and fault.needs_gpu:
            stories[story] = need_gpu
        elif bed.context.dry and fault.long:
            stories[story] = leave_out
        else:
            stories[story] = partial(
                act_fault, bed=bed, sizes=sizes, reference=reference, fault=fault
            )
    return stories


def act_fault(story: Story, *, bed: Bed, sizes: Sizes, reference: Reference, fault: Fault) -> None:
    """Submit the job, disturb it, wait for its end, and compare it with an undisturbed run."""
    name = story.name.replace("/", "-")
    ranks = 2 if fault.leaves_node else sizes.fault_ranks
    culprit = ranks - 1
    words: list[object] = ["--backend", sizes.backend if ranks > 1 else "none"]
    words += ["--steps", sizes.steps, "--every", sizes.every, "--step-s", sizes.step_s]
    if fault.leaves_node:
        words += ["--patient-from", sizes.trouble_step]
    if fault.trouble:
        words += ["--trouble", f"{fault.trouble}@{sizes.trouble_step}"]
    options = ["--spares 1"] if fault.leaves_node else []
    if fault.times_out:
        words += ["--group-timeout-s", GROUP_TIMEOUT_S]
    is_hang = fault.trouble == "hang" and not fault.times_out
    policy = SOON_HUNG if is_hang else LATE_HUNG
    job = bed.submit_training(
        name, *words, ranks=ranks, device=sizes.device, options=options, policy=policy
    )
    fault_at, node = 0.0, ""
    try:
        if fault.xid:
            # With a trouble of the program's own: just before it, as the driver logs it.
            before = 3 if fault.trouble else 0
            job.wait_for_step(sizes.trouble_step - before, rank=culprit)
            node = str(find_last(job.marks(culprit), "start")["node"])  # type: ignore[index]
            fault_at = time.time()
            story.facts["kernel_line"] = bed.sandbox.inject(node, "xid", code=fault.xid)
        if fault.trouble:
            trouble = job.wait(
                lambda: find_last(job.marks(culprit), "trouble"), "trouble", STARTS_S
            )
            fault_at = float(trouble["at"])
        job.wait_for_end()
    finally:
        keep_evidence(job, name)
        _explain(story, bed, job, node)
    _compare(story, job, sizes, reference, fault, fault_at, node, ranks)


def keep_evidence(job: Job, name: str) -> None:
    """Keep the log and, where the ranks have left any, the dumps of their flight recorders."""
    job.bed.context.keep(f"slurm/{name}.log", job.log())
    for dump in sorted(job.folder.glob("save/.hpctl/*flight-*")):
        job.bed.context.keep(f"slurm/{name}.{dump.name}.pickle", dump.read_bytes())


def _explain(story: Story, bed: Bed, job: Job, node: str) -> None:
    told = bed.hpctl("explain", str(job.id))
    bed.context.keep(f"slurm/{story.name.replace('/', '-')}.explain-job.txt", told)
    if node:
        told = bed.hpctl("explain", node)
        bed.context.keep(f"slurm/{story.name.replace('/', '-')}.explain-node.txt", told)
        story.facts["node_after"] = bed.node_line(node)


def _compare(
    story: Story,
    job: Job,
    sizes: Sizes,
    reference: Reference,
    fault: Fault,
    fault_at: float,
    node: str,
    ranks: int,
) -> None:
    marks = job.marks(0)
    recovery = measure_recovery(marks, fault_at)
    treated = job.treated()
    kinds = [str(row["trouble"]["kind"]) for row in treated]
    nodes_after = _nodes_of_last_start(job, ranks)
    weights = find_weights(marks, sizes.steps)
    story.facts |= {
        "decisions": job.decisions(),
        "treated": treated,
        "recovery": recovery,
        "node": node,
        "nodes_after": nodes_after,
    }
    story.figures = {
        "fault_to_first_step_s": recovery.to_first_step_s,
        "fault_step": recovery.fault_step,
        "resumed_step": recovery.resumed_step,
    }
    checks = {
        "the kind of trouble": bool(kinds) and kinds[0] in fault.kinds,
        "treated once": len(treated) == 1,
        "resumed from the newest save": recovery.is_right,
        "same weights as an undisturbed run": bool(weights)
        and weights == reference.weights(ranks, sizes.steps),
    }
    if fault.leaves_node:
        checks["the node is left out"] = bool(node) and node not in nodes_after
    if fault.names_rank and ranks > 1:
        named = [row["trouble"].get("rank") for row in treated]
        checks["the culprit is named"] = named[:1] == [ranks - 1]
    story.conclude(checks, "; ".join(job.decisions()) or "hpctl run said nothing")


def _nodes_of_last_start(job: Job, ranks: int) -> list[Any]:
    starts = [find_last(job.marks(rank), "start") for rank in range(ranks)]
    return [start["node"] for start in starts if start]
