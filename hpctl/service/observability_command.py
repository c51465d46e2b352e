"""`hpctl observability`: what Prometheus and Grafana need to show this cluster."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.declared_view import Column, JsonOnly, Layout, RowTable, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import DRY_RUN

if TYPE_CHECKING:
    from hpctl.engine.config import Config

CONFIG: Final = "prometheus.yml"
RULES: Final = "hpctl.rules.yml"
RUNBOOK: Final = "alerts.md"
PLACEHOLDER: Final = "RUNBOOK#"
"""What the shipped rules have before the anchor of an alert's section."""
DASHBOARDS: Final = "dashboards"
APT: Final = "apt-get install --no-install-recommends prometheus"


@click.group()
def observability() -> None:
    """Prometheus and Grafana for this cluster."""


def _describe_rendered_file_consumer(file: str) -> str:
    if file == RUNBOOK:
        return "people: what each alert means, and what to do"
    return "Grafana (import)" if file.startswith(DASHBOARDS) else "Prometheus"


class ObservabilityRenderView(Struct, frozen=True):
    """What `hpctl observability render` shows: the files, and what Prometheus scrapes."""

    directory: str
    files: tuple[str, ...]
    heads: tuple[str, ...]
    dry_run: bool = False

    layout: ClassVar[Layout] = (
        RowTable("files", (Column("FILE", "{}"), Column("FOR", _describe_rendered_file_consumer))),
        TextLine(DRY_RUN, when="dry_run"),
        TextLine("Prometheus scrapes {heads}.", when=lambda view: not view.dry_run),
    )
    json_only: ClassVar[JsonOnly] = ("directory",)


def _collect_rendered_files(directory: Path, docs: str | None) -> dict[str, str]:
    """Return the shipped rules, their runbook and dashboards, by their names below the directory.
    `docs`: the URL of a site's documentation; without one the rules point to the runbook beside
    them."""
    from importlib import resources

    source = resources.files("hpctl") / "service" / "observability"
    runbook = (directory.absolute() / RUNBOOK).as_uri()
    if docs is not None:
        runbook = f"{docs.rstrip('/')}/alerts.html"
    rules = (source / RULES).read_text(encoding="utf-8")
    found = {RULES: rules.replace(PLACEHOLDER, f"{runbook}#")}
    found[RUNBOOK] = (source / RUNBOOK).read_text(encoding="utf-8")
    for one in sorted((source / DASHBOARDS).iterdir(), key=lambda one: one.name):
        found[f"{DASHBOARDS}/{one.name}"] = one.read_text(encoding="utf-8")
    return found


def make_prometheus_config(
    config: Config, heads: tuple[str, ...], every_s: float, alertmanagers: tuple[str, ...] = ()
) -> str:
    """prometheus.yml: one job for the head nodes, one that follows the agents as they come and go.

    https://prometheus.io/docs/prometheus/2.42/configuration/configuration
    """
    import yaml

    every = f"{max(1, round(every_s))}s"
    discovery = [{"url": f"http://{head}/sd", "refresh_interval": every} for head in heads]
    made: dict[str, Any] = {
        "global": {
            "scrape_interval": every,
            "evaluation_interval": every,
            "external_labels": {"cluster": config.cluster.name or "hpctl"},
        },
        "rule_files": [RULES],
        "scrape_configs": [
            {"job_name": "hpctl", "static_configs": [{"targets": list(heads)}]},
            {"job_name": "hpctl-agents", "http_sd_configs": discovery},
        ],
    }
    if alertmanagers:
        targets = [{"targets": list(alertmanagers)}]
        made["alerting"] = {"alertmanagers": [{"static_configs": targets}]}
    return "# written by `hpctl observability render`\n" + yaml.safe_dump(made, sort_keys=False)


def _list_head_node_addresses(config: Config, named: tuple[str, ...]) -> tuple[str, ...]:
    from hpctl.wire.heads import HeadNodeAddress

    heads = [HeadNodeAddress.parse(one) for one in named] or [
        HeadNodeAddress.here(config.intake.listen)
    ]
    return tuple(f"[{h.host}]:{h.port}" if ":" in h.host else f"{h.host}:{h.port}" for h in heads)


def _write_rendered_files(directory: Path, files: dict[str, str]) -> None:
    """Write the files. Raises HpctlError."""
    try:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HpctlError(
            f"cannot write to {error.filename or directory}: {error.strerror}",
            "Name another directory, in which you may write.",
        ) from error


_HEAD = click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="HOST[:PORT]",
    help="A head node as Prometheus reaches it; repeatable. Default: this host's daemon.",
)
_EVERY = click.option(
    "--every",
    "every_s",
    type=DurationType(),
    default="15s",
    show_default=True,
    help="How often to scrape.",
)


@observability.command()
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to write to.",
)
@_HEAD
@_EVERY
@click.option(
    "--alertmanager",
    "alertmanagers",
    multiple=True,
    metavar="HOST:PORT",
    help="Where alerts go; repeatable.",
)
@click.option(
    "--docs",
    metavar="URL",
    help="Where hpctl's documentation is served, for the runbook_url of each alert. Default: the"
    " file alerts.md in DIR.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; do nothing.")
@output.config_option
@output.json_option
def render(
    out: Path,
    heads: tuple[str, ...],
    every_s: float,
    alertmanagers: tuple[str, ...],
    docs: str | None,
    dry_run: bool,
    config: str,
    as_json: bool,
) -> None:
    """Write Prometheus configuration, rules and Grafana dashboards.

    \b
    Example:
      hpctl observability render --out /etc/prometheus/hpctl
    """
    settings = config_loading.load_config(config)
    scraped = _list_head_node_addresses(settings, heads)
    files = {
        CONFIG: make_prometheus_config(settings, scraped, every_s, alertmanagers),
        **_collect_rendered_files(out, docs),
    }
    if not dry_run:
        _write_rendered_files(out, files)
    view = ObservabilityRenderView(str(out), tuple(files), scraped, dry_run)
    output.show_view("observability-render", view, as_json)


@observability.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="For configuration and data. Default: prometheus/ in the daemon's state_dir.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9090",
    show_default=True,
    metavar="HOST:PORT",
    help="Its own page.",
)
@_HEAD
@_EVERY
@output.config_option
def up(
    directory: Path | None, listen: str, heads: tuple[str, ...], every_s: float, config: str
) -> None:
    """Run Prometheus for this cluster, until Ctrl-C.

    For a small cluster: it keeps 30 days, at most 10 GB, on this host.
    """
    settings = config_loading.load_config(config)
    program = shutil.which("prometheus")
    if program is None:
        raise HpctlError(
            "cannot start the dashboards: the program prometheus is not on PATH",
            f"Install it: {APT}",
        )
    place = directory or settings.state_dir / "prometheus"
    scraped = _list_head_node_addresses(settings, heads)
    _write_rendered_files(
        place,
        {
            CONFIG: make_prometheus_config(settings, scraped, every_s),
            **_collect_rendered_files(place, None),
        },
    )
    arguments = [
        f"--config.file={place / CONFIG}",
        f"--storage.tsdb.path={place / 'data'}",
        "--storage.tsdb.retention.time=30d",
        "--storage.tsdb.retention.size=10GB",
        f"--web.listen-address={listen}",
    ]
    os.execv(program, [program, *arguments])  # noqa: S606 - it takes this process's place
