"""The daemon's configuration file: YAML, every error at once, with its place and a near miss.

Nothing here probes the world; `hpctl doctor` does that.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hpctl.core.model import NodeName, Remedy, RuleId, Urgency
from hpctl.core.policy import (
    AutoscalePolicy,
    Budgets,
    FactAges,
    GroupLimits,
    JobPolicy,
    Mode,
    NodePolicy,
    Policy,
    Unrecoverable,
)
from hpctl.policies import PolicyFile, Seconds, SecondsOrNone
from hpctl.yaml import errors as yaml_errors
from hpctl.yaml.errors import FileProblems

DEFAULT_PATH = "/etc/hpctl/hpctl.yaml"
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ConfigError(FileProblems):
    """A configuration file with problems: all of them, each with its place."""

    hint_text = "`hpctl config example` prints every key with its default"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Cluster(_Section):
    """Which HyperPod cluster this head node belongs to."""

    provider: Literal["sagemaker", "none"] = "sagemaker"
    name: str = ""
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    poll_s: Seconds = 30.0
    busy_poll_s: Seconds = 2.0
    protected_groups: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _named(self) -> Cluster:
        if self.provider == "sagemaker" and not self.name:
            raise ValueError("name is needed for provider sagemaker (or set provider: none)")
        return self


class Slurm(_Section):
    """Where Slurm's commands and configuration are, and how it is spoken to."""

    bin: Path | None = None
    conf: Path | None = None
    adapter: Literal["auto", "cli", "pyslurm"] = "auto"
    timeout_s: Seconds = 10.0


class Intake(_Section):
    """Where agents report, and whom to believe."""

    listen: Annotated[str, Field(pattern=r"^[^\s:]*:\d{1,5}$")] = "0.0.0.0:8470"
    munge_socket: Path | None = None
    allowed_uids: tuple[int, ...] = (0,)


class Access(_Section):
    """Who may ask the daemon for something: members of a Unix group, beside root."""

    group: Annotated[str, Field(max_length=32)] = ""


class Alerts(_Section):
    """Alertmanager's webhook, POST /v1/alerts: closed while no token_file is named."""

    token_file: Path | None = None
    labels: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)] = (
        "node",
        "instance",
        "hostname",
    )
    keep_s: Seconds = 18000.0


class Loop(_Section):
    """How often the loop looks by itself, in seconds."""

    reconcile_s: Seconds = 30.0
    poll_s: Seconds = 0.05
    slow_poll_s: Seconds = 1.0
    gather_s: SecondsOrNone = 0.03
    lease_s: Seconds = 30.0


class JournalSection(_Section):
    """For how many days hpctl explains what has ended (docs/operations.md, 'The journal')."""

    keep_days: Count = 400


class Override(_Section):
    """What a site changes in one row of the catalogue, or a rule of its own (docs/plugins.md)."""

    meaning: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    urgency: Urgency | None = None
    ladder: Annotated[tuple[Remedy, ...], Field(min_length=1)] | None = None
    settle_s: SecondsOrNone | None = None
    escalate_window_s: Seconds | None = None


class NodeSection(_Section):
    """Deadlines and repeats of node recoveries."""

    cordon_deadline_s: Seconds = 120.0
    disturb_after_s: SecondsOrNone = 0.1
    vacate_deadline_s: Seconds = 900.0
    vacate_after_jobs_deadline_s: Seconds = 14 * 86400.0
    remedy_after_s: SecondsOrNone = 60.0
    reboot_deadline_s: Seconds = 1200.0
    replace_deadline_s: Seconds = 5400.0
    rejoin_deadline_s: Seconds = 1800.0
    verify_deadline_s: Seconds = 1800.0
    verify_healthy_s: SecondsOrNone = 30.0
    unrecoverable_jobs: Unrecoverable = Unrecoverable.WAIT
    step_retry_s: Seconds = 10.0
    step_attempts: Count = 5
    doubt_window_s: Seconds = 180.0
    protected: frozenset[NodeName] = frozenset()


class JobSection(_Section):
    """Deadlines and budgets of job recoveries."""

    save_grace_s: SecondsOrNone = 60.0
    stop_deadline_s: Seconds = 900.0
    release_deadline_s: Seconds = 300.0
    start_deadline_s: Seconds = 86400.0
    prove_s: SecondsOrNone = 30.0
    prove_deadline_s: Seconds = 3600.0
    step_retry_s: Seconds = 2.0
    step_attempts: Count = 10
    max_restarts: Count = 10
    restart_window_s: Seconds = 86400.0
    final_exit_codes: tuple[int, ...] = (93,)
    supervisor_grace_s: Seconds = 60.0
    settle_s: SecondsOrNone = 3.0
    ended_before_fault_s: SecondsOrNone = 60.0


class BudgetSection(_Section):
    """How much may be in treatment at once."""

    open_min: Count = 2
    open_fraction: Fraction = 0.05
    partition_min: Count = 2
    partition_fraction: Fraction = 0.25
    per_hour: Count = 10
    offender_recoveries: Count = 3
    offender_window_s: Seconds = 30 * 86400.0
    correlated_min: Annotated[int, Field(ge=2)] = 3
    correlated_fraction: Fraction = 0.10
    correlated_window_s: Seconds = 600.0
    launch_failures: Count = 2
    launch_window_s: Seconds = 86400.0
    approval_s: Seconds = 3600.0


class AgeSection(_Section):
    """How old a fact may be and still be acted on."""

    scheduler_s: Seconds = 60.0
    provider_s: Seconds = 300.0
    report_s: Seconds = 120.0
    silent_s: Seconds = 20.0


