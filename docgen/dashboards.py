"""hpctl/service/observability/dashboards/: Grafana's dashboards, by Grafana's own typed builders.

No panel is blank because nothing has happened: a query that finds nothing answers 0. Each value has
a unit. Recoveries, restarted jobs, takeovers and alerts are marked in every graph, and each
dashboard links to the others and to hpctl's page.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

YES_NO: Final = "bool_yes_no"
NODES, GPUS, JOBS = "suffix: nodes", "suffix: GPUs", "suffix: jobs"
TIMES: Final = "suffix: times"
"""Of events in the span that a panel's title says."""
PAGE: Final = "http://127.0.0.1:8472"
"""Where hpctl's page is, by default: docs/page.md tells how to reach it."""
_LABEL: Final = re.compile(r"\{\{(\w+)\}\}")


class Panel(Struct, frozen=True):
    """One panel. `queries`: PromQL by legend. `kind`: lines, number (now), name (the legend of what
    is so), bars (added up), table (now, the worst first). `unit` is Grafana's."""

    title: str
    queries: Mapping[str, str]
    unit: str
    kind: str = "lines"
    about: str = ""


def never_blank(query: str, legend: str) -> str:
    """Return the query, which answers 0 where it finds nothing: its legend then says `none`."""
    named = _LABEL.search(legend)
    zero = "vector(0)"
    if named is not None:
        zero = f'label_replace(vector(0), "{named[1]}", "none", "", "")'
    return f"({query}) or on() {zero}"


def _query_quantiles(name: str, by: str = "") -> dict[str, str]:
    grouped = f"sum by (le{by and f', {by}'}) (rate({name}_bucket[$__rate_interval]))"
    label = f"{{{{{by}}}}} " if by else ""
    return {f"{label}p{q}": f"histogram_quantile(0.{q}, {grouped})" for q in (50, 90, 99)}


def _query_rate(name: str, by: str, per: str = "1h") -> dict[str, str]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return {legend: f"sum by ({by}) (increase({name}[{per}]))"}


_AGENTS = "hpctl_agent_"
_FIRING = 'ALERTS{alertname=~"Hpctl.*",alertname!="HpctlWatchdog",alertstate="firing"}'
_FROM_PEERS = (
    "abs({x} - on(instance_type) group_left quantile by (instance_type) (0.5, {x}))"
)  # fmt: skip


def _make_outliers_panel(title: str, name: str, unit: str, about: str = "") -> Panel:
    """Return the five that are farthest from the median of their instance type, each by its
    name."""
    far = _FROM_PEERS.format(x=_AGENTS + name)
    return Panel(title, {"{{instance}} {{gpu}}{{device}}{{mountpoint}}": f"topk(5, {far})"}, unit,
                 about=about or "The five farthest from the median of their instance type.")  # fmt: skip


def _make_comparison_panel(title: str, gauge: str, unit: str) -> Panel:
    return _make_outliers_panel(title, f'peer_value{{gauge="{gauge}"}}', unit)


