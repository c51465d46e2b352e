"""docs/checks.md from the agent's table of checks."""

from collections.abc import Sequence

from hpctl.detection.budget import CPU_PERCENT, MEMORY_MB
from hpctl.faults.table import (
    BENIGN_LINES,
    KERNEL_CHECKS,
    TIMED,
    HealthCheckSpec,
    list_check_fault_rows,
)
from hpctl.vocabulary.model import ClearCondition

HEAD = f"""# What the agent checks

The agent reports findings; the head node judges them by the [fault catalogue](catalogue.md): check
`gpu.remap` with code `failure` is rule `gpu-remap-failure`. A finding without a rule is shown as
Suspect and causes no action. `hpctl agent check` runs every check once. A site changes them in
`/etc/hpctl/agent.yaml`, which the agent reads when it starts:

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

- **Seen** 2/3: reported when two of the last three runs found it; empty: when one did.
- **Every** and **clears** are in seconds: it clears when absent for so long; `boot`, by a restart;
  `operator`, by `hpctl undrain` or another instance.
- **Limits**: names and shipped values, to be changed under `limits`.

For some minutes after boot what looks wrong is UNKNOWN and not a fault. An agent over its budget
for three minutes stops optional checks and reports it (`agent.checks`, code `shed`).
"""

KERNEL_HEAD = """A line is judged when it is read. Only lines of the kernel's own facility count,
and none that begins with a process name, so that no process can forge a fault. Codes are in the
[catalogue](catalogue.md); `hpctl/faults/kernel.md` has a pattern and an example of each. A finding
clears at a restart{gone}.

A line's verdict is that of its row in the catalogue: `fail` where hpctl treats the node, `warn`
where the node is shown as Suspect, `note` for all others. A note is counted and shown
(`hpctl agent check`, `hpctl explain`, `hpctl_agent_notes_total`) and says nothing against the node:

- an Xid that a program's own fault causes (13, 31, 43): the job is restarted, the node stays in
  service, also where several jobs had it on one GPU;
- a line of a driver that no check knows (`kernel.driver`). It is a warning only beside another sign
  against the same hardware (rule `kernel-driver-unknown-confirmed`): a finding of a check of the
  same driver, of the same device where both name one, for which a node is Suspect or Faulty, and
  which is seen from a minute before the first such line to a minute after the last.

`hpctl agent check` and `hpctl agent triage` judge all lines of a boot together, by the daemon's
rules.
"""
BENIGN_HEAD = """These lines a healthy node prints, and nothing is reported for them:
"""

_WITH_UNIT = ("_per_s", "_per_min", "_per_hour", "_pct", "_percent", "_s", "_mib", "_gib")
"""Names of limits that end with the unit."""


def page() -> str:
    """Return the page: a table for each section."""
    parts = [HEAD]
    for title, specs in TIMED:
        parts += [f"## {title}\n", *_make_table(specs)]
    parts += ["## The kernel log\n", _kernel_head(), *_list_kernel_checks()]
    return "\n".join(parts)


def _list_kernel_checks() -> list[str]:
    rows = [f"| `{spec.name}` | {spec.what} |" for spec in KERNEL_CHECKS]
    table = ["| check | reads |", "|---|---|", *rows, ""]
    benign = [f"| `{row.begins}` | {row.why} | {row.source} |" for row in BENIGN_LINES]
    return [*table, BENIGN_HEAD, "| begins with | why | source |", "|---|---|---|", *benign, ""]


def _kernel_head() -> str:
    gone = [
        f"`{row.code}` of `{spec.name}`"
        for spec in KERNEL_CHECKS
        for row in list_check_fault_rows(spec.name)
        if row.clears is ClearCondition.GONE
    ]
    also = f", {' and '.join(gone)} also with the line that ends it" if gone else ""
    return KERNEL_HEAD.format(gone=also)


def _make_table(specs: Sequence[HealthCheckSpec]) -> list[str]:
    head = ["| check | looks at | every | seen | clears | limits |", "|---|---|---|---|---|---|"]
    return [*head, *map(_make_line, specs), ""]


def _make_line(spec: HealthCheckSpec) -> str:
    clears = f"{spec.gone_s:g}" if spec.clears is ClearCondition.GONE else str(spec.clears)
    limits = ", ".join(
        f"`{name}` {one.value:g}" + ("" if name.endswith(_WITH_UNIT) else f" {one.unit}")
        for name, one in spec.limits.items()
    )
    seen = "" if spec.seen == (1, 1) else f"{spec.seen[0]}/{spec.seen[1]}"
    cells = (f"`{spec.name}`", spec.what, f"{spec.every_s:g}", seen, clears, limits)
    return "| " + " | ".join(cells) + " |"
