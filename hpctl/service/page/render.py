"""Pages as parts: each part is one element with an id, so that only what changed is sent again.

Every text in a part has come through `_sanitize_template_value` and Jinja's escaping, whatever its
source.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec.structs import replace

from hpctl.engine.estimates import RecoveryEndTimeEstimate, RecoveryTimeEstimator
from hpctl.engine.explain_view import (
    NO_PARTS,
    ExplainExtensions,
    ExplainView,
    build_explain_view,
    make_job_explain_view,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.nodes_view import make_nodes_view
from hpctl.engine.run_policies import RunPolicyMerger
from hpctl.engine.status_view import ClusterStatusView, make_cluster_status_view
from hpctl.engine.timeline import describe_recovery_phase, format_recovery_or_change_title
from hpctl.engine.views import select_node_and_job_recoveries
from hpctl.engine.world import list_known_nodes
from hpctl.service.page.follow import StatusPagePoller
from hpctl.service.page.node_map import KINDS, make_node_map_cells, summarize_node_map_cells
from hpctl.service.page.training import (
    Segment,
    TrainingJobSummary,
    list_training_job_summaries,
    scale_time_spans_to_segments,
)
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.hostlist import format_node_names
from hpctl.toolkit.tables import STYLES, format_time_offset
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery

CARDS, LINES, ROWS, TEXT = 10, 30, 300, 4000
"""Recoveries of nodes, and of jobs, with their timeline; lines of a list and of the history, and
letters of one text."""
LETTERS = 600
"""Letters of one line of a list, at most."""


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
_QUOTED = re.compile(r"`([^`]+)`")


PAGES = {"/": "Cluster", "/jobs": "Jobs", "/history": "History"}


class PagePart(NamedTuple):
    """One element, which is sent again when its key has changed."""

    html: str
    key: str


def _make_page_part_from_html(html: str) -> PagePart:
    return PagePart(html, html)


def _sanitize_template_value(value: object) -> object:
    """Return what any expression of a template becomes, before it is escaped."""
    if type(value) is not str:
        return "" if value is None else value
    return make_printable(value if len(value) <= TEXT else value[:TEXT] + "\u2026", lines=True)


def _find_status_css_class(word: object) -> str:
    """Return the style sheet's class for a word, as the terminal colors it."""
    return {"green": "good", "red": "bad", "yellow": "warn"}.get(STYLES.get(str(word), ""), "dim")


def _link_explain_commands(text: str) -> Markup:
    """Return a text in which the command that explains a thing leads to its page."""
    safe = str(escape(_sanitize_template_value(text)))
    return Markup(_COMMAND.sub(r'<a href="/explain/\1">\g<0></a>', safe))  # noqa: S704 -- escaped


def _elide_line_middle(text: str) -> str:
    """Return a line of a list, without its middle where it is long: its end names what explains
    it."""
    return text if len(text) <= LETTERS else f"{text[: LETTERS // 2]}\u2026{text[-LETTERS // 4 :]}"


def _format_quoted_commands_as_code(text: str) -> Markup:
    """A text in which the parts in backquotes are commands to copy."""
    safe = str(escape(_sanitize_template_value(text)))
    return Markup(_QUOTED.sub(r"<code>\1</code>", safe))  # noqa: S704 -- escaped


def _format_time_since_fault(at: datetime, fault_at: datetime) -> str:
    """`T+12 s`: how long after the fault."""
    return format_time_offset((at - fault_at).total_seconds())


def _format_truncated_hostlist(names: Sequence[str], limit: int = 200) -> str:
    """Return names of nodes as a hostlist, cut where it is long."""
    text = format_node_names(names)
    return text if len(text) <= limit else text[:limit] + "\u2026"


class RecoveryCard(NamedTuple):
    """An open recovery: its name in words, its explanation, and when it is over, as far as that is
    known. `training`: of a job, what it has lost."""

    rec: NodeRecovery | JobRecovery
    title: str
    view: ExplainView
    estimate: RecoveryEndTimeEstimate | None
    training: TrainingJobSummary | None = None


def _list_node_and_job_recoveries(
    state: EngineState, **which: Any
) -> list[NodeRecovery | JobRecovery]:
    nodes, jobs = select_node_and_job_recoveries(state, **{"ended": True, "since": None, **which})
    return [*nodes, *jobs]


