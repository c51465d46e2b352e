"""Pages as parts: each part is one element with an id, so that only what changed is sent again.

Every text in a part has come through `_clean` and Jinja's escaping, whoever wrote it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct

from hpctl.cli.explain import explain_view, job_view
from hpctl.cli.gather import World, known_nodes
from hpctl.cli.nodes import nodes_view
from hpctl.cli.status import StatusView, status_view
from hpctl.cli.tables import STYLES
from hpctl.cli.views import chosen
from hpctl.clusters import names
from hpctl.core.bounds import natural, printable
from hpctl.core.job_recovery import JobRecovery, JobSignal
from hpctl.core.journal import State
from hpctl.core.model import Assessment, JobId, NodeName, RecoveryId, SlurmJob
from hpctl.core.node_recovery import NodePhase, NodeRecovery
from hpctl.core.timeline import duration, headline
from hpctl.daemon.observe import RunPolicies
from hpctl.page.follow import Follower

CARDS, ROWS, TEXT = 20, 300, 4000
"""Recoveries shown with their timeline, lines of the history, and letters of one text."""
HISTORY = timedelta(days=30)
FEW = 400
"""The cells of a larger cluster are small."""
INNER = ("c-", "n-")
"""With these the ids of parts begin that stand in the HTML of another part."""
ENDS = {
    **dict.fromkeys(("returned", "resumed"), "good"),
    **dict.fromkeys(("escalated", "gave_up", "held"), "bad"),
}
_COMMAND = re.compile(r"hpctl explain ([A-Za-z0-9.-]+)")


class Part(NamedTuple):
    """One element, which is sent again when its key has changed."""

    html: str
    key: str


def _part(html: str) -> Part:
    return Part(html, html)


def _clean(value: object) -> object:
    """What any expression of a template becomes, before it is escaped."""
    if type(value) is not str:
        return "" if value is None else value
    return printable(value if len(value) <= TEXT else value[:TEXT] + "\u2026", lines=True)


def _tone(word: object) -> str:
    """The style sheet's class for a word, as the terminal colors it."""
    return {"green": "good", "red": "bad", "yellow": "warn"}.get(STYLES.get(str(word), ""), "dim")


def _linked(text: str) -> Markup:
    """A text in which the command that explains a thing leads to its page."""
    safe = str(escape(_clean(text)))
    return Markup(_COMMAND.sub(r'<a href="/explain/\1">\g<0></a>', safe))  # noqa: S704 -- escaped


def _recoveries(state: State, **which: Any) -> list[NodeRecovery | JobRecovery]:
    nodes, jobs = chosen(state, **{"ended": True, "since": None, **which})
    return [*nodes, *jobs]


