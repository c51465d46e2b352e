"""docs/recovery.md, from the transition tables and the policy's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hpctl.core import job_recovery, node_recovery
from hpctl.core.compat import StrEnum
from hpctl.core.gates import GATES
from hpctl.core.policy import JobPolicy, NodePolicy
from hpctl.core.run_gates import RUN_GATES

_HEAD = """# Recoveries

When a node is sick, hpctl opens a **node recovery**: the durable treatment of that node, from
closing it to new work until it is back in service or a person has been asked. For each job that
the fault hit it opens a **job recovery**: from the lost run to the next one. Both are written
down, step by step, before anything is done, so a daemon that dies half-way goes on where it was.

A recovery is always in one **phase**. A **signal**, something that hpctl has seen in the world,
moves it to the next. The diagrams below are drawn from the tables in the code
(`hpctl/core/node_recovery.py`, `hpctl/core/job_recovery.py`); a pair of phase and signal that is
not in them cannot happen, and a journal that says otherwise stops the daemon.

`hpctl explain <node or job>` tells where a recovery stands, why, and what it waits for.
"""
_NODE_INTRO = """## A node

The signals that may come in every phase are left out of the picture and listed under it.
"""
_NODE_PHASES: Mapping[str, tuple[str, str]] = {
    "open": ("decided; the drain is being ordered", "`cordon_deadline_s`"),
    "cordoned": (
        "closed to new work (DRAIN with hpctl's Reason); its jobs are stopped, or may finish",
        "`vacate_deadline_s`; `vacate_after_jobs_deadline_s` where jobs may finish",
    ),
    "vacated": (
        "no job is left; the remedy of the current rung is ordered from the cloud",
        "`replace_deadline_s`",
    ),
    "remedying": (
        "rebooting or being replaced; a new boot has to report",
        "`reboot_deadline_s` or `replace_deadline_s`",
    ),
    "rejoining": (
        "a new boot reports; cloud and slurmd have to agree",
        "`rejoin_deadline_s`",
    ),
    "verifying": (
        "healthy for `verify_healthy_s`, then given back to Slurm",
        "`verify_deadline_s`",
    ),
    "returned": ("back in service", ""),
    "escalated": ("a person has to look; the node stays drained", ""),
    "cancelled": ("an operator took over, or the fault was a mass event's", ""),
}
_JOB_INTRO = """## A job

A job recovery is opened for a job on a node under treatment, and for a job that registered with
`hpctl sbatch` and whose run went wrong by itself:

- it ended FAILED, OUT_OF_MEMORY or NODE_FAIL, and not with an exit code that asks for no restart;
- the supervisor in it (`hpctl run`) asks for a requeue or a hold;
- somebody put it back in the queue, where it would wait out Slurm's begin delay;
- it runs on without the node of its batch script (`--no-kill`, Slurm 25.11).

What is done then is its [recovery policy](policies.md)'s answer: start again, perhaps after a wait
and away from some nodes, or hold with a reason in its Comment (`squeue -o %k`). The policy is the
cluster's, the partition's and the job's own; one that cannot be used is left out, and the recovery
says so.

A job that can go on without a node (`spares` in its Comment) is only watched: the node is drained
and set DOWN, and the supervisor has `supervisor_grace_s` to say that it goes on. Where it is the
node of the batch script, the job is requeued before that.

Nothing is held on the way: a daemon that dies half-way leaves a job that starts by itself.
"""
_JOB_PHASES: Mapping[str, tuple[str, str]] = {
    "hit": ("its node is sick and not closed yet, or its run went wrong", "`stop_deadline_s`"),
    "excising": (
        "a supervisor in the job can go on without the node, which is about to be set DOWN",
        "`stop_deadline_s`",
    ),
    "watching": (
        "it runs on without the node; its supervisor has to say that it goes on",
        "`supervisor_grace_s`, then it is stopped",
    ),
    "saving": ("asked by signal to save a checkpoint", "`save_grace_s`, then it is stopped"),
    "stopping": ("being stopped; COMPLETING has to clear", "`stop_deadline_s`"),
    "released": ("in the queue; its begin delay is being removed", "`release_deadline_s`"),
    "starting": ("free to start on healthy nodes", "`start_deadline_s`"),
    "proving": ("running again; counts after `prove_s`", "`prove_deadline_s`"),
    "resumed": ("runs, or has finished", ""),
    "held": ("over its restart budget: held, with the reason in its Comment", ""),
    "gave_up": ("cannot be run again by hpctl; its owner is told why", ""),
    "cancelled": ("no longer hpctl's business", ""),
}
_GATES = """## Before a recovery opens

