"""hpctl/service/observability/dashboards/: Grafana's dashboards, by Grafana's own typed builders."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct


class Panel(Struct, frozen=True):
    """One panel. `queries`: PromQL by legend. `kind`: lines, number (now), bars (added up), table
    (now, the worst first). `unit` is Grafana's."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "lines"
    about: str = ""


def _quantiles(name: str, by: str = "") -> dict[str, str]:
    grouped = f"sum by (le{by and f', {by}'}) (rate({name}_bucket[$__rate_interval]))"
    label = f"{{{{{by}}}}} " if by else ""
    return {f"{label}p{q}": f"histogram_quantile(0.{q}, {grouped})" for q in (50, 90, 99)}


def _rate(name: str, by: str, per: str = "1h") -> dict[str, str]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return {legend: f"sum by ({by}) (increase({name}[{per}])) > 0"}


_AGENTS = "hpctl_agent_"
_FROM_PEERS = (
    "abs({x} - on(instance_type) group_left quantile by (instance_type) (0.5, {x}))"
)  # fmt: skip


def _outliers(title: str, name: str, unit: str, about: str = "") -> Panel:
    """The five that are farthest from the median of their instance type, each by its name."""
    far = _FROM_PEERS.format(x=_AGENTS + name)
    return Panel(title, {"{{instance}} {{gpu}}{{device}}{{mountpoint}}": f"topk(5, {far})"}, unit,
                 about=about or "The five farthest from the median of their instance type.")  # fmt: skip


def _compared(title: str, gauge: str, unit: str) -> Panel:
    return _outliers(title, f'peer_value{{gauge="{gauge}"}}', unit)