class StatusPageRenderer:
    """Makes pages of what a follower knows."""

    def __init__(
        self, follower: StatusPagePoller, explain_parts: ExplainExtensions = NO_PARTS
    ) -> None:
        self._explain_parts = replace(explain_parts, look=False)
        folder = FileSystemLoader(Path(__file__).parent / "templates")
        made = Environment(
            loader=folder,
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_sanitize_template_value,
        )
        made.filters |= {
            "tone": _find_status_css_class,
            "duration": format_duration,
            "linked": _link_explain_commands,
        }
        made.filters |= {
            "coded": _format_quoted_commands_as_code,
            "title": format_recovery_or_change_title,
            "shortened": _elide_line_middle,
            "standing": describe_recovery_phase,
            "folded": _format_truncated_hostlist,
        }
        made.globals |= {
            "KINDS": KINDS,
            "PAGES": PAGES,
            "counted": summarize_node_map_cells,
            "passed": _format_time_since_fault,
        }
        parts: Any = made.get_template("parts.html").module
        self._follower, self._parts, self._layout = (
            follower,
            parts,
            made.get_template("layout.html"),
        )
        # Nearly all cells are as they were a moment ago.
        self._cell = functools.lru_cache(16_384)(parts.cell)

    def document(self, parts: Mapping[str, PagePart], path: str, version: int) -> str:
        """Return a whole page, for a browser that has nothing yet."""
        body = [part.html for name, part in parts.items() if not name.startswith(INNER)]
        w = self._follower.world
        name = PAGES.get(path) or self._format_target_name(path.partition("/explain/")[2])
        return self._layout.render(
            parts=body, path=path, version=version, cluster=w.cluster, name=name, now=w.now
        )

    def page(self, path: str) -> dict[str, PagePart]:
        """Return what is to be seen at a path now, by id, in order; nothing where there is no
        page."""
        w = self._follower.world
        status, page, _, target = make_cluster_status_view(w), *path.partition("/explain/")
        if path == "/":
            parts = self._render_overview_parts(status)
        elif path == "/jobs":
            parts = {
                "jobs": _make_page_part_from_html(self._parts.jobs(list_training_job_summaries(w)))
            }
        elif path == "/history":
            parts = {"history": _make_page_part_from_html(self._render_recovery_history())}
        elif page or not (html := self._render_target_explanation(target)):
            return {}
        else:
            parts = {"explain": _make_page_part_from_html(html)}
        return {"head": self._render_page_header(status), **parts}

    def _render_page_header(self, status: ClusterStatusView) -> PagePart:
        """Sent again once a minute where nothing else in it changes: its time shows its age."""
        w = self._follower.world
        minute = w.now.replace(second=0, microsecond=0)
        html = self._parts.head(status, self._follower.trouble, w.computed, minute)
        return _make_page_part_from_html(html)

    def _render_overview_parts(self, status: ClusterStatusView) -> dict[str, PagePart]:
        w, to_html = self._follower.world, self._parts
        persons = set(chain.from_iterable(task.targets for task in status.person_tasks))
        waiting = {task.explain for task in status.person_tasks}
        holds = [h for h in status.holds if h.target not in persons and h.shown not in waiting]
        nodes, jobs = select_node_and_job_recoveries(w.state, ended=False, since=None)
        found = make_node_map_cells(w, self._follower.leaves, persons)
        many, kinds = len(found) > FEW, Counter(cell.kind for cell in found)
        estimator = RecoveryTimeEstimator(w)
        counts = {
            "person": len(status.person_tasks) + len(status.unknowns),
            "legend": len(found),
            "jobs": len(jobs),
            "healing": len(nodes),
            "held": len(holds),
            "others": len(status.other_problems),
            "capacity": len(status.changes),
        }
        parts = {
            "contents": _make_page_part_from_html(to_html.contents(counts)),
            "person": _make_page_part_from_html(to_html.person(status, LINES)),
            "legend": _make_page_part_from_html(to_html.legend(kinds, len(found))),
        }
        for group, members in groupby(found, attrgetter("group")):
            here = list(members)
            drawn = {cell.name: self._cell(cell) for cell in here}
            by_leaf = groupby(here, attrgetter("leaf"))
            leaves = []
            for leaf, some in by_leaf:
                leaves.append((leaf, [drawn[cell.name] for cell in some]))
            # A group is drawn again where nodes came or went, else its cells one by one.
            key = "\n".join([f"{many}", *(f"{cell.leaf} {cell.name}" for cell in here)])
            parts[f"g-{group}"] = PagePart(to_html.group(group, here, leaves, many), key)
            parts[f"c-{group}"] = _make_page_part_from_html(to_html.counts(group, here))
            parts |= {f"n-{name}": _make_page_part_from_html(html) for name, html in drawn.items()}
        parts["jobs"] = _make_page_part_from_html(
            to_html.open_jobs(*self._make_job_recovery_cards(jobs, estimator))
        )
        parts["healing"] = _make_page_part_from_html(
            to_html.healing(*self._make_node_recovery_cards(nodes, estimator))
        )
        parts["held"] = _make_page_part_from_html(to_html.held(holds[:ROWS], len(holds)))
        parts["others"] = _make_page_part_from_html(to_html.others(status.other_problems, LINES))
        parts["capacity"] = _make_page_part_from_html(to_html.capacity(status.changes))
        return parts

    def _make_job_recovery_cards(
        self, jobs: Sequence[JobRecovery], estimator: RecoveryTimeEstimator
    ) -> tuple[list[RecoveryCard], Sequence[JobRecovery]]:
        """Return the newest as cards, and the rest."""
        w = self._follower.world
        known = list_training_job_summaries(w, [rec.key for rec in jobs[:CARDS]])
        of_job = {training.id: training for training in known}
        found = []
        for rec in jobs[:CARDS]:
            view = build_explain_view(w, self._follower.rules, rec.id, self._explain_parts)
            if view is not None:
                estimate = estimator.estimate_job_restart_time(rec)
                found.append(
                    RecoveryCard(
                        rec,
                        format_recovery_or_change_title(rec),
                        view,
                        estimate,
                        of_job.get(rec.key),
                    )
                )
        return found, jobs[CARDS:]

    def _make_node_recovery_cards(
        self, nodes: Sequence[NodeRecovery], estimator: RecoveryTimeEstimator
    ) -> tuple[list[RecoveryCard], Sequence[NodeRecovery]]:
        """Return the newest as cards, and the rest."""
        w = self._follower.world
        found = []
        for rec in nodes[:CARDS]:
            view = build_explain_view(w, self._follower.rules, rec.id, self._explain_parts)
            if view is not None:
                found.append(
                    RecoveryCard(
                        rec,
                        format_recovery_or_change_title(rec),
                        view,
                        estimator.estimate_node_return_time(rec),
                    )
                )
        return found, nodes[CARDS:]

    def _render_recovery_history(self) -> str:
        w = self._follower.world
        since = w.now - HISTORY
        ended = [r for r in _list_node_and_job_recoveries(w.state, since=since) if r.ended]
        ended.sort(key=lambda r: (r.since, r.id), reverse=True)
        days = [(since + timedelta(days=n)).date() for n in range(1, HISTORY.days + 1)]
        kinds = Counter((r.since.date(), ENDS.get(r.phase, "dim")) for r in ended)
        most = max(Counter(r.since.date() for r in ended).values(), default=1)
        html: str = self._parts.history(ended[:ROWS], len(ended), days, kinds, most)
        return html

    def _render_target_explanation(self, target: str) -> str:
        w = self._follower.world
        named = find_jobs_by_id(w, target)
        number = named[0] if len(named) == 1 else None
        view = build_explain_view(w, self._follower.rules, target, self._explain_parts)
        job = w.slurm.jobs.get(number) if w.slurm and number is not None else None
        if view is None and job is not None:
            ruled = RunPolicyMerger(self._follower.config.list_run_policy_layers).find_job_policy(
                job
            )
            policies = {job.id: ruled.policy} if ruled else {}
            view = make_job_explain_view(w, policies, target, self._explain_parts)
        if view is None:
            return ""
        node = make_nodes_view(w, (target,)).nodes[0] if target in list_known_nodes(w) else None
        own = list_training_job_summaries(w, [number]) if number is not None else []
        title_of_it = self._format_target_name(target, view.target)
        if view.kind in ("job", "array") and title_of_it == target:
            title_of_it = f"Job {target}"
        headline = view.headline.removeprefix(f"{title_of_it}. ")
        related = [(to, self._format_target_name(to)) for to in view.related]
        html: str = self._parts.explain(
            title_of_it,
            headline,
            view,
            related,
            node,
            job,
            own,
            self._make_recovery_phase_segments(view.target),
        )
        return html

    def _format_target_name(self, target: str, subject: str = "") -> str:
        """Return a recovery by its node and fault in words, a change by what it changes; any other
        thing by its own name."""
        state, rid = self._follower.world.state, RecoveryId(subject or target)
        found = state.nodes.get(rid) or state.jobs.get(rid) or state.changes.get(rid)
        return format_recovery_or_change_title(found) if found is not None else target

    def _make_recovery_phase_segments(self, target: str) -> tuple[Segment, ...]:
        """Return how long a recovery was in each phase."""
        state, rid = self._follower.world.state, RecoveryId(target)
        rec = state.nodes.get(rid) or state.jobs.get(rid)
        if rec is None:
            return ()
        now = self._follower.world.now
        first = "open" if rid in state.nodes else "hit"
        entered = [(rec.opened, first), *((move.at, move.phase) for move in rec.trail)]
        ends = [*(move.at for move in rec.trail), *(() if rec.ended else (max(now, rec.since),))]
        spans = [
            (
                begin,
                end,
                f"phase{n % 6}",
                f"{phase}: {format_duration((end - begin).total_seconds())}",
            )
            for n, ((begin, phase), end) in enumerate(zip(entered, ends, strict=False))
        ]
        return scale_time_spans_to_segments(spans) if spans else ()