class Renderer:
    """Makes pages of what a follower knows."""

    def __init__(self, follower: Follower) -> None:
        folder = FileSystemLoader(Path(__file__).parent / "templates")
        made = Environment(
            loader=folder, autoescape=True, undefined=StrictUndefined, finalize=_clean
        )
        made.filters |= {"tone": _tone, "duration": duration, "linked": _linked}
        made.filters["headline"] = headline
        made.globals |= {"KINDS": KINDS, "counted": counted}
        parts: Any = made.get_template("parts.html").module
        self._follower, self._parts, self._layout = (
            follower,
            parts,
            made.get_template("layout.html"),
        )
        # Nearly all cells are as they were a moment ago.
        self._cell = functools.lru_cache(16_384)(parts.cell)

    def document(self, parts: Mapping[str, Part], path: str, version: int) -> str:
        """A whole page, for a browser that has nothing yet."""
        body = [part.html for name, part in parts.items() if not name.startswith(INNER)]
        cluster = self._follower.world.cluster
        return self._layout.render(parts=body, path=path, version=version, cluster=cluster)

    def page(self, path: str) -> dict[str, Part]:
        """What is to be seen at a path now, by id, in order; nothing where there is no page."""
        w = self._follower.world
        status, page, _, target = status_view(w), *path.partition("/explain/")
        if path == "/":
            parts = self._overview(status)
        elif path == "/jobs":
            parts = {"jobs": _part(self._parts.jobs(trainings(w)))}
        elif path == "/history":
            parts = {"history": _part(self._history())}
        elif page or not (html := self._explain(target)):
            return {}
        else:
            parts = {"explain": _part(html)}
        return {"head": _part(self._parts.head(status, self._follower.trouble)), **parts}

    def _overview(self, status: StatusView) -> dict[str, Part]:
        w, rules, to_html = self._follower.world, self._follower.rules, self._parts
        recs = _recoveries(w.state, ended=False)
        views = [view for rec in recs[:CARDS] if (view := explain_view(w, rules, rec.id))]
        found = cells(w, self._follower.leaves)
        many, kinds = len(found) > FEW, Counter(cell.kind for cell in found)
        parts = {
            "attention": _part(to_html.attention(status)),
            "healing": _part(to_html.healing(views, recs[CARDS:])),
            "held": _part(to_html.held(status.holds)),
            "legend": _part(to_html.legend(kinds)),
        }
        for group, members in groupby(found, attrgetter("group")):
            here = list(members)
            drawn = {cell.name: self._cell(cell) for cell in here}
            by_leaf = groupby(here, attrgetter("leaf"))
            leaves = [(leaf, [drawn[cell.name] for cell in some]) for leaf, some in by_leaf]
            # A group is drawn anew where nodes came or went, else its cells one by one.
            key = "\n".join([f"{many}", *(f"{cell.leaf} {cell.name}" for cell in here)])
            parts[f"g-{group}"] = Part(to_html.group(group, here, leaves, many), key)
            parts[f"c-{group}"] = _part(to_html.counts(group, here))
            parts |= {f"n-{name}": _part(html) for name, html in drawn.items()}
        return parts

    def _history(self) -> str:
        w = self._follower.world
        since = w.now - HISTORY
        ended = [r for r in _recoveries(w.state, since=since) if r.ended]
        ended.sort(key=lambda r: (r.since, r.id), reverse=True)
        days = [(since + timedelta(days=n)).date() for n in range(1, HISTORY.days + 1)]
        kinds = Counter((r.since.date(), ENDS.get(r.phase, "dim")) for r in ended)
        most = max(Counter(r.since.date() for r in ended).values(), default=1)
        html: str = self._parts.history(ended[:ROWS], len(ended), days, kinds, most)
        return html

    def _explain(self, target: str) -> str:
        w, number = self._follower.world, JobId(natural(target))
        view = explain_view(w, self._follower.rules, target)
        job = w.slurm.jobs.get(number) if w.slurm else None
        if view is None and job is not None:
            ruled = RunPolicies(self._follower.config.run_policy_layers).ruled(job)
            view = job_view(w, {number: ruled.policy} if ruled else {}, target, look=False)
        if view is None:
            return ""
        node = nodes_view(w, (target,)).nodes[0] if target in known_nodes(w) else None
        own = [training for training in trainings(w) if training.id == number]
        html: str = self._parts.explain(target, view, node, job, own, self._phases(view.target))
        return html

    def _phases(self, target: str) -> tuple[Segment, ...]:
        """How long a recovery was in each phase."""
        state, rid = self._follower.world.state, RecoveryId(target)
        if (rec := state.nodes.get(rid) or state.jobs.get(rid)) is None:
            return ()
        now = self._follower.world.now.replace(second=0, microsecond=0)
        first = "open" if rid in state.nodes else "hit"
        entered = [(rec.opened, first), *((move.at, move.phase) for move in rec.trail)]
        ends = [*(move.at for move in rec.trail), *(() if rec.ended else (max(now, rec.since),))]
        spans = [
            (begin, end, f"phase{n % 6}", f"{phase}: {duration((end - begin).total_seconds())}")
            for n, ((begin, phase), end) in enumerate(zip(entered, ends, strict=False))
        ]
        return strip(spans) if spans else ()


