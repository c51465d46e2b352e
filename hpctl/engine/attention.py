"""What needs a person, with the command to run: first in `status`, in `top` and on the page."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import ClassVar, Final

from msgspec import Struct

from hpctl.engine.held_jobs import SlurmHeldJob, describe_release_command, find_slurm_held_jobs
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.out_of_service import OutOfServiceCause, OutOfServiceNode, format_slurm_node_state
from hpctl.engine.power_saving import describe_node_power_saving, has_node_failed_to_resume
from hpctl.engine.timeline import (
    describe_gate_block_release,
    find_next_awaited_event,
    format_recovery_or_change_title,
)
from hpctl.engine.untreated import (
    NodeWithoutActiveRecovery,
    describe_node_without_active_recovery,
    find_event_resolving_unrecovered_node,
    find_nodes_without_active_recovery,
)
from hpctl.engine.world import World
from hpctl.faults.slurm_reasons import describe_action_for_drained_node, find_drained_node_fault_row
from hpctl.toolkit.declared_view import AgeCell, Column, Columns, JsonOnly, RowTable
from hpctl.toolkit.hostlist import fold_hostlist, is_host_name
from hpctl.vocabulary.hang import HANG_GATE
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.slurm_facts import SlurmNode

PERSONS_GATES: Final = frozenset(
    {
        "kill_switch",
        "paused",
        "provider_auto_recovery",
        "protected",
        "not_allowed",
        "correlated",
        "offender",
        "launch_breaker",
        "launch_failed",
        "internal_error",
        HANG_GATE,
    }
)
"""The gates that block until a person acts; each of the others opens when its cause passes."""
NAMED: Final = 8
"""So many nodes or jobs of one task are named."""
_COMMAND: Final = re.compile(r"`([^`]+)`")


class PersonTask(Struct, frozen=True):
    """Something that only a person can do.

    `title`: the node or job, and the fault in words. `why` it is left to a person. `ask`: what to
    do; `commands`: those in it. `explain`: what `hpctl explain` takes to say more. `targets`: the
    nodes, or the numbers of the jobs, that it is about.
    """

    title: str
    why: str
    ask: str
    explain: str
    since: datetime
    targets: tuple[str, ...]

    columns: ClassVar[Columns] = (
        Column("WHAT", "title", fold=True),
        Column("WAITING", AgeCell("since")),
        Column("DO", "ask", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("why", "explain", "targets")

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands to choose from, the usual one first."""
        return tuple(_COMMAND.findall(self.ask))


PERSON_TASKS: Final = RowTable("person_tasks", title="Needs a person")


def list_operator_tasks(
    w: World, handed_over: Iterable[NodeRecovery], closed: Iterable[OutOfServiceNode]
) -> list[PersonTask]:
    """Return what needs a person: what concerns most nodes first, then what waits the longest.

    `closed`: the nodes out of service.
    """
    found = [_make_escalated_recovery_task(w, rec) for rec in handed_over]
    found += _make_blocked_gate_tasks(w)
    found += [_make_held_job_task(one) for one in find_slurm_held_jobs(w)]
    named = _collect_task_targets(found)
    left = [one for one in find_nodes_without_active_recovery(w) if one.instance is None]
    found += [_make_untreated_fault_task(one) for one in left if one.name not in named]
    named = _collect_task_targets(found)
    found += (
        task for task in _make_tasks_of_slurm_closed_nodes(w) if named.isdisjoint(task.targets)
    )
    named = _collect_task_targets(found)
    found += (
        _make_out_of_service_task(one, w)
        for one in closed
        if _needs_operator_action(one) and one.node.name not in named
    )
    return sorted(found, key=lambda task: (-len(task.targets), task.since, task.explain))


def _collect_task_targets(tasks: Iterable[PersonTask]) -> set[str]:
    """Return every node and job that some task concerns."""
    return set(chain.from_iterable(task.targets for task in tasks))


def _make_escalated_recovery_task(w: World, rec: NodeRecovery) -> PersonTask:
    return PersonTask(
        title=format_recovery_or_change_title(rec),
        why=rec.trail[-1].why if rec.trail else "",
        ask=find_next_awaited_event(rec, w.policy).what,
        explain=rec.id,
        since=rec.since,
        targets=(rec.node,),
    )