BOARDS: Final[Mapping[str, tuple[str, Sequence[Panel]]]] = {
    "fleet": ("hpctl: fleet health", (
        Panel("Nodes in service", {"": 'sum(hpctl_nodes{state="in_service"})'}, kind="number"),
        Panel("Recovering", {"": 'sum(hpctl_recoveries_open{kind="node"})'}, kind="number"),
        Panel("Blocked", {"": "sum(hpctl_holds)"}, kind="number"),
        Panel("Alerts", {"": 'count(ALERTS{alertname=~"Hpctl.*",alertstate="firing"}) or vector(0)'}, kind="number"),
        Panel("Nodes", {"{{partition}} {{state}}": "hpctl_nodes"}),
        Panel("GPUs", {"{{partition}}": "hpctl_gpus"}),
        Panel("Spares", {"{{state}}": "hpctl_spares"}),
        Panel("Agents", {"{{state}}": "hpctl_agents"}),
        Panel("Blocked by gate", {"{{gate}}": "hpctl_holds > 0"}),
        Panel("Findings of nodes", {"{{check}} {{verdict}}": f"sum by (check, verdict) ({_AGENTS}findings)"}),
        Panel("Findings", {"": f"topk(50, {_AGENTS}findings)"}, kind="table"),
        Panel("Alerts that fire", {"": 'ALERTS{alertname=~"Hpctl.*",alertstate="firing"}'}, kind="table"),
    )),
    "recoveries": ("hpctl: recoveries", (
        Panel("Open, by phase", {"{{kind}} {{phase}}": "hpctl_recoveries_open > 0"}),
        Panel("Begun an hour, by cause", _rate("hpctl_recoveries_opened_total", "kind, class"), kind="bars"),
        Panel("Ended an hour", _rate("hpctl_recoveries_ended_total", "kind, end"), kind="bars"),
        Panel("Fault to running", _quantiles("hpctl_job_recovery_seconds"), "s"),
        Panel("By stage", _quantiles("hpctl_recovery_stage_seconds", "stage"), "s"),
        Panel("Node back in service", _quantiles("hpctl_node_recovery_seconds"), "s"),
        Panel("Steps an hour", _rate("hpctl_steps_total", "step, outcome"), kind="bars"),
        Panel("Steps in doubt", {"": "hpctl_steps_in_doubt"}),
        Panel("Node time drained in a day, by what was found", _rate("hpctl_drained_node_seconds_total", "found", "1d"), "s",
              about="healthy is the price of being wrong."),
    )),
    "jobs": ("hpctl: a job's life", (
        Panel("Effective training time, a day", {"{{partition}}": "hpctl:effective_training_time:ratio1d"}, "percentunit", "number"),
        Panel("Since the daemon's start", {"{{partition}}": "hpctl_effective_training_time_ratio"}, "percentunit"),
        Panel("GPU hours lost in a day, by cause", {"{{class}}": "hpctl:lost_gpu_hours:increase1d > 0"}, "h", "bars"),
        Panel("GPUs that jobs hold", {"{{partition}}": "rate(hpctl_job_gpu_seconds_total[$__rate_interval])"}),
        Panel("Jobs", {"{{partition}} {{state}}": "hpctl_jobs"}),
        Panel("Registered jobs an hour", {
            end: f"increase(hyperpod_training_operator_jobs_{end}_total[1h])"
            for end in ("created", "successful", "failed", "deleted", "restarted")}, kind="bars"),
        Panel("Last restart", {
            "fault to running": "hyperpod_training_operator_jobs_restart_latency",
            "fault to opened": "hyperpod_training_operator_jobs_fault_detection_latency"}, "s"),
    )),
    "grey": ("hpctl: grey failures", (
        Panel("SM clock against peers", {"{{instance}} GPU {{gpu}}": "bottomk(5, hpctl:gpu_sm_clock:of_peers)"}, "percentunit",
              about="Busy GPUs as a share of the median of their instance type."),
        _outliers("GPU temperature", "gpu_temperature_celsius", "celsius"),
        _outliers("GPU power", "gpu_power_watts", "watt"),
        Panel("Throttled", {"{{instance}} GPU {{gpu}} {{reason}}":
              f"topk(5, rate({_AGENTS}gpu_throttled_seconds_total[$__rate_interval]))"}, "percentunit"),
        Panel("Corrected ECC errors an hour", {"{{instance}} GPU {{gpu}}":
              f'topk(5, increase({_AGENTS}gpu_ecc_errors_total{{type="corrected"}}[1h]))'}),
        Panel("NVLink errors an hour", {"{{instance}} GPU {{gpu}} {{type}}":
              f"topk(5, increase({_AGENTS}gpu_nvlink_errors_total[1h]))"}),
        Panel("PCIe replays an hour", {"{{instance}} GPU {{gpu}}":
              f"topk(5, increase({_AGENTS}gpu_pcie_replays_total[1h]))"}),
        Panel("EFA retransmits above peers", {"{{instance}}": "topk(5, hpctl:efa_retransmits:above_peers)"}, "percentunit"),
        _compared("EFA events of remote peers", "efa.remote_events_per_s", "cps"),
        Panel("RDMA devices", {"{{instance}} {{device}} {{counter}}":
              f'topk(5, rate({_AGENTS}rdma_events_total{{counter!~".*(bytes|pkts|wrs|recv|send|packets|data)"}}[$__rate_interval]))'}),
        Panel("Storage clients", {"{{instance}} {{mountpoint}}": f"topk(5, {_AGENTS}mount_silent_seconds)"}, "s"),
        Panel("Disks", {"{{instance}} {{mountpoint}}":
              f"topk(5, 1 - {_AGENTS}filesystem_free_bytes / {_AGENTS}filesystem_size_bytes)"}, "percentunit"),
    )),
    "hpctl": ("hpctl: daemon and agents", (
        Panel("Which", {"{{version}} {{mode}}": "hpctl_build_info"}, kind="number"),
        Panel("Leads", {"{{instance}}": "hpctl_leader"}, kind="number"),
        Panel("Paused", {"": "max(hpctl_paused)"}, kind="number"),
        Panel("Cycle", _quantiles("hpctl_cycle_seconds"), "s"),
        Panel("Journal append", _quantiles("hpctl_journal_append_seconds"), "s"),
        Panel("Internal errors an hour", {
            "{{where}}": "increase(hpctl_internal_errors_total[1h]) > 0",
            "cycles": "increase(hpctl_cycles_failed_total[1h]) > 0",
            "left alone, lasting {{lasting}}": "hpctl_quarantined > 0"}),
        Panel("SageMaker calls an hour", _rate("hpctl_api_calls_total", "operation, result"), kind="bars"),
        Panel("Heard a second", {
            "reports": "rate(hpctl_reports_total[$__rate_interval])",
            "heartbeats": "rate(hpctl_heartbeats_total[$__rate_interval])",
            "job reports": "rate(hpctl_job_reports_total[$__rate_interval])"}),
        Panel("Refused an hour", {
            "reports {{code}}": "increase(hpctl_reports_refused_total[1h]) > 0",
            "job reports {{code}}": "increase(hpctl_job_reports_refused_total[1h]) > 0",
            "requests {{code}}": "increase(hpctl_requests_refused_total[1h]) > 0"}),
        Panel("Connections", {"open": "hpctl_intake_connections", "ended": "hpctl_intake_dropped"}),
        Panel("Agents: processor", {"{{instance}}": f"topk(5, {_AGENTS}cpu_ratio)"}, "percentunit"),
        Panel("Agents: memory", {"{{instance}}": f"topk(5, {_AGENTS}resident_memory_bytes)"}, "bytes"),
        Panel("Agents: versions", {"{{version}}": f"count by (version) ({_AGENTS}info)"}, kind="number"),
    )),
}  # fmt: skip
"""The dashboards by file name: title and panels, in order."""


def dashboard(name: str) -> str:
    """A file: the dashboard's JSON, which Grafana 10.1 and later take."""
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models.dashboard import DataSourceRef
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

    source = DataSourceRef(type_val="prometheus", uid="${datasource}")
    title, panels = BOARDS[name]
    made = board.Dashboard(title).uid(f"hpctl-{name}").tags(["hpctl"]).refresh("30s").readonly()
    made = made.time("now-6h", "now").timezone("browser")
    made = made.with_variable(board.DatasourceVariable("datasource").type("prometheus"))
    for panel in panels:
        shown: stat.Panel | table.Panel | timeseries.Panel
        if panel.kind == "number":
            shown = stat.Panel().span(6).height(5)
        elif panel.kind == "table":
            shown = table.Panel().span(24).height(8)
        else:
            lines = timeseries.Panel().span(12).height(8).min(0).fill_opacity(10)
            bars = common.GraphDrawStyle("bars")
            shown = lines.draw_style(bars) if panel.kind == "bars" else lines
        shown = shown.title(panel.title).unit(panel.unit).datasource(source).no_value("0")
        shown = shown.description(panel.about) if panel.about else shown
        for number, (legend, expr) in enumerate(panel.queries.items()):
            query = prometheus.Dataquery().expr(expr).ref_id(chr(ord("A") + number))
            query = query.legend_format(legend or panel.title).datasource(source)
            if panel.kind == "table":
                query = query.instant().format(PromQueryFormat.TABLE)
            shown = shown.with_target(query)
        made = made.with_panel(shown)
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
