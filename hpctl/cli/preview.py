"""What a reboot or a replacement would do to each node: shown before it is asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hpctl.cli.gather import World
from hpctl.core.journal import RequestTaken
from hpctl.core.model import NodeName, SlurmJob
from hpctl.core.requests import NOW, take
from hpctl.core.view import Request, View, jobs_on


@dataclass(frozen=True, slots=True)
class JobHere:
    """A job that holds the node. `recoverable`: Slurm would run it again."""

    id: int
    user: str
    name: str
    state: str
    nodes: int
    recoverable: bool


@dataclass(frozen=True, slots=True)
class PreviewView:
    """One node before a reboot or replacement. `answer`: what the daemon would say now. `now`: its
    jobs are not waited for."""

    node: str
    verb: str
    instance: str
    jobs: tuple[JobHere, ...]
    open_recovery: str
    would_open: bool
    answer: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class PreviewsView:
    """What `--dry-run` shows."""

    as_of: datetime
    previews: tuple[PreviewView, ...]


def previews(w: World, verb: str, names: tuple[str, ...], by: str) -> PreviewsView:
    """Look at each node. Needs Slurm's view; without the cloud's, its gates pass."""
    view = w.view()
    here = jobs_on([NodeName(n) for n in names], view.scheduler.jobs)
    return PreviewsView(
        w.now,
        tuple(_preview(w, view, verb, NodeName(n), here[NodeName(n)], by) for n in names),
    )


def _preview(
    w: World, view: View, verb: str, name: NodeName, jobs: list[SlurmJob], by: str
) -> PreviewView:
    rec, instance = w.state.node_recovery(name), view.instance(name)
    health = w.health.get(name)
    # The daemon's own decision, on what is known here: a preview that cannot disagree with it.
    *opened, answer = take(Request(0, w.now, verb, name, by, "a preview"), view, w.policy, w.now)
    assert isinstance(answer, RequestTaken)
    return PreviewView(
        node=name,
        verb=verb.removesuffix(NOW),
        instance=instance.id if instance else (health.generation.instance if health else ""),
        jobs=tuple(
            JobHere(j.id, j.user, j.name, j.state, len(j.nodes), j.recoverable)
            for j in sorted(jobs, key=lambda j: j.id)
            if j.running or j.completing
        ),
        open_recovery=rec.id if rec else "",
        would_open=bool(opened) and answer.ok,
        answer=answer.answer,
        now=verb.endswith(NOW),
    )


def fate(job: JobHere, *, now: bool) -> str:
    """A job on a node, and what becomes of it when an order takes the node away."""
    ends = "will be requeued" if job.recoverable else "CANNOT be run again by Slurm"
    then = ends if now else "is waited for; --now requeues it"
    return f"job {job.id} ({job.name}, {job.user}) is {job.state} on {job.nodes} node(s): {then}"


def preview_lines(view: PreviewsView) -> list[str]:
    """The same for people: one paragraph a node."""
    said = []
    for p in view.previews:
        said.append(f"{p.node}: {p.verb} instance {p.instance or '(unknown)'}")
        said += [f"  {fate(job, now=p.now)}" for job in p.jobs]
        if not p.jobs:
            said.append("  no job is on it")
        if not p.would_open:
            said.append(f"  the daemon would refuse now: {p.answer}")
    return said
