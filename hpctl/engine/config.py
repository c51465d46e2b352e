"""The daemon's configuration file: YAML, every error at once, with its place and a near miss.

Nothing here probes the world; `hpctl doctor` does that.
"""

import re
import socket
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
import yaml
from msgspec import Meta, Struct, field

from hpctl.engine.database_url import mask_url_password, parse_database_url
from hpctl.toolkit import yaml_files
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import InvalidFileError
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.policy import (
    AcceptanceTestPolicy,
    AutoscalePolicy,
    BurnInPolicy,
    ConcurrentRecoveryBudgets,
    Count,
    EvidenceCollectionPolicy,
    FaultClassOverride,
    JobHangPolicy,
    JobRecoveryPolicy,
    NodeRecoveryPolicy,
    NoticeKind,
    ObservationAgeLimits,
    OperatingMode,
    RecoveryPolicy,
    Seconds,
    SecondsOrNone,
)
from hpctl.vocabulary.policy_file import RunPolicyFile

DEFAULT_PATH = "/etc/hpctl/hpctl.yaml"


MAILPROG = "mailprog"
"""In place of a sink: slurmctld's MailProg, for `notify.users`."""
ALONE_LEASE_S, SHARED_LEASE_S = 30.0, 3.0


class ConfigError(InvalidFileError):
    """A configuration file with problems: all of them, each with its place."""

    hint_text = "`hpctl config example` prints every key with its default"


class ClusterSection(Struct, frozen=True):
    """Which HyperPod cluster this head node belongs to."""

    provider: Literal["sagemaker", "none"] = "sagemaker"
    name: str = ""
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    poll_s: Seconds = 30.0
    busy_poll_s: Seconds = 2.0
    protected_groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.provider == "sagemaker" and not self.name:
            raise ValueError("name is needed for provider sagemaker (or set provider: none)")


class SlurmSection(Struct, frozen=True):
    """Where Slurm's commands and configuration are, and how it is spoken to."""

    bin: Path | None = None
    conf: Path | None = None
    adapter: Literal["auto", "cli", "pyslurm"] = "auto"
    timeout_s: Seconds = 10.0


HeadUrl = Annotated[str, Meta(pattern=r"^http://[^\s/:@]+(:\d{1,5})?/?$", max_length=300)]


class IntakeSection(Struct, frozen=True):
    """Where agents report, and whom to accept."""

    listen: Annotated[str, Meta(pattern=r"^[^\s:]*:\d{1,5}$")] = "0.0.0.0:8470"
    advertise: Annotated[str, Meta(pattern=r"^([^\s:]+:\d{1,5})?$", max_length=255)] = ""
    munge_socket: Path | None = None
    allowed_uids: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if parse_count(self.listen.rpartition(":")[2]) > 65535:
            raise ValueError(f"listen: {self.listen}: ports end at 65535")


class MetricsSection(Struct, frozen=True):
    """What GET /sd gives Prometheus: the agents of all nodes, at this port."""

    agent_port: Annotated[int, Meta(ge=1, le=65535)] = 8471


class AccessSection(Struct, frozen=True):
    """Who may ask the daemon for something: members of a Unix group, beside root."""

    group: Annotated[str, Meta(max_length=32)] = ""


class AlertsSection(Struct, frozen=True):
    """Alertmanager's webhook, POST /v1/alerts: closed while no token_file is named.

    `labels` name the node. The default is the one label that Prometheus sets and a scraped target
    cannot: every other one is believed to name the node that it says, whichever user wrote it.
    """

    token_file: Path | None = None
    labels: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)] = ("instance",)
    keep_s: Seconds = 18000.0


class WebPageSection(Struct, frozen=True):
    """The read-only web page: off while `listen` is empty (docs/page.md)."""

    listen: Annotated[str, Meta(pattern=r"^$|^[^\s:]*:\d{1,5}$|^unix:/\S{1,100}$")] = ""
    token_file: Path | None = None
    hosts: Annotated[tuple[str, ...], Meta(max_length=16)] = ()

    @property
    def unix(self) -> str:
        """Return the path of the socket to listen on; empty where it is a TCP port."""
        return self.listen.removeprefix("unix:") if self.listen.startswith("unix:") else ""