class GroupScale(_Section):
    """Between how many instances a group is scaled, and the partition whose jobs it serves."""

    min_count: Annotated[int, Field(ge=0)]
    max_count: Annotated[int, Field(ge=0, le=6758)]
    partition: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> GroupScale:
        if self.min_count > self.max_count:
            raise ValueError(f"min_count {self.min_count} is over max_count {self.max_count}")
        return self


class AutoscaleSection(_Section):
    """Instance groups that grow for waiting jobs and shrink when idle: off, and none named."""

    enabled: bool = False
    groups: dict[str, GroupScale] = Field(default_factory=dict)
    up_after_s: SecondsOrNone = 120.0
    down_after_s: SecondsOrNone = 1800.0
    cooldown_s: SecondsOrNone = 600.0
    step: Annotated[int, Field(ge=1, le=50)] = 8
    adds_per_day: Annotated[int, Field(ge=0)] = 50
    hours_per_day: SecondsOrNone | None = None
    arrive_deadline_s: Seconds = 5400.0
    leave_deadline_s: Seconds = 3600.0

    @model_validator(mode="after")
    def _named(self) -> AutoscaleSection:
        if self.enabled and not self.groups:
            raise ValueError("enabled, but no group is named in groups")
        return self

    def policy(self) -> AutoscalePolicy:
        """The numbers, as the core takes them."""
        groups = {name: GroupLimits(**g.model_dump()) for name, g in self.groups.items()}
        return AutoscalePolicy(**{**self.model_dump(), "groups": groups})


class Config(_Section):
    """The whole file."""

    mode: Mode = Mode.OBSERVE
    state_dir: Path = Path("/var/lib/hpctl")
    database_url: str | None = None
    kill_switch: Path = Path("/etc/hpctl/STOP")
    partitions: frozenset[str] = frozenset()
    cluster: Cluster = Cluster(provider="none")
    slurm: Slurm = Slurm()
    intake: Intake = Intake()
    access: Access = Access()
    alerts: Alerts = Alerts()
    loop: Loop = Loop()
    journal: JournalSection = JournalSection()
    node: NodeSection = NodeSection()
    job: JobSection = JobSection()
    budgets: BudgetSection = BudgetSection()
    ages: AgeSection = AgeSection()
    catalogue: dict[RuleId, Override] = Field(default_factory=dict)
    autoscale: AutoscaleSection = AutoscaleSection()
    spares: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    run_policy: PolicyFile = PolicyFile()
    run_policies: dict[str, PolicyFile] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _own_needs_a_cloud(self) -> Config:
        if self.mode is Mode.OWN and self.cluster.provider == "none":
            raise ValueError("mode own reboots and replaces: it needs a cluster.provider")
        if self.autoscale.enabled and self.cluster.provider == "none":
            raise ValueError("autoscale adds and removes instances: it needs a cluster.provider")
        return self

    @property
    def url(self) -> str:
        """The journal's SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{quote(str(self.state_dir / 'journal.db'))}"

    @property
    def sizes_capacity(self) -> bool:
        """Whether anything here sets nodes apart or changes how many there are."""
        return self.autoscale.enabled or any(self.spares.values())

    def run_policy_layers(self, partition: str) -> tuple[PolicyFile, ...]:
        """The recovery policies that come before a job's own: the cluster's, its partition's."""
        own = self.run_policies.get(partition)
        return (self.run_policy,) if own is None else (self.run_policy, own)

    def changed(self) -> dict[str, str]:
        """What differs from the defaults, by dotted name, as the audit trail keeps it."""
        from sqlalchemy import make_url

        found = _flat(self.model_dump(mode="json"))
        plain = _flat(type(self)().model_dump(mode="json"))
        if self.database_url is not None:
            found["database_url"] = make_url(self.database_url).render_as_string()
        return {k: v for k, v in found.items() if v != plain.get(k)}

    def policy(self) -> Policy:
        """The numbers, as the core takes them."""
        return Policy(
            mode=self.mode,
            partitions=self.partitions,
            node=NodePolicy(**self.node.model_dump()),
            job=JobPolicy(**self.job.model_dump()),
            budgets=Budgets(**self.budgets.model_dump()),
            ages=FactAges(**self.ages.model_dump()),
            autoscale=self.autoscale.policy(),
            spares=self.spares,
        )


def load(path: str | Path) -> Config:
    """Read and validate a file. Raises ConfigError with every problem it has."""
    return parse(yaml_errors.read(path, ConfigError), str(path))


def parse(text: str, path: str = "<text>") -> Config:
    """Validate YAML text. Raises ConfigError with every problem it has."""
    return yaml_errors.validated(Config, text, path, ConfigError)


def example(config: Config | None = None) -> str:
    """A file with every key of a configuration, by default of the defaults, under its meaning."""
    config = config or Config()
    out = ["# hpctl.yaml: every key with its default. Durations are in seconds.", ""]
    for name in Config.model_fields:
        default = getattr(config, name)
        if isinstance(default, BaseModel):
            out += ["", f"# {(type(default).__doc__ or '').strip()}"]
        body = {name: _plain(default)}
        out.append(yaml.safe_dump(body, sort_keys=False, default_flow_style=False).rstrip())
    return "\n".join(out) + "\n"


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Nested keys as `a.b.c`, each with its value as JSON; lists are values."""
    if not isinstance(value, dict):
        return {name: json.dumps(value)}
    inner = (_flat(v, f"{name}.{k}" if name else str(k)) for k, v in value.items())
    return {key: said for one in inner for key, said in one.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        # A recovery policy has no defaults of its own: what is not set is left to the one before.
        return {
            k: _plain(v) for k, v in value if v is not None or not isinstance(value, PolicyFile)
        }
    if dataclasses.is_dataclass(value) or isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return [_plain(v) for v in sorted(value)]
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return getattr(value, "value", value)
