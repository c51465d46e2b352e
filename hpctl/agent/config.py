"""The agent's own file, `/etc/hpctl/agent.yaml`: what this machine should have, checks, budget.

Everything in it is optional, and so is the file. pydantic would cost the node eight megabytes:
msgspec names the place of what is wrong, and near misses are looked up here.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from hpctl.agent import runner
from hpctl.agent.check import Expected
from hpctl.agent.outside.sources import Places
from hpctl.core.faults import CheckSpec
from hpctl.core.model import BootId, InstanceId, NodeName
from hpctl.errors import HpctlError
from hpctl.protocol.heads import Head

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

    cpu_percent: _Positive = runner.CPU_PERCENT
    memory_mb: _Positive = runner.MEMORY_MB


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


# --- settings ---
#
# What one agent is configured with, and what it finds out by itself where it is not.

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
ASSET_TAG_FILE = Path("/sys/devices/virtual/dmi/id/board_asset_tag")
"""Holds the EC2 instance id on Nitro instances."""
KERNEL_LOG = Path("/dev/kmsg")
SPOOL = Path("/var/lib/hpctl/agent")


class AgentSettings(Struct, frozen=True):
    """One agent's settings. `heads` are tried in turn; the first that answers is kept.

    `root` is put before every path that a timed check reads, for a machine that is played;
    `places` are where scripts, plugins and HyperPod's health agent speak. `metrics`: where they are
    served, HOST:PORT, empty for nowhere; `metrics_allow`: networks, with commas.
    """

    heads: tuple[Head, ...]
    node: NodeName
    instance: InstanceId
    boot: BootId
    kmsg: Path = KERNEL_LOG
    munge_socket: Path | None = None
    spool: Path = SPOOL
    heartbeat_s: float = 10.0
    kmsg_accept_user: bool = False
    root: Path = Path("/")
    config: AgentConfig = field(default_factory=AgentConfig)
    metrics: str = ""
    metrics_allow: str = ""
    places: Places = field(default_factory=Places)


def this_instance(node: NodeName, asset_tag: Path = ASSET_TAG_FILE) -> InstanceId:
    """The EC2 instance id. Where there is none, the node's name stands for it: no cloud, no id."""
    try:
        tag = asset_tag.read_text().strip()
    except OSError:
        tag = ""
    return InstanceId(tag if re.fullmatch(r"i-[0-9a-f]{8,17}", tag) else node)


def this_boot(path: Path = BOOT_ID_FILE) -> BootId:
    """The kernel's boot id. Raises HpctlError: without it a new fault looks like an old one."""
    try:
        boot = path.read_text().strip()
    except OSError as error:
        raise HpctlError(
            f"the boot id cannot be read from {path}: {error.strerror}",
            "Name another file with --boot-id-file.",
        ) from error
    if not boot:
        raise HpctlError(f"{path} holds no boot id")
    return BootId(boot)