# --- the map ---
#
# The cluster as a map: one cell a node, by instance group and by leaf of the topology.

KINDS = {
    "person": ("!", "waiting for a person"),
    "held": ("=", "held back by a gate"),
    "healing": ("\u21bb", "in treatment"),
    "faulty": ("\u00d7", "faulty"),
    "suspect": ("~", "suspect"),
    "closed": ("\u2013", "DOWN or drained, not by hpctl"),
    "unknown": ("?", "health unknown"),
    "busy": ("", "healthy, with jobs"),
    "idle": ("", "healthy, idle"),
}
"""What a cell says: its sign, which tells it without color, and its meaning. The first counts."""


class Cell(Struct, frozen=True):
    """One node, in the instance group (the partition, where the cloud names none) and on the leaf
    switch or block where it is."""

    group: str
    leaf: str
    name: NodeName
    kind: str
    says: str


def cells(w: World, leaves: Mapping[NodeName, str]) -> list[Cell]:
    """All nodes, by group, leaf and name."""
    running = (job for job in (w.slurm.jobs.values() if w.slurm else ()) if job.running)
    jobs = {node: job.id for job in running for node in job.nodes}
    found = [_cell(w, name, jobs.get(name), leaves.get(name, "")) for name in known_nodes(w)]
    # Nodes are in order already.
    return sorted(found, key=lambda cell: (names.natural(cell.group), names.natural(cell.leaf)))


def counted(found: Iterable[Cell]) -> str:
    """How many cells there are, and of what is not well how many."""
    of = Counter(cell.kind for cell in found)
    unwell = [f"{of[k]} {meaning}" for k, (sign, meaning) in KINDS.items() if of[k] and sign]
    return "; ".join([f"{of.total()} node{'s' * (of.total() != 1)}", *unwell])


def _cell(w: World, name: NodeName, job: JobId | None, leaf: str) -> Cell:
    node, instance = w.slurm.nodes.get(name) if w.slurm else None, w.joined.instances.get(name)
    judged, hold = w.assessments.get(name), w.state.holds.get(name)
    rec, last = w.state.node_recovery(name), w.state.last_of_node.get(name)
    says = [judged.why or str(judged.condition) if judged else "no agent has reported"]
    says += ["+".join([node.state, *sorted(node.flags)])] if node else []
    says += [f"{rec.id}, {rec.phase}"] if rec else []
    says += [f"held: {hold.why}"] if hold else []
    says += [f"job {job}"] if job else []
    closed = node is not None and not node.in_service
    is_so = {
        "person": closed and last is not None and w.state.nodes[last].phase is NodePhase.ESCALATED,
        "held": hold is not None,
        "healing": rec is not None,
        "closed": closed,
        "busy": job is not None,
        "idle": True,
        **_health(judged),
    }
    partition = node.partitions[0] if node and node.partitions else "other nodes"
    group = instance.group if instance and instance.group else partition
    return Cell(group, leaf, name, next(k for k in KINDS if is_so.get(k)), "; ".join(says))


def _health(judged: Assessment | None) -> dict[str, bool]:
    return {str(judged.condition) if judged else "unknown": True}


# --- training ---
#
# What each job has made of its time: training, and what faults took from it.

LATELY = timedelta(days=7)
"""So long a job is shown that Slurm no longer knows."""
MOST = 500
"""Jobs on the page."""
WIDTH, SEEN = 1000, 4
"""Of a strip, and the least of a part of it: a minute is to be seen in a month."""
_GOES_ON = (JobSignal.RUNNING_SEEN, JobSignal.WENT_ON, JobSignal.FINISHED, JobSignal.CALLED_OFF)

Span = tuple[datetime, datetime, str, str]
"""Begin, end, the style sheet's class, and what it tells."""
Segment = tuple[int, int, str, str]
"""The same as a part of a strip: its place and its width for the times."""


