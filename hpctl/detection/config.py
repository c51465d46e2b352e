"""The agent's own file, `/etc/hpctl/agent.yaml`: what this machine should have, checks, budget.

Everything in it is optional, and so is the file. pydantic would cost the node eight megabytes:
msgspec names the place of what is wrong, and near misses are looked up here.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.detection import budget as detection_budget
from hpctl.detection.check import Expected
from hpctl.faults.table import CheckSpec
from hpctl.toolkit.errors import HpctlError

CONFIG = Path("/etc/hpctl/agent.yaml")


MAX_BYTES = 256 * 1024


_Positive = Annotated[float, Meta(gt=0)]


class CheckConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a site changes in one check. `limits` in the units of docs/checks.md."""

    enabled: bool = True
    every_s: Annotated[float, Meta(ge=1, le=86400)] | None = None
    gone_s: Annotated[float, Meta(ge=0, le=86400)] | None = None
    limits: dict[str, float] = msgspec.field(default_factory=dict)


class BudgetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What the agent may use before it sheds checks: percent of one core, megabytes."""

    cpu_percent: _Positive = detection_budget.CPU_PERCENT
    memory_mb: _Positive = detection_budget.MEMORY_MB


class AgentConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    expected: Expected = msgspec.field(default_factory=Expected)
    checks: dict[str, CheckConfig] = msgspec.field(default_factory=dict)
    budget: BudgetConfig = msgspec.field(default_factory=BudgetConfig)


def load(path: Path | None, specs: Sequence[CheckSpec]) -> AgentConfig:
    """The file's settings; the defaults where `path` is None or the default file is not there.

    Raises HpctlError with the place and a hint.
    """
    if path is None:
        return AgentConfig()
    try:
        text = path.read_bytes()[: MAX_BYTES + 1]
    except FileNotFoundError as error:
        if path == CONFIG:
            return AgentConfig()
        raise HpctlError(f"no such file: {path}") from error
    except OSError as error:
        raise HpctlError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise HpctlError(f"{path} is larger than {MAX_BYTES // 1024} KiB")
    try:
        config = msgspec.convert(_yaml(text, path) or {}, AgentConfig)
    except msgspec.ValidationError as error:
        raise HpctlError(f"{path}: {error}", _near(str(error))) from error
    _verify(config, path, specs)
    return config


def apply(
    config: AgentConfig, specs: Sequence[CheckSpec]
) -> list[tuple[CheckSpec, dict[str, float]]]:
    """The enabled checks with their times and the site's limits."""
    chosen = []
    for spec in specs:
        mine = config.checks.get(spec.name, CheckConfig())
        if mine.enabled:
            every_s = spec.every_s if mine.every_s is None else mine.every_s
            gone_s = spec.gone_s if mine.gone_s is None else mine.gone_s
            chosen.append((replace(spec, every_s=every_s, gone_s=gone_s), dict(mine.limits)))
    return chosen


def _yaml(text: bytes, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HpctlError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _verify(config: AgentConfig, path: Path, specs: Sequence[CheckSpec]) -> None:
    """Every check and limit that is named must exist."""
    known = {spec.name: spec for spec in specs}
    for name, mine in config.checks.items():
        spec = known.get(name)
        if spec is None:
            raise HpctlError(f"{path}: checks.{name}: no such check", _guess(name, known))
        for limit in mine.limits:
            if limit not in spec.limits:
                where = f"{path}: checks.{name}.limits.{limit}"
                raise HpctlError(f"{where}: no such limit", _guess(limit, spec.limits))


def _guess(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=2)
    return f"Did you mean {' or '.join(near)}?" if near else "docs/checks.md names all of them."


def _near(message: str) -> str:
    """A field that does not exist is most often a slip of the pen."""
    word = message.partition("unknown field `")[2].partition("`")[0]
    kinds = (AgentConfig, Expected, CheckConfig, BudgetConfig)
    names = {name for kind in kinds for name in kind.__struct_fields__}
    return _guess(word, names) if word else ""