class RecoveryLoopSection(Struct, frozen=True):
    """How often the loop runs without an event, in seconds; when it reads Slurm: `reading_pace`."""

    reconcile_s: Seconds = 30.0
    rest_s: Seconds = 300.0
    poll_s: Seconds = 0.05
    slow_poll_s: Seconds = 1.0
    gather_s: SecondsOrNone = 0.03
    lease_s: Seconds | None = None


class JournalSection(Struct, frozen=True):
    """How long it explains what has ended, and whether a daemon may begin a new journal
    (docs/operations.md, 'The journal')."""

    keep_days: Count = 400
    create: bool = True


class NotificationRouteSection(Struct, frozen=True):
    """Which notices go to which sinks; what is empty takes all."""

    to: Annotated[tuple[str, ...], Meta(min_length=1)]
    kinds: tuple[NoticeKind, ...] = ()
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


class NotificationSection(Struct, frozen=True):
    """Who is notified of what, by Apprise (docs/notify.md)."""

    sinks: Annotated[dict[str, str], Meta(max_length=16)] = field(default_factory=dict)
    routes: Annotated[tuple[NotificationRouteSection, ...], Meta(max_length=64)] = ()
    users: str = ""
    quiet: Annotated[str, Meta(pattern=r"^(([01]\d|2[0-3]):[0-5]\d(-(?=\d)|$)){2}$|^$")] = ""
    per_hour: Annotated[int, Meta(ge=2, le=1000)] = 30

    def __post_init__(self) -> None:
        for name, source in self.sinks.items():
            if not re.fullmatch("[a-z0-9_-]{1,32}", name) or name == MAILPROG:
                raise ValueError(f"sinks: {name!r} is no name (a-z, 0-9, - and _; not mailprog)")
            if not source.startswith(("/", "env:")):
                fix = "name a file of mode 0640 that has the URL, or env:NAME"
                raise ValueError(f"sinks.{name}: {fix}")
        named = set(chain.from_iterable(route.to for route in self.routes))
        named |= {self.users} - {"", MAILPROG}
        unknown = named - self.sinks.keys()
        if unknown:
            raise ValueError(f"no sink is called {', '.join(sorted(unknown))}")

    def is_in_quiet_hours(self, now: datetime) -> bool:
        """Return whether a message that is not urgent waits: `quiet` is HH:MM-HH:MM in this
        host's time zone."""
        begin, _, end = self.quiet.partition("-")
        local = f"{now.astimezone():%H:%M}"
        return begin <= local < end if begin <= end else local >= begin or local < end