BOARDS: Final[Mapping[str, tuple[str, Sequence[Panel]]]] = {
    "fleet": ("hpctl: fleet health", (
        Panel("Nodes in service", {"": 'sum(hpctl_nodes{state="in_service"})'}, NODES, "number"),
        Panel("In treatment", {"": 'sum(hpctl_recoveries_open{kind="node"})'}, NODES, "number"),
        Panel("Waiting for a person", {"": 'max(hpctl_waiting{kind="node"})'}, NODES, "number"),
        Panel("Jobs waiting for a person", {"": 'max(hpctl_waiting{kind="job"})'}, JOBS, "number"),
        Panel("Blocked", {"": "sum(hpctl_holds)"}, "suffix: nodes and jobs", "number"),
        Panel("Alerts", {"": f"count({_FIRING})"}, "suffix: alerts", "number"),
        Panel("Nodes", {"{{partition}} {{state}}": "sum by (partition, state) (hpctl_nodes)"}, NODES),
        Panel("GPUs", {"{{partition}}": "sum by (partition) (hpctl_gpus)"}, GPUS),
        Panel("Spares", {"{{state}}": "sum by (state) (hpctl_spares)"}, NODES),
        Panel("Agents", {"{{state}}": "sum by (state) (hpctl_agents)"}, "suffix: agents"),
        Panel("Blocked by gate", {"{{gate}}": "sum by (gate) (hpctl_holds) > 0"}, "suffix: nodes and jobs"),
        Panel("Findings of nodes", {"{{check}} {{verdict}}": f"sum by (check, verdict) ({_AGENTS}findings)"}, "suffix: findings"),
        Panel("Findings", {"": f"topk(50, {_AGENTS}findings)"}, "suffix: findings", "table"),
        Panel("Alerts that fire", {"": _FIRING}, YES_NO, "table"),
    )),
    "recoveries": ("hpctl: recoveries", (
        Panel("Open, by phase", {"{{kind}} {{phase}}": "sum by (kind, phase) (hpctl_recoveries_open) > 0"}, "suffix: recoveries"),
        Panel("Begun an hour, by cause", _query_rate("hpctl_recoveries_opened_total", "kind, class"), "suffix: recoveries", "bars"),
        Panel("Ended an hour", _query_rate("hpctl_recoveries_ended_total", "kind, end"), "suffix: recoveries", "bars"),
        Panel("Fault to running", _query_quantiles("hpctl_job_recovery_seconds"), "s"),
        Panel("By stage", _query_quantiles("hpctl_recovery_stage_seconds", "stage"), "s"),
        Panel("Node back in service", _query_quantiles("hpctl_node_recovery_seconds"), "s"),
        Panel("Steps an hour", _query_rate("hpctl_steps_total", "step, outcome"), "suffix: steps", "bars"),
        Panel("Steps in doubt", {"": "max(hpctl_steps_in_doubt)"}, "suffix: steps"),
        Panel("Node time drained in a day, by what was found", _query_rate("hpctl_drained_node_seconds_total", "found", "1d"), "s",
              about="healthy is the price of being wrong."),
    )),
    "jobs": ("hpctl: a job's life", (
        Panel("Effective training time, a day", {"{{partition}}": "hpctl:effective_training_time:ratio1d"}, "percentunit", "number"),
        Panel("Since the daemon's start", {"{{partition}}": "min by (partition) (hpctl_effective_training_time_ratio)"}, "percentunit"),
        Panel("GPU hours lost in a day, by cause", {"{{class}}": "hpctl:lost_gpu_hours:increase1d > 0"}, "h", "bars"),
        Panel("GPUs that jobs hold", {"{{partition}}": "sum by (partition) (rate(hpctl_job_gpu_seconds_total[$__rate_interval]))"}, GPUS),
        Panel("Jobs", {"{{partition}} {{state}}": "sum by (partition, state) (hpctl_jobs)"}, JOBS),
        Panel("Registered jobs an hour", {
            end: f"sum(increase(hyperpod_training_operator_jobs_{end}_total[1h]))"
            for end in ("created", "successful", "failed", "deleted", "restarted")}, JOBS, "bars"),
        Panel("Last restart", {
            "fault to running": "max(hyperpod_training_operator_jobs_restart_latency)",
            "fault to opened": "max(hyperpod_training_operator_jobs_fault_detection_latency)"}, "s"),
    )),
    "grey": ("hpctl: grey failures", (
        Panel("SM clock against peers", {"{{instance}} GPU {{gpu}}": "bottomk(5, hpctl:gpu_sm_clock:of_peers)"}, "percentunit",
              about="Busy GPUs as a share of the median of their instance type."),
        _make_outliers_panel("GPU temperature", "gpu_temperature_celsius", "celsius"),
        _make_outliers_panel("GPU power", "gpu_power_watts", "watt"),
        Panel("Throttled", {"{{instance}} GPU {{gpu}} {{reason}}":
              f"topk(5, rate({_AGENTS}gpu_throttled_seconds_total[$__rate_interval]))"}, "percentunit"),
        Panel("Corrected ECC errors an hour", {"{{instance}} GPU {{gpu}}":
              f'topk(5, increase({_AGENTS}gpu_ecc_errors_total{{type="corrected"}}[1h]))'}, "suffix: errors"),
        Panel("NVLink errors an hour", {"{{instance}} GPU {{gpu}} {{type}}":
              f"topk(5, increase({_AGENTS}gpu_nvlink_errors_total[1h]))"}, "suffix: errors"),
        Panel("PCIe replays an hour", {"{{instance}} GPU {{gpu}}":
              f"topk(5, increase({_AGENTS}gpu_pcie_replays_total[1h]))"}, "suffix: replays"),
        Panel("EFA retransmits above peers", {"{{instance}}": "topk(5, hpctl:efa_retransmits:above_peers)"}, "percentunit"),
        _make_comparison_panel("EFA events of remote peers", "efa.remote_events_per_s", "cps"),
        Panel("RDMA devices", {"{{instance}} {{device}} {{counter}}":
              f'topk(5, rate({_AGENTS}rdma_events_total{{counter!~".*(bytes|pkts|wrs|recv|send|packets|data)"}}[$__rate_interval]))'}, "cps"),
        Panel("Storage clients", {"{{instance}} {{mountpoint}}": f"topk(5, {_AGENTS}mount_silent_seconds)"}, "s"),
        Panel("Disks", {"{{instance}} {{mountpoint}}":
              f"topk(5, 1 - {_AGENTS}filesystem_free_bytes / {_AGENTS}filesystem_size_bytes)"}, "percentunit"),
    )),
    "hpctl": ("hpctl: daemon and agents", (
        Panel("Version and mode", {"{{version}} {{mode}}": "hpctl_build_info"}, YES_NO, "name"),
        Panel("Leads", {"{{instance}}": "hpctl_leader"}, YES_NO, "number"),
        Panel("Paused", {"": "max(hpctl_paused_since_timestamp_seconds) > bool 0"}, YES_NO, "number"),
        Panel("Trouble", {"{{part}}": "max by (part) (hpctl_trouble)"}, YES_NO),
        Panel("Since the last cycle", {"{{instance}}": "hpctl_cycle_age_seconds"}, "s"),
        Panel("Free on the disk of the state directory", {"{{instance}}": "hpctl_state_dir_free_ratio"}, "percentunit"),
        Panel("Cycle", _query_quantiles("hpctl_cycle_seconds"), "s"),
        Panel("Journal append", _query_quantiles("hpctl_journal_append_seconds"), "s"),
        Panel("Internal errors an hour", {
            "{{where}}": "sum by (where) (increase(hpctl_internal_errors_total[1h])) > 0",
            "cycles": "sum(increase(hpctl_cycles_failed_total[1h]))",
            "left alone, lasting {{lasting}}": "sum by (lasting) (hpctl_quarantined)"}, TIMES),
        Panel("SageMaker calls an hour", _query_rate("hpctl_api_calls_total", "operation, result"), "suffix: calls", "bars"),
        Panel("Heard a second", {
            "reports": "sum(rate(hpctl_reports_total[$__rate_interval]))",
            "heartbeats": "sum(rate(hpctl_heartbeats_total[$__rate_interval]))",
            "job reports": "sum(rate(hpctl_job_reports_total[$__rate_interval]))"}, "cps"),
        Panel("Refused an hour", {
            "reports {{code}}": "sum by (code) (increase(hpctl_reports_refused_total[1h]))",
            "job reports {{code}}": "sum by (code) (increase(hpctl_job_reports_refused_total[1h]))",
            "requests {{code}}": "sum by (code) (increase(hpctl_requests_refused_total[1h]))"}, TIMES),
        Panel("Connections", {"open": "sum(hpctl_intake_connections)", "ended": "sum(hpctl_intake_dropped)"}, "suffix: connections"),
        Panel("Agents: processor", {"{{instance}}": f"topk(5, {_AGENTS}cpu_ratio)"}, "percentunit"),
        Panel("Agents: memory", {"{{instance}}": f"topk(5, {_AGENTS}resident_memory_bytes)"}, "bytes"),
        Panel("Agents: versions", {"{{version}}": f"count by (version) ({_AGENTS}info)"}, "suffix: agents", "number"),
    )),
}  # fmt: skip
"""The dashboards by file name: title and panels, in order."""


