"""docs/metrics.md: what the head node tells Prometheus, from the code that defines the series."""

from collections.abc import Iterator
from socket import socketpair
from textwrap import fill
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from hpctl.daemon.intake import ROUTES
from hpctl.detection.metrics import load_metric_series_descriptions
from hpctl.service.intake.channel import IntakeChannel, Setup
from hpctl.service.intake.child import (
    IntakeDaemonClient,
    make_intake_process_application,
    register_connection_gauges,
)
from hpctl.service.intake.server import ConnectionLimits, PeerConnectionTracker
from hpctl.service.metrics import DaemonMetrics

HEAD = """# Metrics

`http://HEAD:8470/metrics`, in Prometheus' text format, without authentication: at most 358 series,
12 a partition, and 102 for what waits for a person by name. All but the named ones exist from the
start of the daemon: a missing one means that it is down.
`/healthz` answers 200 while it is alive. `hyperpod_training_operator_jobs_*` are the training
operator's names, for registered jobs.

| series | labels | meaning |
|---|---|---|
"""


AGENTS = """
## Of a node

Every agent serves its last readings, for the head nodes and its own host alone, at port 8471
(`--metrics`). `http://HEAD:8470/sd` lists the agents for Prometheus' HTTP
service discovery. Names begin with `hpctl_agent_`:

"""


GUIDE = """
## Prometheus and Grafana

`hpctl observability render --out DIR` writes for Prometheus 2.42 and Grafana 10.1, or later:

- `prometheus.yml`: head nodes, and agents as they come and go.
- `hpctl.rules.yml`: [alerts](alerts.md), with a `runbook_url` each. `--docs URL` is where this
  documentation is served; without it the URL is that of `alerts.md`, which is written beside the
  rules.
- `dashboards/`, for Grafana's Import: fleet, recoveries, jobs, grey failures, hpctl. They link to
  each other, and to [the page](page.md) at the address in their variable `page`. Recoveries,
  takeovers and alerts are marked in each graph.

`hpctl observability up` runs Prometheus here.
"""


def page() -> str:
    """Return the page."""
    found = sorted(_list_series())
    assert len(found) > 10, "where have the daemon's metrics gone?"
    found = [row for row in found if not row[0].startswith("hyperpod")]
    rows = ("| " + " | ".join((f"`{name}`", *rest)) + " |" for name, *rest in found)
    agents = " ".join(f"`{name}`" for name in load_metric_series_descriptions())
    return HEAD + "\n".join(rows) + "\n" + AGENTS + fill(agents, 100) + "\n" + GUIDE


def intake_registry() -> CollectorRegistry:
    """Return the counters of an intake without clients."""
    ours, theirs = socketpair()
    theirs.close()
    line, intake = IntakeChannel.make_intake_end(ours), CollectorRegistry()
    make_intake_process_application(
        Setup(None, (), "token", "journal.db"), IntakeDaemonClient(line), intake, ROUTES
    )
    register_connection_gauges(PeerConnectionTracker(ConnectionLimits()), intake)
    line.close()
    return intake


def _list_series() -> Iterator[tuple[str, str, str]]:
    for registry in (DaemonMetrics().registry, intake_registry()):
        for series in registry._collector_to_names:
            made = cast(MetricWrapperBase, series)
            total = "_total" if made._type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in made._labelnames)
            yield f"{made._name}{total}", labels, made._documentation
