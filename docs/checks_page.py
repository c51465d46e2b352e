"""docs/checks.md from the agent's table of checks."""

from __future__ import annotations

from collections.abc import Sequence

from hpctl.agent.budget import CPU_PERCENT, MEMORY_MB
from hpctl.core.faults.row import CheckSpec
from hpctl.core.faults.table import KERNEL_CHECKS, TIMED, rows_of
from hpctl.core.model import Clears

HEAD = f"""# What the agent checks

The node agent states what it sees; how bad that is, and what is done, the head node decides by
[the fault catalogue](catalogue.md): a check `gpu.remap` that finds the code `failure` is judged by
the rule `gpu-remap-failure`. A check without a rule of its own is shown as Suspect and never acts.

`hpctl agent check` runs them all once. A site changes them in `/etc/hpctl/agent.yaml`:

```yaml
expected:                 # what the instance type does not say
  gpus: 8
checks:
  host.disk: {{every_s: 30, limits: {{full_pct: 97}}}}
  gpu.clocks: {{enabled: false}}
  efa.devices: {{gone_s: 300}}
budget:                   # of one core, and resident memory
  cpu_percent: {CPU_PERCENT}
  memory_mb: {MEMORY_MB:g}
```

- **Seen** 2 of 3: reported when two of the last three runs said it.
- **Clears**: `boot`, a restart of the instance; `gone 60 s`, not so for that long; `operator`,
  `hpctl return` or another instance.
- **Grace**: for so long after boot and after an upgrade of the agent, what looks wrong is UNKNOWN:
  no fault yet, but a node that is being verified has to wait.
- **Shed**: when the agent is over its budget for three minutes, it stops the checks with the
  highest number and says so (`agent.checks`, code `shed`); those with 0 always run.
"""

KERNEL_HEAD = """These have no interval: a line is judged when it is read. Only lines of the
kernel's own facility are believed, and of these none that begins with the name of a process (a
segfault's, above all), so that no process can forge a fault. A burst is one finding with a count,
for each boot, device, code and job.
"""


def page() -> str:
    """The page: a table for each section, and the limits below it."""
    parts = [HEAD]
    for title, specs in TIMED:
        parts += [f"## {title}\n", *_table(specs), *_limits(specs)]
    parts += ["## The kernel's log\n", KERNEL_HEAD, *_kernel()]
    return "\n".join(parts)


def _kernel() -> list[str]:
    lines = ["| check | reads | codes | clears | source |", "|---|---|---|---|---|"]
    for spec in KERNEL_CHECKS:
        codes = spec.codes + tuple(row.code for row in rows_of(spec.name) if row.code)
        if spec.name in ("kernel.xid", "kernel.sxid"):
            codes = ("its number",)
        ends = [row.code for row in rows_of(spec.name) if row.clears is Clears.GONE]
        clears = "boot" + (f"; `{ends[0]}` with the line that ends it" if ends else "")
        cells = (f"`{spec.name}`", spec.what, ", ".join(codes), clears, spec.source)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _table(specs: Sequence[CheckSpec]) -> list[str]:
    lines = [
        "| check | looks at | source | every | seen | clears | grace | shed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return [*lines, *map(_line, specs), ""]


def _line(spec: CheckSpec) -> str:
    clears = f"gone {spec.gone_s:g} s" if spec.clears is Clears.GONE else str(spec.clears)
    cells = (
        f"`{spec.name}`",
        spec.what,
        spec.source,
        f"{spec.every_s:g} s",
        f"{spec.seen[0]} of {spec.seen[1]}",
        clears,
        f"{spec.grace_s:g} s" if spec.grace_s else "",
        str(spec.shed),
    )
    return "| " + " | ".join(cells) + " |"


def _limits(specs: Sequence[CheckSpec]) -> list[str]:
    rows = [
        f"| `{spec.name}` | `{name}` | {limit.value:g} {limit.unit} | {limit.why} |"
        for spec in specs
        for name, limit in spec.limits.items()
    ]
    if not rows:
        return []
    return ["| check | limit | shipped | why |", "|---|---|---|---|", *rows, ""]