ANNOTATIONS: Final = (
    ("Faulty nodes", "orange", "{{class}}",
     'sum by (class) (increase(hpctl_recoveries_opened_total{kind="node"}[1m])) > 0'),
    ("Nodes that ended treatment", "green", "{{end}}",
     'sum by (end) (increase(hpctl_recoveries_ended_total{kind="node"}[1m])) > 0'),
    ("Jobs in recovery", "blue", "{{class}}",
     'sum by (class) (increase(hpctl_recoveries_opened_total{kind="job"}[1m])) > 0'),
    ("Takeovers", "purple", "{{instance}} leads", "hpctl_leader == 1 and changes(hpctl_leader[1m]) > 0"),
    ("Alerts", "red", "{{alertname}}", _FIRING),
)  # fmt: skip
"""What is marked in every graph: its name, color, text, and the query that answers when it is so."""


def make_dashboard(name: str) -> str:
    """Return a file: the dashboard's JSON, which Grafana 10.1 and later take."""
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef

    source = DataSourceRef(type_val="prometheus", uid="${datasource}")
    title, panels = BOARDS[name]
    made = board.Dashboard(title).uid(f"hpctl-{name}").tags(["hpctl"]).refresh("30s").readonly()
    made = made.time("now-6h", "now").timezone("browser")
    made = made.with_variable(board.DatasourceVariable("datasource").type("prometheus"))
    page = board.TextBoxVariable("page").label("hpctl's page").default_value(PAGE)
    made = made.with_variable(page)
    others = board.DashboardLink("Dashboards of hpctl").type(DashboardLinkType("dashboards"))
    made = made.link(others.tags(["hpctl"]).as_dropdown(True).keep_time(True).include_vars(True))
    linked = board.DashboardLink("Page").type(DashboardLinkType("link")).url("${page}")
    made = made.link(linked.target_blank(True).tooltip("What needs a person, and why"))
    for marked, color, _, query in ANNOTATIONS:
        mark = board.AnnotationQuery().name(marked).datasource(source).icon_color(color)
        made = made.annotation(mark.enable(True).expr(query))
    for panel, place in zip(panels, _lay_out(panels), strict=True):
        made = made.with_panel(_make_panel(panel, source).grid_pos(place))
    found = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    _complete_annotations(found)
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _complete_annotations(found: dict[str, Any]) -> None:
    """Add what Grafana's Prometheus data source reads of an annotation and the builders lack."""
    for mark, (name, _, text, _) in zip(found["annotations"]["list"], ANNOTATIONS, strict=True):
        mark |= {"step": "60s", "titleFormat": name, "textFormat": text, "tagKeys": ""}


