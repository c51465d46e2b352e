"""docs/recovery.md, from the transition tables and the policy's defaults."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpctl.engine.gates import GATES
from hpctl.engine.remedies import REMEDY_GATES
from hpctl.jobs.run_gates import RUN_GATES
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary import job_recovery, node_recovery

_HEAD = """# Recoveries

A **node recovery** treats one sick node, from the drain until it is back in service or a person is
asked. A **job recovery** treats one lost run. Each step is journaled before it is done, so a daemon
that is killed continues where it was.

A recovery is in one **phase**; a **signal** moves it to the next. `hpctl explain ID` prints its
phase and what it waits for.
"""
_NODE_INTRO = """## A node

While an administrator's reservation with `Flags=MAINT` holds the node, and `maintenance_lead_s`
before it begins, the recovery waits. What is seen still moves it, no step is taken on the node, and
no deadline runs; afterwards the phase has its whole time again.
"""
_NODE_PHASES: Mapping[str, tuple[str, str]] = {
    "open": ("decided; the drain is being ordered", "`cordon_deadline_s`"),
    "cordoned": (
        "closed to new work (DRAIN with hpctl's Reason); its jobs are stopped, or may finish",
        "`vacate_deadline_s`; `vacate_after_jobs_deadline_s` where jobs may finish",
    ),
    "vacated": (
        "no job is left; the remedy of the current rung is ordered from agent or cloud",
        "`replace_deadline_s`; `vacate_after_jobs_deadline_s` while a gate holds the remedy",
    ),
    "remedying": (
        "GPUs are reset, or a new boot has to report",
        "`reset_deadline_s`, `reboot_deadline_s` or `replace_deadline_s`",
    ),
    "rejoining": ("a new boot reports; cloud and slurmd have to agree", "`rejoin_deadline_s`"),
    "verifying": (
        "healthy for `verify_healthy_s`, then tested or given back to Slurm",
        "`verify_deadline_s`",
    ),
    "accepting": (
        "resumed inside a reservation of hpctl's alone, where a job [tests](acceptance.md) it",
        "of `acceptance`: `start_s`, `quick_s` or `full_s`, `result_s`; and `doubt_window_s`",
    ),
    "unreserving": (
        "drained unless it passed; job and reservation are deleted",
        "`vacate_deadline_s`",
    ),
    "returned": ("back in service", ""),
    "removed": ("its instance was deleted, by an operator's order or a scale-down", ""),
    "escalated": ("a person has to look; the node stays drained", ""),
    "cancelled": (
        "an operator took over, the fault was a mass event's, or an order was taken back",
        "",
    ),
}
_JOB_INTRO = """## A job

Opened for a job on a node under treatment, and for a job registered by `hpctl sbatch` that ended
badly, asks for a requeue or a hold, waits out Slurm's begin delay, or lost the node of its batch
script. Its [policy](policies.md) decides: start again, let it end, or hold with the reason in its
Comment (`squeue -o %k`). A job with spares is watched: its supervisor has `supervisor_grace_s` to
report that it continues.
"""
_JOB_PHASES: Mapping[str, tuple[str, str]] = {
    "hit": ("its node is sick and not closed yet, or its run went wrong", "`stop_deadline_s`"),
    "excising": (
        "a supervisor in the job can go on without the node, which is about to be set DOWN",
        "`stop_deadline_s`",
    ),
    "watching": (
        "it runs on without the node; its supervisor has to report that it continues",
        "`supervisor_grace_s`, then it is stopped",
    ),
    "saving": ("asked by signal to save a checkpoint", "`save_grace_s`, then it is stopped"),
    "stopping": (
        "being stopped; COMPLETING has to clear",
        "`stop_deadline_s`; `start_deadline_s` while it is COMPLETING",
    ),
    "released": ("in the queue; its begin delay is being removed", "`release_deadline_s`"),
    "starting": (
        "free to start on healthy nodes",
        "`start_deadline_s`; none while it waits its turn in Slurm's queue",
    ),
    "proving": ("running again; counts after `prove_s`", "`prove_deadline_s`"),
    "resumed": ("runs, or has finished", ""),
    "held": ("over its restart budget: held, with the reason in its Comment", ""),
    "gave_up": ("cannot be run again by hpctl; its owner is notified why", ""),
    "cancelled": ("no longer hpctl's business", ""),
}
_GATES = """## Gates

Safety checks before a recovery opens, which closes the node, in this order. `hpctl status` lists
what they block, and `hpctl approve NODE` lifts an approvable one for an hour. A gate that is not
approvable blocks an operator's order too.

| gate | blocks because | approvable |
|---|---|---|
"""

_REMEDY_GATES = """
In mode `own`, before the first reset, reboot or replacement of an open recovery. The node stays
drained meanwhile. A remedy takes a slot when it begins and frees it when its recovery ends; a
recovery that waits for jobs, for a slot, or for an instance that takes no order (such as one that
is not Running), takes none.