class Training(Struct, frozen=True):
    """A job since it was submitted, as far as the journal goes back. `losses`: when it did not
    train, for a fault. `redone`: steps that it trained again. `gpus`: 0 where Slurm counts none."""

    id: JobId
    name: str
    user: str
    state: str
    nodes: int
    gpus: int
    since: datetime
    until: datetime
    losses: tuple[Span, ...]
    redone: int

    @property
    def lost_s(self) -> float:
        """Seconds of all losses."""
        return sum((end - begin).total_seconds() for begin, end, *_ in self.losses)

    @property
    def ratio(self) -> float:
        """The effective training time ratio."""
        return max(0.0, 1 - self.lost_s / max((self.until - self.since).total_seconds(), 1.0))

    @property
    def strip(self) -> tuple[Segment, ...]:
        """Its time from left to right, losses in it."""
        whole = (self.since, self.until, "trained", f"since {self.since:%Y-%m-%d %H:%M} UTC")
        return strip((whole, *self.losses))


def strip(spans: Sequence[Span]) -> tuple[Segment, ...]:
    """Spans of time in the width that all of them have together."""
    first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    scale, found = WIDTH / max((last - first).total_seconds(), 1.0), []
    for begin, end, kind, says in spans:
        width = max(round((end - begin).total_seconds() * scale), SEEN)
        x = round((begin - first).total_seconds() * scale)
        found.append((min(x, WIDTH - width), width, kind, says))
    return tuple(found)


def trainings(w: World) -> list[Training]:
    """The jobs that run or wait, and those that were hit lately; most lost first."""
    # Of the present minute: what is the same for a while is not sent each second.
    now = w.now.replace(second=0, microsecond=0)
    hit: dict[JobId, list[JobRecovery]] = {}
    for rec in w.state.jobs.values():
        hit.setdefault(rec.attempt.job, []).append(rec)
    jobs = {job.id: job for job in (w.slurm.jobs.values() if w.slurm else ()) if not job.end}
    shown = jobs.keys() | {job for job in hit if hit[job][-1].since > now - LATELY}
    found = (_training(w, jobs.get(job), hit.get(job, []), now) for job in shown)
    return sorted(filter(None, found), key=lambda t: (-t.lost_s, -t.id))[:MOST]


def _training(
    w: World, job: SlurmJob | None, hit: list[JobRecovery], now: datetime
) -> Training | None:
    # A job id comes again: what another user's job of this number suffered is not its own.
    hit = [rec for rec in hit if job is None or rec.user == job.user]
    begun, who = hit[0].attempt.submit if hit else job.start if job else None, job or hit[-1]
    if begun is None:
        return None
    until = max(now if job else hit[-1].since, begun)
    nodes = [w.slurm.nodes.get(name) for name in job.nodes] if job and w.slurm else []
    gpus = sum(dict(node.has.gres).get("gpu", 0) for node in nodes if node)
    wrong = [rec.trouble for rec in hit if rec.trouble and rec.trouble.progress is not None]
    return Training(
        id=job.id if job else hit[-1].attempt.job,
        name=who.name,
        user=who.user,
        state=job.state if job else str(hit[-1].phase),
        nodes=len(nodes) or len(hit[-1].ran_on if hit else ()),
        gpus=gpus,
        since=begun,
        until=until,
        losses=tuple(_loss(rec, until) for rec in hit),
        redone=sum(max((t.step or 0) - (t.progress or 0), 0) for t in wrong),
    )


def _loss(rec: JobRecovery, until: datetime) -> Span:
    """From the fault to the job's next run, or to its owner's hands."""
    ends = (move.at for move in rec.trail if JobSignal(move.signal) in _GOES_ON)
    end = next(ends, rec.since if rec.ended else max(until, rec.since))
    begin = min(rec.trouble.at if rec.trouble else rec.opened, end)
    lost = duration((end - begin).total_seconds())
    return begin, end, "lost", f"{begin:%m-%d %H:%M:%S}: {lost} lost. {headline(rec)}"
