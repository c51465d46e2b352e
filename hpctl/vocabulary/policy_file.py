"""Recovery policies as people write them: YAML for a job, a partition or the cluster.

Every key may be left out: what a file does not say, the one before it says, and at last the
defaults of `hpctl.jobs.decide`. `docs/policies.md` tells what the keys mean.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from hpctl.toolkit import yaml_files
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import InvalidFileError
from hpctl.toolkit.hostlist import MAX_HOSTS
from hpctl.toolkit.yaml_files import Reads
from hpctl.vocabulary.policy import Seconds, SecondsOrNone
from hpctl.vocabulary.run_policy import (
    DEFAULTS,
    RESTARTS,
    RestartBackoff,
    RunAction,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import TroubleKind

_GENTLEST_FIRST = list(RunAction)
_T = TypeVar("_T", RestartBackoff, TroubleTreatment)

Factor = Annotated[float, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
ExitCode = Annotated[int, Meta(ge=1, le=255)]


class PolicyFileError(InvalidFileError):
    """A policy with problems: all of them, each with its place."""

    hint_text = "`hpctl policy example` prints every key with its default"


def _parse_node_count_range(value: Any) -> Any:
    """`8`, `"6-8"` or `[6, 8]` as (least, most)."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", value)
        value = (parse_count(found[1]), parse_count(found[2] or found[1])) if found else None
    elif isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError("is no number of nodes: write 8, or 6-8")
    if not all(isinstance(n, int) for n in value) or not 1 <= value[0] <= value[1]:
        raise ValueError("goes from the least to the most nodes, and the least is 1")
    if value[1] > MAX_HOSTS:
        raise ValueError(f"names more than {MAX_HOSTS} nodes")
    return tuple(value)


def _split_notify_command_line(value: Any) -> Any:
    """Return a list as it is; one string as a command line."""
    return shlex.split(value) if isinstance(value, str) else value


def _convert_scalar_to_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


def _parse_run_action_ladder(value: Any) -> Any:
    """`hold` or `[step, hold]`, the gentlest first."""
    ladder = _convert_scalar_to_list(value)
    known = [a for a in ladder if a in _GENTLEST_FIRST] if isinstance(ladder, list) else []
    for gentle, harsh in pairwise(known):
        if _GENTLEST_FIRST.index(gentle) > _GENTLEST_FIRST.index(harsh):
            raise ValueError(f"goes from the gentlest on: {harsh} cannot follow {gentle}")
        if gentle in (RunAction.NONE, RunAction.END, RunAction.HOLD):
            raise ValueError(f"nothing can follow {gentle}")
    return ladder


def _parse_log_rule_names(value: Any) -> Any:
    """Return one name of log rules, or several: each a preset or an absolute path."""
    from hpctl.vocabulary.log_presets import PRESETS

    rules = _convert_scalar_to_list(value)
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, str) and rule not in PRESETS and not rule.startswith("/"):
            guess = yaml_files.suggest_similar_word(rule, list(PRESETS))
            raise ValueError(f"{rule!r} is no preset and no absolute path{guess}")
    return rules


class RestartBackoffSection(Struct, frozen=True, omit_defaults=True):
    """How long the second restart in a row waits, and each further one."""

    first_s: SecondsOrNone | None = None
    factor: Factor | None = None
    cap_s: SecondsOrNone | None = None


class TroubleTreatmentSection(Struct, frozen=True, omit_defaults=True):
    """What one kind of trouble gets; a key that is left out keeps what it was."""

    READS: ClassVar[Reads] = {"ladder": _parse_run_action_ladder}

    ladder: Annotated[tuple[RunAction, ...], Meta(min_length=1, max_length=20)] | None = None
    backoff: bool | None = None
    exclude: Count | None = None
    save_first: bool | None = None
    hold_same: bool | None = None
    max: Count | None = None

    @classmethod
    def normal(cls, data: Any) -> Any:
        """`hold` or `[step, hold]` stand for their ladder."""
        return {"ladder": data} if isinstance(data, str | list) else data


