"""Pages as parts: each part is one element with an id, so that only what changed is sent again.

Every text in a part has come through `_clean` and Jinja's escaping, whoever wrote it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec.structs import replace

from hpctl.engine.explain_view import NO_PARTS, ExplainParts, explain_view, job_view
from hpctl.engine.journal.state import State
from hpctl.engine.named_jobs import find_named_jobs
from hpctl.engine.nodes_view import nodes_view
from hpctl.engine.run_policies import RunPolicies
from hpctl.engine.status_view import StatusView, status_view
from hpctl.engine.timeline import headline
from hpctl.engine.views import chosen
from hpctl.engine.world import known_nodes
from hpctl.service.page.follow import Follower
from hpctl.service.page.node_map import KINDS, cells, counted
from hpctl.service.page.training import Segment, strip, trainings
from hpctl.toolkit.bounds import printable
from hpctl.toolkit.durations import duration
from hpctl.toolkit.tables import STYLES
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery

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

    def __init__(self, follower: Follower, explain_parts: ExplainParts = NO_PARTS) -> None:
        self._explain_parts = replace(explain_parts, look=False)
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
        views = [
            view
            for rec in recs[:CARDS]
            if (view := explain_view(w, rules, rec.id, self._explain_parts))
        ]
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
        w = self._follower.world
        named = find_named_jobs(w, target)
        number = named[0] if len(named) == 1 else None
        view = explain_view(w, self._follower.rules, target, self._explain_parts)
        job = w.slurm.jobs.get(number) if w.slurm and number is not None else None
        if view is None and job is not None:
            ruled = RunPolicies(self._follower.config.run_policy_layers).ruled(job)
            policies = {job.id: ruled.policy} if ruled else {}
            view = job_view(w, policies, target, self._explain_parts)
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
