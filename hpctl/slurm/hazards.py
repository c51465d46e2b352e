"""What a Slurm's release and configuration mean for recovery: the rules of `hpctl doctor`.

Pure: a version and `scontrol show config` in, findings out. The rules are rows of hazards.yaml;
what one setting alone does not tell is decided here.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files as resources
from itertools import chain
from typing import Literal

import msgspec
import yaml

from hpctl.slurm import parse
from hpctl.vocabulary.trouble import STOP_EXIT_CODE

Version = tuple[int, int, int]
Config = Mapping[str, str]
Severity = Literal["fail", "warn", "note"]
OUR_HEALTH_CHECK = "/opt/hpctl/slurm/health_check.sh"
_HEALTH_CHECK_END = "/hpctl/slurm/health_check.sh"
TOPOLOGY = ("topology.conf", "topology.yaml")
_Values = dict[str, object]


class SlurmHazard(msgspec.Struct, frozen=True):
    """One finding. `fail` breaks recovery, `warn` slows or weakens it, `note` is good to know."""

    rule: str
    severity: Severity
    what: str
    hint: str
    source: str


class _SlurmConfiguration(msgspec.Struct, frozen=True):
    version: Version
    config: Config
    files: Mapping[str, str] | None

    def option(self, setting: str, name: str) -> str | None:
        """Return the value of `name=value` in a comma-separated setting; "" for `name`, else
        None."""
        for word in self.config.get(setting, "").split(","):
            option, _, value = word.strip().partition("=")
            if option.lower() == name:
                return value
        return None

    def number(self, setting: str, default: int) -> int:
        return _parse_leading_int(self.config.get(setting, ""), default)


class _HazardRule(SlurmHazard, frozen=True, forbid_unknown_fields=True):
    """A row of hazards.yaml, whose head says what each key means."""

    since: tuple[int, ...] = ()
    before: tuple[int, ...] = (99,)
    setting: str = ""
    option: str = ""
    default: int = 0
    above: int | None = None
    below: int | None = None
    equal: int | None = None
    texts: tuple[str, ...] = ()
    given: bool | None = None
    by: str = ""

    def of(self, slurm: _SlurmConfiguration) -> list[SlurmHazard]:
        """Return the hazard that the row tells of this Slurm, if it does; of some, one for each
        key."""
        if not self.since <= slurm.version < self.before:
            return []
        found = BY[self.by](slurm) if self.by else self._list_hazard_message_values(slurm)
        return [
            SlurmHazard(
                self.rule,
                self.severity,
                self.what.format_map(values),
                self.hint.format_map(values),
                self.source,
            )
            for values in found
        ]

    def _list_hazard_message_values(self, slurm: _SlurmConfiguration) -> list[_Values]:
        text: str | None = slurm.config.get(self.setting, "")
        if self.option:
            text = slurm.option(self.setting, self.option)
        value = _parse_leading_int(text or "", self.default)
        trips = (
            self.above is None or value > self.above,
            self.below is None or value < self.below,
            self.equal is None or value == self.equal,
            not self.texts or text in self.texts,
            self.given is None or (text is not None if self.option else bool(text)) is self.given,
        )
        return [{"value": value}] if all(trips) else []


@cache
def _load_hazard_rules() -> list[_HazardRule]:
    text = resources(__package__).joinpath("hazards.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), list[_HazardRule])


def find_slurm_hazards(
    version: Version, config: Config, files: Mapping[str, str] | None = None
) -> list[SlurmHazard]:
    """Return all findings for this release under this configuration, the worst first.

    `files` are those of TOPOLOGY that lie beside slurm.conf, None where that is not known.
    """
    slurm = _SlurmConfiguration(version, config, files)
    found = chain.from_iterable(row.of(slurm) for row in _load_hazard_rules())
    return sorted(found, key=lambda hazard: ("fail", "warn", "note").index(hazard.severity))


def _find_begin_delay_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    delay = None
    if slurm.version >= (25, 11):
        delay = slurm.option("SchedulerParameters", "requeue_delay")
    seconds = _parse_leading_int(delay or slurm.option("AuthInfo", "cred_expire") or "", 120)
    where = "SchedulerParameters=requeue_delay" if delay else "AuthInfo=cred_expire"
    restart = "; it is read once: restart slurmctld" if delay else ""
    values: _Values = {"seconds": seconds + 1, "where": where, "restart": restart}
    return [values] if seconds > 120 else []


def _find_unkillable_step_timeout_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    limit, floor = slurm.number("UnkillableStepTimeout", 60), 5 * slurm.number("MessageTimeout", 10)
    return [{"limit": limit, "floor": floor}] if limit < floor else []


def _format_prolog_paths(slurm: _SlurmConfiguration) -> str:
    """Return the Prologs of the nodes: one line each from 24.05 on (`Prolog[0]`)."""
    lines = (text for key, text in slurm.config.items() if key.partition("[")[0] == "Prolog")
    return ",".join(filter(None, lines))


def _find_prolog_hold_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    prolog = _format_prolog_paths(slurm)
    unheld = slurm.option("SchedulerParameters", "nohold_on_prolog_fail") is not None
    # Before 23.02 slurmd asks for the requeue, and reads its own slurm.conf.
    where = "slurm.conf, on the nodes as well" if slurm.version < (23, 2) else "slurm.conf"
    return [{"prolog": prolog, "where": where}] if prolog and not unheld else []


def _find_prolog_cancel_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    forced = slurm.option("PrologFlags", "forcerequeueonfail") is not None
    return [{}] if _format_prolog_paths(slurm) and not forced else []


def _find_health_check_program(slurm: _SlurmConfiguration) -> str:
    program = slurm.config.get("HealthCheckProgram", "")
    return "" if program == "(null)" else program


def _find_health_check_interval_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    """Only START_ONLY (25.11) and REBOOT_ONLY (26.05) run without an interval."""
    program, states = (
        _find_health_check_program(slurm),
        slurm.config.get("HealthCheckNodeState", ""),
    )
    runs = slurm.number("HealthCheckInterval", 0) > 0 or states.upper().endswith("_ONLY")
    return [{"program": program}] if program and not runs else []


def _find_health_check_program_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    program, interval = _find_health_check_program(slurm), slurm.number("HealthCheckInterval", 0)
    if not program or not interval:
        return []
    ours = program.endswith(_HEALTH_CHECK_END)
    hint = "nothing: it prints the agent's verdict and drains nothing"
    if not ours:
        hint = (
            "nothing, if it is meant: it is the site's own, and hpctl lists a node that it drains."
            f" For the agent's verdict in slurmd's log too, have it run {OUR_HEALTH_CHECK}; for its"
            " findings in hpctl, `hpctl agent report --read`"
        )
    return [{"program": program, "interval": interval, "hint": hint}]


def _find_requeue_exit_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    keys = ("RequeueExit", "RequeueExitHold")
    bad = [
        key
        for key in keys
        if STOP_EXIT_CODE in parse.parse_requeue_exit_codes(slurm.config.get(key, ""))
    ]
    return [{"key": key, "code": STOP_EXIT_CODE} for key in bad]


def _find_accounting_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    storage = slurm.config.get("AccountingStorageType", "")
    if not storage or storage.endswith("/none"):
        return []
    return [{}] if slurm.option("AccountingStoreFlags", "job_comment") is None else []


def _find_missing_topology_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    plugin = slurm.config.get("TopologyPlugin", "").rpartition("/")[2].lower()
    known = TOPOLOGY if slurm.version >= (25, 5, 0) else TOPOLOGY[:1]
    if slurm.files is None or plugin not in ("tree", "block"):
        return []
    there = any(name in slurm.files for name in known)
    return [] if there else [{"plugin": plugin, "files": " or ".join(known)}]


def _find_empty_topology_hazard(slurm: _SlurmConfiguration) -> list[_Values]:
    text = (slurm.files or {}).get("topology.yaml")
    lines = (line.strip() for line in (text or "").splitlines())
    full = any(line and not line.startswith("#") and line not in ("---", "[]") for line in lines)
    return [] if text is None or full else [{}]


BY: Mapping[str, Callable[[_SlurmConfiguration], list[_Values]]] = {
    "begin_delay": _find_begin_delay_hazard,
    "unkillable_floor": _find_unkillable_step_timeout_hazard,
    "prolog_hold": _find_prolog_hold_hazard,
    "prolog_cancels": _find_prolog_cancel_hazard,
    "health_check": _find_health_check_program_hazard,
    "health_check_never_runs": _find_health_check_interval_hazard,
    "requeue_exit": _find_requeue_exit_hazard,
    "accounting": _find_accounting_hazard,
    "topology_missing": _find_missing_topology_hazard,
    "topology_empty": _find_empty_topology_hazard,
}


def _parse_leading_int(text: str, default: int) -> int:
    """Return the number that a setting begins with (`300 sec`), or the default."""
    match = re.match(r"\s*(\d+)", text)
    return int(match[1]) if match else default
