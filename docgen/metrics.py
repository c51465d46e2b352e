"""docs/metrics.md: what the head node tells Prometheus, from the code that defines the series."""

from collections.abc import Iterator
from socket import socketpair
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from hpctl.daemon.channel import Channel, Setup
from hpctl.daemon.intake_child import DaemonClient, application, count
from hpctl.daemon.metrics import Metrics
from hpctl.daemon.server import Bounds, Connections

HEAD = """# Metrics

`http://HEAD:8470/metrics`, in Prometheus' text format, without authentication. Every series exists
from the start of the daemon: a missing one means that the daemon is down. `/healthz` answers 200
while it is alive.

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
"""


def page() -> str:
    """The page."""
    found = sorted(_series())
    assert len(found) > 10, "where have the daemon's metrics gone?"
    rows = ("| " + " | ".join((f"`{name}`", *rest)) + " |" for name, *rest in found)
    return HEAD + "\n".join(rows) + "\n" + ALERTS


def _series() -> Iterator[tuple[str, str, str, str]]:
    ours, theirs = socketpair()
    theirs.close()
    line, intake = Channel.of_intake(ours), CollectorRegistry()
    application(Setup(None, (), "token", "journal.db"), DaemonClient(line), intake)
    count(Connections(Bounds()), intake)
    line.close()
    for registry in (Metrics().registry, intake):
        for series in registry._collector_to_names:
            made = cast(MetricWrapperBase, series)
            total = "_total" if made._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in made._labelnames)
            yield f"{made._name}{total}", str(made._type), labels, made._documentation
