"""docs/policies.md: what a recovery policy says, with the defaults from the code."""

from __future__ import annotations

from hpctl.core.run_policy import DEFAULTS, Action, Backoff, RunPolicy, Treatment
from hpctl.core.trouble import Kind

HEAD = """# Recovery policies

What is done when a run goes wrong: restart its processes, its step or the whole job, after which
wait, without which nodes, and when to stop and tell its owner. One pure function answers, for the
step supervisor inside the job, for the daemon and for `hpctl policy test`
([why](adr/0022-one-answer-to-a-run-s-trouble.md)).

A policy is a YAML file of which every key may be left out. Four layers make what holds for a job,
and of each key the last that sets it wins: the defaults below, the cluster's (`run_policy:` in the
daemon's configuration), its partition's (`run_policies: {partition: ...}` there), and the job's own
(`hpctl sbatch --policy FILE`), which travels in the job's Comment. The keys of `backoff`, and of
each kind below `on`, are merged one by one.

```yaml
restarts: 5               # in window_s
window_s: 12h
nodes: 6-8                # goes on with six, grows back to eight
on:
  hang: {ladder: [step, requeue, hold], exclude: 1}
  nan: hold               # short for {ladder: [hold]}
  spike: [notify, step]   # short for {ladder: [notify, step]}
notify: [/fsx/bin/page, --team, llm]
```

```
hpctl policy check FILE...                      every error at once, with line and near miss
hpctl policy example                            every key at its default, with the reasons
hpctl policy show --partition gpu FILE          what holds, key by key, and which file says so
hpctl policy test FILE --scenario SCENARIO      what it would do, event by event, and why
```
"""

LADDERS = """## Ladders

An answer is the gentlest action that is possible and useful: {actions}.

- The same kind of trouble again, without progress in between, climbs one rung; progress goes back
  to the first. What is not possible (no launcher inside the step, no healthy nodes left, a job that
  Slurm would not requeue) is passed over. An action that stands twice is tried twice. The last rung
  is kept; a ladder that does not end in `hold` tries what it tried before rather than nothing.
- Where `exclude` is 1 the node leaves at once, and trouble on another node is not the same again.
- **Progress** is a newer complete checkpoint; where no checkpoint is known, a later training step;
  where neither is known, `proven_s` without trouble. The end of a time limit proves nothing.
- **Budgets**: `restarts` in `window_s` (a time limit or a preemption is no failure and is not
  counted), `without_progress` restarts in a row, and for kinds with `hold_same` the same signature
  `same_signature` times without progress, and `max` restarts for one kind where that is set. Over
  any of them the job is held, with a reason that begins with `hpctl:` and can be read in squeue.
  `scontrol release` starts the count afresh.
- **Backoff**: the first restart in a row never waits, the second waits `first_s`, each further one
  `factor` times longer up to `cap_s`, plus up to a quarter so that jobs which one outage hit do not
  all come back at once. Only restarts of kinds with `backoff` count.
- **Excluded nodes**: the times that a node was named add up over all kinds with `exclude`, within
  `window_s`, until it is replaced or repaired. A node that is proven bad (`node`, `corruption`) is
  never used to have enough; a suspected one is, the longest suspected first, where the run could
  not go on otherwise, and at most `most_excluded` are left out.
- **`save_first`**: ranks that still live are asked to save, and get `save_grace_s` for it.
- **Elastic**: with `nodes: 6-8` a run goes on with six or seven when no spare is left, before it
  gives its nodes back. It grows when what it saves is `grow_gain` times what the restart costs.
- `final` cannot be given restarts: it is what a program says with its exit code.

The HyperPod training operator's `restartPolicy` in these words: `evalPeriodSeconds: 21600` is
`window_s: 6h`; `numRestartBeforeFullJobRestart: 3` with `maxFullJobRestarts: 1` is the ladder
`[process, process, process, requeue, hold]`; `maxNumRepeatOffendersToAvoid` is `most_excluded`.
"""

SCENARIO = """## Trying a policy

A scenario says what happens to a run; nothing is done, and nothing but the two files is read.

```yaml
nodes: 4                  # the job's; with spares: 1 inside its allocation,
spares: 1                 # and pool: 4 (as many as nodes, if left out) beside it
process: true             # a launcher inside the step can restart ranks
events:
  - {at: 10m, kind: node, node: n2, progress: 100}
  - {at: 20m, kind: crash, signature: KeyError, progress: 150, repeat: 3, every_s: 2m}
  - {at: 2h, released: true}
  - {at: 3h, returned: [n2]}
```

Nodes are called n1, n2 and so on, or as `names` says. A trouble may also have `why`, `rank`,
`step`, `exit_code` and `alive`; `requeue: false` is a job that Slurm would not take back.
`remaining_s` and `restart_cost_s` decide whether growing pays. Exit code 1: it ends held; 2: a file
is wrong.
"""

CRASHES = """## How a crash is told

The supervisor looks, in this order, at Slurm's state of the job, at exit codes that mean something
(`final_exit_codes`, `corruption_exit_codes`: the job's own, a task's that srun names, a rank's that
torchrun names), at what Slurm says at the log's end, at what the first rank that broke said, at
those that only lost others, and at the signal or exit code. The last 500 lines or 64 KiB of the log
count; an error that was followed by 40 ordinary lines was survived. The wordings, each with a line
that was really seen and its source, are the table `hpctl/jobs/crash_patterns.py`.

A signature is the same for the same root cause: no addresses, numbers, temporary paths or host
addresses of the log are in it. An end that left no word has its exit code or signal for one. It is
a guess from text that any program can print, so it decides what happens to this job and never
drains a node.
"""


def page() -> str:
    """The page's text."""
    actions = ", ".join(f"`{action}`" for action in Action)
    parts = [HEAD, _kinds(), LADDERS.format(actions=actions), _keys(), SCENARIO, CRASHES]
    return "\n".join(parts)


def _kinds() -> str:
    out = ["## Kinds of trouble and their defaults", ""]
    out.append("| kind (`on:`) | ladder | backoff | exclude | also | because |")
    out.append("|---|---|---|---|---|---|")
    out += [_kind(kind, DEFAULTS[kind]) for kind in Kind]
    return "\n".join([*out, ""])


def _kind(kind: Kind, treatment: Treatment) -> str:
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
    "restarts": "restarts in `window_s`, then the job is held",
    "window_s": "how far back restarts and named nodes count",
    "without_progress": "restarts in a row without progress, then the job is held",
    "same_signature": "times the same signature without progress, then the job is held",
    "proven_s": "so long without trouble is progress, where nobody knows better",
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


def _keys() -> str:
    default = RunPolicy()
    out = ["## Keys", "", "Durations are seconds, or `30s`, `10m`, `2h`, `1d`.", ""]
    out += ["| key | default | meaning |", "|---|---|---|"]
    for name, meaning in _MEANINGS.items():
        out.append(f"| `{name}` | {_value(getattr(default, name))} | {meaning} |")
    return "\n".join([*out, ""])


def _value(value: object) -> str:
    if isinstance(value, Backoff):
        return ", ".join(f"{n:g}" for n in (value.first_s, value.factor, value.cap_s))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