class Config(Struct, frozen=True):
    """The whole file."""

    mode: OperatingMode = OperatingMode.OBSERVE
    state_dir: Path = Path("/var/lib/hpctl")
    database_url: str | None = None
    heads: tuple[HeadUrl, ...] = ()
    kill_switch: Path = Path("/etc/hpctl/STOP")
    partitions: frozenset[str] = frozenset()
    cluster: ClusterSection = ClusterSection(provider="none")
    slurm: SlurmSection = SlurmSection()
    intake: IntakeSection = IntakeSection()
    access: AccessSection = AccessSection()
    alerts: AlertsSection = AlertsSection()
    page: WebPageSection = WebPageSection()
    metrics: MetricsSection = MetricsSection()
    loop: RecoveryLoopSection = RecoveryLoopSection()
    journal: JournalSection = JournalSection()
    notify: NotificationSection = NotificationSection()
    node: NodeRecoveryPolicy = NodeRecoveryPolicy()
    job: JobRecoveryPolicy = JobRecoveryPolicy()
    budgets: ConcurrentRecoveryBudgets = ConcurrentRecoveryBudgets()
    ages: ObservationAgeLimits = ObservationAgeLimits()
    hangs: JobHangPolicy = field(default_factory=JobHangPolicy)
    catalogue: dict[RuleId, FaultClassOverride] = field(default_factory=dict)
    autoscale: AutoscalePolicy = AutoscalePolicy()
    idle: BurnInPolicy = BurnInPolicy()
    acceptance: AcceptanceTestPolicy = AcceptanceTestPolicy()
    evidence: EvidenceCollectionPolicy = EvidenceCollectionPolicy()
    spares: dict[str, Annotated[int, Meta(ge=0)]] = field(default_factory=dict)
    run_policy: RunPolicyFile = RunPolicyFile()
    run_policies: dict[str, RunPolicyFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.database_url is not None:
            parse_database_url(self.database_url)
        if self.page.listen and not self.page.unix and self.page.token_file is None:
            raise ValueError("page: on a port it needs a token_file (or listen: unix:/PATH)")
        if self.autoscale.enabled and not self.autoscale.groups:
            raise ValueError("autoscale: enabled, but no group is named in groups")
        if self.mode is OperatingMode.OWN and self.cluster.provider == "none":
            raise ValueError("mode own reboots and replaces: it needs a cluster.provider")
        if self.autoscale.enabled and self.cluster.provider == "none":
            raise ValueError("autoscale adds and removes instances: it needs a cluster.provider")

    @property
    def url(self) -> str:
        """Return the journal's SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{quote(str(self.state_dir / 'journal.db'))}"

    @property
    def lease_s(self) -> float:
        """Return how long a leader holds the lease without a renewal, in seconds: as the file
        says, else SHARED_LEASE_S where several heads share a database."""
        alone = ALONE_LEASE_S if self.database_url is None else SHARED_LEASE_S
        return self.loop.lease_s or alone

    @property
    def flush_interval_s(self) -> float:
        """Return how often at least the loop stores what it has in memory alone, in seconds."""
        return (self.lease_s if self.database_url is None else ALONE_LEASE_S) / 4

    @property
    def address(self) -> str:
        """This head's intake as agents reach it, "host:port"."""
        port = self.intake.listen.rpartition(":")[2]
        return self.intake.advertise or f"{socket.gethostname()}:{port}"

    @property
    def sizes_capacity(self) -> bool:
        """Return whether anything here sets nodes apart, changes how many there are or tests idle
        ones."""
        return self.autoscale.enabled or self.idle.every_s > 0 or any(self.spares.values())

    def list_run_policy_layers(self, partition: str) -> tuple[RunPolicyFile, ...]:
        """Return the recovery policies that come before a job's own: the cluster's, its
        partition's."""
        own = self.run_policies.get(partition)
        return (self.run_policy,) if own is None else (self.run_policy, own)

    def list_non_default_settings(self) -> dict[str, str]:
        """Return what differs from the defaults, by dotted name, as the audit trail keeps it."""
        found, plain = _flatten_config(self), _flatten_config(type(self)())
        if self.database_url is not None:
            url = mask_url_password(parse_database_url(self.database_url))
            found["database_url"] = msgspec.json.encode(url).decode()
        return {k: v for k, v in found.items() if v != plain.get(k)}

    def policy(self) -> RecoveryPolicy:
        """Return the numbers, as the core takes them."""
        of_file = [name for name in RecoveryPolicy.__struct_fields__ if name != "attended"]
        return RecoveryPolicy(**{name: getattr(self, name) for name in of_file})


def read_config_file(path: str | Path) -> Config:
    """Read and validate a file. Raises ConfigError with every problem it has."""
    return parse_config(yaml_files.read_size_limited_text(path, ConfigError), str(path))


def parse_config(text: str, path: str = "<text>") -> Config:
    """Validate YAML text. Raises ConfigError with every problem it has."""
    return yaml_files.parse_yaml_struct(Config, text, path, ConfigError)


def format_example_config(config: Config | None = None) -> str:
    """Return a file with every key of a configuration, by default of the defaults, under its
    meaning."""
    config = config or Config()
    out = ["# hpctl.yaml: every key with its default. Durations are in seconds.", ""]
    for name, value in convert_config_to_dict(config).items():
        section = getattr(config, name)
        if isinstance(section, Struct):
            out += ["", f"# {(type(section).__doc__ or '').strip().splitlines()[0]}"]
        text = yaml.safe_dump({name: value}, sort_keys=False, default_flow_style=False)
        out.append(text.rstrip())
    return "\n".join(out) + "\n"


def convert_config_to_dict(config: Config) -> dict[str, Any]:
    """Return the file's keys; of a recovery policy, which has no defaults, those that are set."""
    plain: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(config, enc_hook=str, order="deterministic")
    )
    return plain


def _flatten_config(config: Config) -> dict[str, str]:
    """Nested keys as `a.b.c`, each with its value as JSON; lists are values."""
    found: dict[str, str] = {}
    todo: list[tuple[str, Any]] = list(convert_config_to_dict(config).items())
    for name, value in todo:
        if isinstance(value, Mapping):
            todo += [(f"{name}.{key}", inner) for key, inner in value.items()]
        else:
            found[name] = msgspec.json.encode(value).decode()
    return found
