"""docs/policies.md: what a recovery policy says, with the defaults from the code."""

from hpctl.vocabulary.run_policy import (
    DEFAULTS,
    RestartBackoff,
    RunAction,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import TroubleKind

HEAD = """# Recovery policies

A recovery policy states what is done when a run fails: restart its processes, its step or the whole
job, after which wait, without which nodes, and when to let it end or hold it. The
[guide](policy-guide.md) shows how to write one.

Four layers are merged key by key, the last wins: the defaults below, `run_policy:` in
[hpctl.yaml](configuration.md), `run_policies: {partition: ...}` there, and the job's own
(`hpctl sbatch --policy FILE`). `hpctl run` gets the two of hpctl.yaml from the daemon; where no
daemon answers, and for `nodes`, `spares` and `log_rules`, it uses the other two.
"""

LADDERS = """## Ladders

Actions, from the gentlest: {actions}.

- The same kind of trouble without progress climbs one rung; progress returns to the first. What is
  not possible is skipped. The last rung is kept.
- **Progress** is a newer complete checkpoint; where no checkpoint is known, a later training step;
  where neither is known, `proven_s` without trouble.
- **Budgets**: `restarts` in `window_s` (time limits and preemptions do not count),
  `without_progress` in a row, the same signature `same_signature` times for kinds with
  `hold_same`, as often the same rank at the same step on different nodes, and `max` for one kind.
  Over any of them the job is stopped: by the last rung of the kind's ladder, `end` or `hold`, or
  of its default ladder; held where both have neither.
- **`end`**: the job stays as Slurm ended it, FAILED with the program's exit code, so that
  `sbatch -W`, dependents and workflow engines see the end. A run that Slurm has requeued itself
  (RequeueExit) or that still runs is cancelled: no order makes it FAILED.
- **`hold`**: the job waits in the queue, held, with the reason in its Comment
  ([when](jobs.md#when-a-job-is-held)). `scontrol release` starts the count afresh.
- **Backoff**: the first restart never waits, the second waits `first_s`, each further one `factor`
  times longer up to `cap_s`, plus jitter.
- **Excluded nodes** (named `exclude` times) are left out until replaced or repaired. A suspected
  node is used again when the run could not go on otherwise, a proven one
  (`node`, `corruption`) is not.
- **Time limit**: a registered job with a checkpoint directory is started again, with its whole time
  limit: by `hpctl run` shortly before the limit, else by the daemon once Slurm has ended it
  (TIMEOUT). A job without one stays ended, and so does one with `--no-requeue`.
- **`save_first`**: ranks that live are asked to save and get `save_grace_s`.
- **Elastic**: with `nodes: 6-8` a run continues on six or seven nodes; it grows if what it saves
  is `grow_gain` times what the restart costs.

A node that fails is no end of the program, and an administrator's `scontrol requeue` counts as no
restart. A crash is classified from Slurm's job state, exit codes and the log's end. Its signature
leaves out addresses, numbers and host names. It never drains a node.
"""

COMPLETING = """## Jobs that stay COMPLETING

A job stays COMPLETING while an Epilog or a process on one of its nodes does not end, and it cannot
restart meanwhile. After `job.completing_shown_s` `hpctl status`, and `hpctl explain` of job and
node, name the node. After `job.completing_deadline_s`, where a restart waits, the node is drained,
set DOWN once no other job runs there, and rebooted. Every gate counts: an Epilog that is stuck on
many nodes is blocked as `correlated`.

Before 23.11.11, 24.05.6 and 24.11.1 Slurm breaks a requeued job whose last completing node is set
DOWN. There hpctl waits, and the job restarts when the Epilog ends: end it on the node.
"""

HANGS = """## Hangs of jobs without hpctl run

A job makes no progress when no process of it computes, reads or writes while one waits on a futex
(gloo), on a GPU that is busy at under 60 % of its earlier power (NCCL), or in state D. It hangs
when that lasts for `hangs.factor` times its own longest pause, and `hangs.floor_s`.

Whatever is done about it, `hpctl explain JOB` shows "Standing still since" after `hangs.shown_s`
without work (`standstill` in JSON), and what the processes do instead, as the agents count it. That
may be a program that waits for something on purpose.

`hangs.action`: `notify`, `dump` (stacks), `requeue`, `cancel`; the last two dump first. Jobs under
`hpctl run`, or with `HYPERPOD_HANG_RULES` in their environment, are left alone.
"""


def page() -> str:
    """Return the page's text."""
    actions = ", ".join(f"`{action}`" for action in RunAction)
    parts = [HEAD, _list_kinds(), LADDERS.format(actions=actions), _list_keys(), COMPLETING, HANGS]
    return "\n".join(parts)


def _list_kinds() -> str:
    out = ["## Kinds of trouble and their defaults", ""]
    out.append("| kind (`on:`) | ladder | backoff | exclude | also | reason |")
    out.append("|---|---|---|---|---|---|")
    out += [_describe_kind(kind, DEFAULTS[kind]) for kind in TroubleKind]
    return "\n".join([*out, ""])


def _describe_kind(kind: TroubleKind, treatment: TroubleTreatment) -> str:
    also = [name for name in ("save_first", "hold_same") if getattr(treatment, name)]
    cells = (
        f"`{kind}`",
        " > ".join(treatment.ladder),
        "yes" if treatment.backoff else "",
        str(treatment.exclude or ""),
        ", ".join(f"`{name}`" for name in also),
        treatment.why,
    )
    return "| " + " | ".join(cells) + " |"


_MEANINGS = {
    "restarts": "restarts in `window_s`, then the job is stopped",
    "window_s": "how far back restarts and named nodes count",
    "without_progress": "restarts in a row without progress, then the job is stopped",
    "same_signature": "times the same signature without progress, then the job is stopped",
    "proven_s": "so long without trouble is progress, where progress is unknown",
    "most_excluded": "nodes that are left out on suspicion, at most",
    "backoff": "`first_s`, `factor`, `cap_s`",
    "save_grace_s": "how long ranks may save before they are stopped",
    "nodes": "elastic range, `6-8`; unset: the job keeps its size",
    "grow_gain": "how many times over growing must pay for its restart",
    "spares": "nodes of the allocation that wait for one of the others to fail",
    "final_exit_codes": "exit codes that ask not to be run again",
    "corruption_exit_codes": "exit codes that are evidence of silent data corruption (Megatron-LM)",
    "hang_floor_s": "no step for so long can be a hang; sooner it is none",
    "hang_factor": "no step for so many times the run's own median step is a hang",
    "hang_start_s": "no first step for so long is a hang",
    "log_rules": "presets or absolute paths of [log rules](logs.md)",
    "notify": "a command that gets trouble and answer as JSON on its standard input",
}


def _list_keys() -> str:
    default = RunPolicy()
    out = ["## Keys", "", "Durations are seconds, or `30s`, `10m`, `2h`, `1d`.", ""]
    out += ["| key | default | meaning |", "|---|---|---|"]
    for name, meaning in _MEANINGS.items():
        out.append(f"| `{name}` | {_format_value(getattr(default, name))} | {meaning} |")
    return "\n".join([*out, ""])


def _format_value(value: object) -> str:
    if isinstance(value, RestartBackoff):
        return ", ".join(f"{n:g}" for n in (value.first_s, value.factor, value.cap_s))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