| gate | holds the remedy because | approvable |
|---|---|---|
"""
_SURROUNDINGS: Mapping[str, str] = {
    "agent-killed": "Its unit starts it again. What it had seen is in its spool.",
    "intake-killed": "The daemon starts it again; connections wait. Agents and jobs repeat what was"
    " not acknowledged.",
    "page-killed": "The daemon starts it again, later each time.",
    "daemon-killed": "In any phase of a recovery: its unit starts it again. It replays the journal,"
    " looks what became of a step in doubt, and continues. No step is repeated blindly.",
    "slurmctld-away": "Nothing is decided about nodes or jobs. `hpctl status` says that Slurm"
    " cannot be read.",
    "database-away": "Nothing is done and no report is accepted until the journal can be written"
    " again; then it is read again. So with a directory that was moved away. A daemon that starts"
    " meanwhile ends, and its unit starts it again.",
    "clock-head": "The times of what is open move with the clock, so nothing waits longer or runs"
    " out at once ([why](adr/0108-what-is-open-follows-a-clock-that-is-set.md)). Beyond what MUNGE"
    " takes (5 minutes) no report counts, so nothing is begun.",
    "clock-node": "Only the reports of that node are refused, as the node's agent says in its log.",
    "crowded-queue": "An array of 100,000 tasks that wait is one record. Where slurmctld itself"
    " no longer answers: as `slurmctld-away`.",
    "few-descriptors": "Commands and calls that cannot start are tried again in each cycle.",
    "little-memory": "A cycle that fails is begun again from the facts; readings and orders need no"
    " new thread. Where the daemon ends or hangs, its unit starts it again (`WatchdogSec=`).",
    "second-daemon": "It is refused, with the pid of the first one.",
    "disk-full": "As `database-away`. `hpctl status` names the file system and how full it is.",
}
_FAULTS = """## When a part of hpctl, or what it runs on, fails

Jobs run on, and nothing below needs a person but to put right what is broken. Afterwards the
daemon leads again, the journal reads back, every recovery comes to its end, and no drain, reboot
or replacement was ordered twice. `make soak FAULTS="NAME..."` breaks these at random over a real
Slurm with training jobs, between faults of nodes, jobs and the cloud, and checks that each time.

| fault | meanwhile |
|---|---|
"""
_RUN_GATES: Sequence[str] = [*(gate.name for gate in RUN_GATES)]


def page() -> str:
    """Return the whole file, without the note that it is generated."""
    node, job = node_recovery, job_recovery
    parts = [_HEAD, _NODE_INTRO]
    parts += _make_section(node.TRANSITIONS, list(node.NodeRecoveryPhase), node.ENDS, _NODE_PHASES)
    parts += [_JOB_INTRO]
    parts += _make_section(job.TRANSITIONS, list(job.JobRecoveryPhase), job.ENDS, _JOB_PHASES)
    parts += [_list_gates(), _faults()]
    return "\n".join(parts)


def _make_section(
    table: Mapping[Any, StrEnum],
    phases: Sequence[StrEnum],
    ends: frozenset[StrEnum],
    args: Mapping[str, tuple[str, str]],
) -> list[str]:
    if set(args) != {str(p) for p in phases}:
        raise ValueError(f"phases without words, or words without phases: {args.keys()}")
    everywhere = _find_common_signals(table, [p for p in phases if p not in ends])
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {phases[0]}"]
    waiting = [p for p in phases if p not in ends]
    loops = {s for _, s in table if all(table.get((p, s)) == p for p in waiting)}
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (phase, signal), after in table.items():
        if everywhere.get(signal) != after and signal not in loops:
            arrows.setdefault((phase, after), []).append(str(signal))
    lines += [f"    {phase} --> {after}: {', '.join(by)}" for (phase, after), by in arrows.items()]
    lines += [f"    {end} --> [*]" for end in phases if end in ends]
    lines += [
        "```",
        "",
        "In every phase that is not an end, unless the diagram says otherwise:",
        "",
    ]
    lines += [f"- `{signal}` leads to **{after}**" for signal, after in everywhere.items()]
    lines += [f"- `{signal}` changes no phase" for signal in sorted(loops)]
    lines += ["", "| phase | what it means | ends at the latest by |", "|---|---|---|"]
    lines += [f"| {p} | {args[p][0]} | {args[p][1] or 'end'} |" for p in phases]
    return [*lines, ""]


def _find_common_signals(
    table: Mapping[Any, StrEnum], waiting: Sequence[StrEnum]
) -> dict[StrEnum, StrEnum]:
    """Signals that every waiting phase knows, and where they lead from all of them but one."""
    found = {}
    for signal in dict.fromkeys(s for _, s in table):
        after = Counter(table.get((phase, signal)) for phase in waiting)
        most, count = after.most_common(1)[0]
        if most is not None and None not in after and count >= len(waiting) - 1:
            found[signal] = most
    return found


def _list_gates() -> str:
    rows = [
        f"| {g.name} | {(g.gate.__doc__ or '').strip().splitlines()[0]} "
        f"| {'yes' if g.approvable else ''} |"
        for g in GATES
    ]
    text = _GATES + "\n".join(rows) + "\n"
    remedies = [
        f"| {g.name} | {(g.gate.__doc__ or '').strip().splitlines()[0]} "
        f"| {'yes' if g.approvable else ''} |"
        for g in REMEDY_GATES
    ]
    text += _REMEDY_GATES + "\n".join(remedies) + "\n"
    if _RUN_GATES:
        text += f"\nFor a run that failed without a node's fault: {', '.join(_RUN_GATES)}.\n"
    return text


def _faults() -> str:
    rows = [f"| {name} | {text} |" for name, text in _SURROUNDINGS.items()]
    return _FAULTS + "\n".join(rows) + "\n"