def _make_blocked_gate_tasks(w: World) -> Iterator[PersonTask]:
    """Yield one task for all that the same gate blocks for the same rule: one command lifts
    them."""
    groups: dict[tuple[str, str], list[GateBlocked]] = {}
    for target in sorted(w.state.holds):
        hold = w.state.holds[target]
        if hold.gate in PERSONS_GATES:
            groups.setdefault((hold.gate, hold.rule), []).append(hold)
    newest = {(hold.target, hold.gate): hold.why for hold in w.holds}
    for holds in groups.values():
        first = min(holds, key=lambda hold: (hold.at, hold.target))
        yield PersonTask(
            title=_format_blocked_gate_title(w, holds),
            why=f"gate {first.gate}: {newest.get((first.target, first.gate), first.why)}",
            ask=describe_gate_block_release(first, many=len(holds) > 1).what,
            explain=first.shown,
            since=first.at,
            targets=tuple(hold.target for hold in holds),
        )


def _format_blocked_gate_title(w: World, holds: list[GateBlocked]) -> str:
    """Return the nodes, or jobs, and their fault in words."""
    first = holds[0]
    judged = w.assessments.get(NodeName(first.target))
    fault = judged.fault.meaning if judged is not None and judged.fault is not None else ""
    return f"{_format_blocked_gate_targets(holds)}: {fault or first.rule or first.gate}"


def _format_blocked_gate_targets(holds: list[GateBlocked]) -> str:
    names = [hold.shown for hold in holds]
    if all(hold.target.isdecimal() for hold in holds):
        shown = ", ".join(names[:NAMED])
        what = "Job" if len(names) == 1 else "Jobs"
        return f"{what} {shown}" + (f" and {len(names) - NAMED} more" if names[NAMED:] else "")
    if len(names) == 1:
        return names[0]
    shown = fold_hostlist(names) if all(map(is_host_name, names)) else ", ".join(names[:NAMED])
    return f"{len(names)} nodes ({shown})"


def _make_held_job_task(one: SlurmHeldJob) -> PersonTask:
    job = one.job
    return PersonTask(
        title=f"Job {job.shown}: held by Slurm",
        why=f"Slurm holds it {one.why}",
        ask=describe_release_command(job),
        explain=job.shown,
        since=one.since,
        targets=(str(job.id),),
    )


def _make_untreated_fault_task(one: NodeWithoutActiveRecovery) -> PersonTask:
    fault = one.judged.fault if one.judged is not None else None
    meaning = fault.meaning if fault is not None else ""
    return PersonTask(
        title=f"{one.name}: {meaning or 'left out of service'}",
        why=describe_node_without_active_recovery(one),
        ask=find_event_resolving_unrecovered_node(one).what,
        explain=one.last.id,
        since=one.since,
        targets=(one.name,),
    )


def _make_tasks_of_slurm_closed_nodes(w: World) -> Iterator[PersonTask]:
    """Yield the nodes that Slurm itself has closed, and that do not come back by themselves."""
    candidates = {c.node.name for c in w.candidates}
    for name, node in w.slurm.nodes.items() if w.slurm is not None else ():
        if not node.reason or node.in_service:
            continue
        if name in candidates or w.state.node_recovery(name) is not None:
            continue
        judged = w.assessments.get(name)
        if judged is not None and judged.until is not None:
            continue
        found = _describe_node_closed_by_slurm(node)
        if found is not None:
            what, why, ask = found
            since = node.reason_at or w.now
            yield PersonTask(f"{name}: {what}", why, ask, name, since, (name,))


def _describe_node_closed_by_slurm(node: SlurmNode) -> tuple[str, str, str] | None:
    """Return what Slurm closed a node for, by which words, and what a person does about it."""
    if has_node_failed_to_resume(node):
        ask = f"find out why it did not boot, then run `scontrol update NodeName={node.name}"
        return describe_node_power_saving(node), f"Reason {node.reason!r}", f"{ask} State=RESUME`"
    row = find_drained_node_fault_row(node)
    if row is None:
        return None
    return (
        row.meaning,
        f"{row.by} closed it ({node.reason!r})",
        describe_action_for_drained_node(node),
    )


def _needs_operator_action(one: OutOfServiceNode) -> bool:
    """Return whether only a person brings a node back."""
    return one.problem and one.by in (OutOfServiceCause.PERSON, OutOfServiceCause.UNKNOWN)


def _make_out_of_service_task(one: OutOfServiceNode, w: World) -> PersonTask:
    name = one.node.name
    since = one.node.reason_at or w.now
    return PersonTask(
        f"{name}: out of service", format_slurm_node_state(one.node), one.why, name, since, (name,)
    )


_EXPLAINED: Final = re.compile(r"hpctl explain (\S+)")


def drop_problems_already_shown(problems: Iterable[str], shown: Collection[str]) -> list[str]:
    """Return the problems that name none of `shown`, ids, nodes or jobs, for `hpctl explain`."""
    found = []
    for line in problems:
        named = _EXPLAINED.search(line)
        if named is None or named[1] not in shown:
            found.append(line)
    return found
