"""docs/metrics.md: what the head node tells Prometheus, from the code that defines the series."""

import ast
from collections.abc import Iterator
from pathlib import Path

import hpctl.daemon

HEAD = """# Metrics

`http://HEAD:8470/metrics`, in Prometheus' text format, without authentication. Every series exists
from the start of the daemon: a missing one means that the daemon is down. `/healthz` answers 200
while it is alive. Counters end in `_total`; a histogram has `_bucket`, `_count` and `_sum`.

| series | type | labels | meaning |
|---|---|---|---|
"""
ALERTS = """
## Alerts worth having

```yaml
groups:
  - name: hpctl
    rules:
      - {alert: HpctlDown, for: 5m, expr: absent(hpctl_cycle_seconds_count)}
      - {alert: HpctlStuck, for: 5m, expr: "rate(hpctl_cycle_seconds_count[5m]) == 0"}
      - alert: HpctlEscalated
        expr: delta(hpctl_recoveries_ended{kind="node",end="escalated"}[1h]) > 0
      - {alert: HpctlInternalError, expr: 'hpctl_quarantined{lasting="yes"} > 0'}
      - {alert: HpctlPaused, for: 12h, expr: hpctl_paused == 1}
```

`hpctl status --json` has what a metric cannot: what is blocked by which gate, and why.
"""
KINDS = {"Counter": "_total", "Gauge": "", "Histogram": ""}


def page() -> str:
    """The page."""
    found = sorted(set(_series()))
    assert len(found) > 10, "where have the daemon's metrics gone?"
    rows = ("| " + " | ".join((f"`{name}`", *rest)) + " |" for name, *rest in found)
    return HEAD + "\n".join(rows) + "\n" + ALERTS


def _series() -> Iterator[tuple[str, str, str, str]]:
    for root in hpctl.daemon.__path__:
        for path in sorted(Path(root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield from _call(node, node.func.id)


def _call(node: ast.Call, kind: str) -> Iterator[tuple[str, str, str, str]]:
    texts = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
    if kind in KINDS and texts and texts[0].startswith("hpctl_"):
        lists = [ast.literal_eval(a) for a in node.args if isinstance(a, ast.List)]
        labels = ", ".join(f"`{label}`" for names in lists for label in names)
        yield f"{texts[0]}{KINDS[kind]}", kind.lower(), labels, texts[1]
