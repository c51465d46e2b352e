"""The agent's own file, `/etc/hpctl/agent.yaml`: what this machine should have, checks, budget.

All fields are optional, and so is the file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.detection import budget as detection_budget
from hpctl.detection.check import ExpectedHardware
from hpctl.faults.table import HealthCheckSpec
from hpctl.toolkit.errors import InvalidFileError
from hpctl.vocabulary.evidence import PLACE

CONFIG = Path("/etc/hpctl/agent.yaml")


_Positive = Annotated[float, Meta(gt=0)]


class CheckConfig(Struct, frozen=True):
    """The site's changes to one check. `limits` in the units of docs/checks.md."""

    enabled: bool = True
    every_s: Annotated[float, Meta(ge=1, le=86400)] | None = None
    gone_s: Annotated[float, Meta(ge=0, le=86400)] | None = None
    limits: dict[str, float] = msgspec.field(default_factory=dict)


class AgentBudgetConfig(Struct, frozen=True):
    """The limits at which the agent sheds checks: percent of one core, megabytes."""

    cpu_percent: _Positive = detection_budget.CPU_PERCENT
    memory_mb: _Positive = detection_budget.MEMORY_MB


_Place = Annotated[str, Meta(pattern=PLACE)]
_CommandName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
_CommandWords = Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]


class EvidenceStorageConfig(Struct, frozen=True):
    """Where this node's evidence is kept before a remedy, a directory or `s3://BUCKET/PREFIX`
    (docs/evidence.md), and a site's own commands whose output is kept with it: each a list of
    words, by name."""

    directory: _Place = ""
    commands: Annotated[dict[_CommandName, _CommandWords], Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )


class AgentConfig(Struct, frozen=True):
    """The whole file."""

    expected: ExpectedHardware = msgspec.field(default_factory=ExpectedHardware)
    checks: dict[str, CheckConfig] = msgspec.field(default_factory=dict)
    budget: AgentBudgetConfig = msgspec.field(default_factory=AgentBudgetConfig)
    evidence: EvidenceStorageConfig = msgspec.field(default_factory=EvidenceStorageConfig)


class AgentConfigError(InvalidFileError):
    """The error of an agent's file with problems."""

    hint_text = "docs/checks.md names all checks and limits"


def load_agent_config(path: Path | None, specs: Sequence[HealthCheckSpec]) -> AgentConfig:
    """Return the file's settings; the defaults where `path` is None or the default file is not
    there.

    Raises AgentConfigError with every problem of the file.
    """
    if path is None or (path == CONFIG and not path.exists()):
        return AgentConfig()
    from hpctl.toolkit import yaml_files  # only where there is a file, because it costs memory

    text = yaml_files.read_size_limited_text(path, AgentConfigError)
    data = yaml_files.load_yaml_mapping(text, str(path), AgentConfigError)
    config, problems = yaml_files.build_struct_from_mapping(AgentConfig, data)
    if config is not None:
        problems = list(_find_unknown_check_settings(config, specs))
    if config is None or problems:
        raise AgentConfigError(str(path), yaml_files.format_yaml_problems(problems, text))
    return config


def select_enabled_checks(
    config: AgentConfig, specs: Sequence[HealthCheckSpec]
) -> list[tuple[HealthCheckSpec, dict[str, float]]]:
    """Return the enabled checks with their times and the site's limits."""
    chosen = []
    for spec in specs:
        mine = config.checks.get(spec.name, CheckConfig())
        if mine.enabled:
            every_s = spec.every_s if mine.every_s is None else mine.every_s
            gone_s = spec.gone_s if mine.gone_s is None else mine.gone_s
            chosen.append((replace(spec, every_s=every_s, gone_s=gone_s), dict(mine.limits)))
    return chosen


def _find_unknown_check_settings(
    config: AgentConfig, specs: Sequence[HealthCheckSpec]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every check and limit that is named and does not exist."""
    from hpctl.toolkit.yaml_files import suggest_similar_word

    known = {spec.name: spec for spec in specs}
    for name, mine in config.checks.items():
        spec = known.get(name)
        if spec is None:
            yield ("checks", name), f"no such check{suggest_similar_word(name, list(known))}"
            continue
        for limit in mine.limits:
            if limit not in spec.limits:
                guess = suggest_similar_word(limit, list(spec.limits))
                yield ("checks", name, "limits", limit), f"no such limit{guess}"