Each of these safety checks, in this order, may turn a decision into a **hold**. A hold is shown
by `hpctl status` and explained by `hpctl explain`; one that can be approved is waved for an hour
by `hpctl approve <node>`.

| gate | what it checks | may be approved | holds an operator's own order |
|---|---|---|---|
"""

_RUN_GATES = """
A run that went wrong by itself passes these before its recovery opens; none can be waved:
"""


def page() -> str:
    """The whole file, without the note that it is generated."""
    node, job = node_recovery, job_recovery
    parts = [_HEAD, _NODE_INTRO]
    parts += _section(node.TRANSITIONS, list(node.Phase), node.ENDS, _NODE_PHASES)
    parts += [_numbers(NodePolicy(), "node"), _JOB_INTRO]
    parts += _section(job.TRANSITIONS, list(job.Phase), job.ENDS, _JOB_PHASES)
    parts += [_numbers(JobPolicy(), "job"), _gates()]
    return "\n".join(parts)


def _section(
    table: Mapping[tuple[StrEnum, StrEnum], StrEnum],
    phases: Sequence[StrEnum],
    ends: frozenset[StrEnum],
    words: Mapping[str, tuple[str, str]],
) -> list[str]:
    if set(words) != {str(p) for p in phases}:
        raise ValueError(f"phases without words, or words without phases: {words.keys()}")
    everywhere = _everywhere(table, [p for p in phases if p not in ends])
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {phases[0]}"]
    for (phase, signal), after in table.items():
        if signal not in everywhere:
            lines.append(f"    {phase} --> {after}: {signal}")
    lines += [f"    {end} --> [*]" for end in phases if end in ends]
    lines += ["```", "", "In every phase that is not an end:", ""]
    lines += [f"- `{signal}` leads to **{after}**" for signal, after in everywhere.items()]
    lines += ["", "| phase | what it means | ends at the latest by |", "|---|---|---|"]
    lines += [f"| {p} | {words[p][0]} | {words[p][1] or 'an end'} |" for p in phases]
    return [*lines, ""]


def _everywhere(
    table: Mapping[tuple[StrEnum, StrEnum], StrEnum], waiting: Sequence[StrEnum]
) -> dict[StrEnum, StrEnum]:
    """Signals that every waiting phase knows and that all lead to the same phase."""
    found = {}
    for signal in dict.fromkeys(s for _, s in table):
        after = {table.get((phase, signal)) for phase in waiting}
        only = after.pop()
        if not after and only is not None:
            found[signal] = only
    return found


def _numbers(policy: NodePolicy | JobPolicy, section: str) -> str:
    lines = [f"The numbers, as keys of the section `{section}:` of the configuration:", ""]
    lines += ["| key | default |", "|---|---|"]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        if field.name.endswith("_s"):
            lines.append(f"| `{field.name}` | {value:.10g} s |")
        elif isinstance(value, int):
            lines.append(f"| `{field.name}` | {value} |")
    return "\n".join([*lines, ""])


def _gates() -> str:
    rows = [
        f"| {g.name} | {(g.gate.__doc__ or '').strip().splitlines()[0]} "
        f"| {'yes' if g.approvable else 'no'} | {'yes' if g.manual else 'no'} |"
        for g in GATES
    ]
    of_runs = [f"- {g.name}: {(g.gate.__doc__ or '').strip().splitlines()[0]}" for g in RUN_GATES]
    return _GATES + "\n".join([*rows, _RUN_GATES, *of_runs]) + "\n"