class RunPolicyFile(Struct, frozen=True, omit_defaults=True):
    """One file, or one section of the daemon's configuration: only what is set counts."""

    READS: ClassVar[Reads] = {
        "nodes": _parse_node_count_range,
        "final_exit_codes": _convert_scalar_to_list,
        "corruption_exit_codes": _convert_scalar_to_list,
        "log_rules": _parse_log_rule_names,
        "notify": _split_notify_command_line,
    }

    restarts: Count | None = None
    window_s: Seconds | None = None
    without_progress: Count | None = None
    same_signature: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    proven_s: Seconds | None = None
    most_excluded: Count | None = None
    backoff: RestartBackoffSection | None = None
    save_grace_s: SecondsOrNone | None = None
    nodes: tuple[int, int] | None = None
    grow_gain: Factor | None = None
    spares: Count | None = None
    final_exit_codes: tuple[ExitCode, ...] | None = None
    corruption_exit_codes: tuple[ExitCode, ...] | None = None
    hang_floor_s: Seconds | None = None
    hang_factor: Factor | None = None
    hang_start_s: Seconds | None = None
    on: dict[TroubleKind, TroubleTreatmentSection] | None = None
    log_rules: tuple[str, ...] | None = None
    notify: tuple[str, ...] | None = None

    @classmethod
    def normal(cls, data: Any) -> Any:
        """YAML 1.1 reads the bare key `on` as the boolean true."""
        if isinstance(data, Mapping) and True in data and "on" not in data:
            return {"on" if key is True else key: value for key, value in data.items()}
        return data

    def __post_init__(self) -> None:
        final = (self.on or {}).get(TroubleKind.FINAL)
        if final is not None and RESTARTS & set(final.ladder or ()):
            raise ValueError("on.final asks not to be run again: change final_exit_codes instead")

    def compact(self) -> dict[str, object]:
        """Only what is set, as JSON: what a job's Comment holds. `parse_run_policy_json` reads it
        back."""
        keys: dict[str, object] = msgspec.json.decode(msgspec.json.encode(self))
        return {**keys, "nodes": "-".join(map(str, self.nodes))} if self.nodes else keys


def read_run_policy_file(path: str | Path) -> RunPolicyFile:
    """Read and validate a file. Raises PolicyFileError with every problem it has."""
    return parse_run_policy_yaml(
        yaml_files.read_size_limited_text(path, PolicyFileError), str(path)
    )


def parse_run_policy_yaml(text: str, place: str = "<text>") -> RunPolicyFile:
    """Validate YAML text. Raises PolicyFileError with every problem it has."""
    return yaml_files.parse_yaml_struct(RunPolicyFile, text, place, PolicyFileError)


def parse_run_policy_json(keys: object) -> RunPolicyFile:
    """A policy as a job's Comment or a message has it. Raises ValueError with what is wrong."""
    found, problems = yaml_files.build_struct_from_mapping(RunPolicyFile, keys)
    if found is None:
        place, first = problems[0]
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ValueError(f"{'.'.join(map(str, place)) or 'the whole'}: {first}{more}"[:200])
    return found


def merge_run_policy_files(files: Iterable[RunPolicyFile]) -> RunPolicy:
    """Return the policy that layers of files make together: of each key, the last file that sets
    it.

    Backoff and treatments are merged key by key as well, so that a file which changes one key of
    a kind's treatment keeps the others.
    """
    policy = RunPolicy()
    treatments = dict(policy.treatments)
    for file in files:
        numbers = _collect_set_section_values(file)
        numbers.pop("on", None)
        numbers["backoff"] = _apply_policy_section(policy.backoff, file.backoff)
        for kind, section in (file.on or {}).items():
            before = treatments.get(kind) or policy.treatment(kind)
            treatments[kind] = _apply_policy_section(before, section)
        policy = replace(policy, **numbers)
    return replace(policy, treatments=treatments)


def _collect_set_section_values(section: Struct) -> dict[str, Any]:
    """Return the keys that a file sets."""
    return {name: value for name, value in asdict(section).items() if value is not None}


def _apply_policy_section(base: _T, section: Struct | None) -> _T:
    return base if section is None else replace(base, **_collect_set_section_values(section))


def format_example_policy_file() -> str:
    """Return a file with every key at its default, and each kind's treatment with its reason."""
    default = RunPolicy()
    out = ["# A recovery policy: every key with its default. Leave out what you do not change."]
    out.append("# Durations are seconds, or 30s, 10m, 2h, 1d.")
    for name in RunPolicyFile.__struct_fields__:
        value = getattr(default, name, None)
        if name == "on":
            out.append("on:")
            for kind, treatment in DEFAULTS.items():
                body = _format_trouble_treatment_yaml(treatment)
                out += [f"  # {treatment.why}", f"  {kind}: {body}"]
        elif name == "nodes":
            out += [
                "# The elastic range, as 6-8; without it the job keeps its size.",
                "# nodes: 6-8",
            ]
        else:
            plain = asdict(value) if isinstance(value, RestartBackoff) else value
            out.append(_format_value_as_flow_yaml({name: plain})[1:-1])
    return "\n".join(out) + "\n"


def _format_trouble_treatment_yaml(treatment: TroubleTreatment) -> str:
    keys = {name: getattr(treatment, name) for name in TroubleTreatmentSection.__struct_fields__}
    return _format_value_as_flow_yaml(
        {name: value for name, value in keys.items() if value is not False and value != 0}
    )


def _format_value_as_flow_yaml(value: Any) -> str:
    """JSON, which is YAML, without the quotes that YAML can do without."""
    text = json.dumps(value)
    return re.sub(r'"([A-Za-z_]\w*)"', r"\1", text)