_SIZES: Final = {"number": (4, 5), "name": (4, 5), "table": (24, 8)}
"""How wide and high a kind of panel is; the others are half as wide as the screen."""
_WIDTH: Final = 24


def _lay_out(panels: Sequence[Panel]) -> list[Any]:
    """Return the place of each panel, in rows from left to right."""
    from grafana_foundation_sdk.models.dashboard import GridPos

    places: list[Any] = []
    x = y = row_height = 0
    for panel in panels:
        width, height = _SIZES.get(panel.kind, (12, 8))
        if x + width > _WIDTH or (row_height and height != row_height):
            x, y, row_height = 0, y + row_height, 0
        places.append(GridPos(h=height, w=width, x=x, y=y))
        x, row_height = x + width, height
    return places


def _is_of_nodes(query: str) -> bool:
    """Return whether each line is of one node, by its label `instance`."""
    return "topk(5" in query or "bottomk(5" in query


def _make_panel(panel: Panel, source: Any) -> Any:
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

    shown: stat.Panel | table.Panel | timeseries.Panel
    if panel.kind in ("number", "name"):
        number = stat.Panel()
        named = common.BigValueTextMode("name")
        shown = number.text_mode(named) if panel.kind == "name" else number
    elif panel.kind == "table":
        shown = table.Panel()
    else:
        lines = timeseries.Panel().min(0).fill_opacity(10)
        bars = common.GraphDrawStyle("bars")
        shown = lines.draw_style(bars) if panel.kind == "bars" else lines
    shown = shown.title(panel.title).unit(panel.unit).datasource(source).no_value("0")
    shown = shown.description(panel.about) if panel.about else shown
    if any(_is_of_nodes(expr) for expr in panel.queries.values()):
        to_node = board.DashboardLink("Explain ${__field.labels.instance}").target_blank(True)
        shown = shown.data_links([to_node.url("${page}/explain/${__field.labels.instance}")])
    for number_of, (legend, expr) in enumerate(panel.queries.items()):
        query = prometheus.Dataquery().expr(never_blank(expr, legend))
        query = query.ref_id(chr(ord("A") + number_of))
        query = query.legend_format(legend or panel.title).datasource(source)
        if panel.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        shown = shown.with_target(query)
    return shown
