"""Recovery policies as people write them: YAML for a job, a partition or the cluster.

Every key may be left out: what a file does not say, the one before it says, and at last the
defaults of `hpctl.core.run_policy`. `docs/policies.md` tells what the keys mean.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec.structs import asdict, replace
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from hpctl.core.bounds import MAX_SECONDS, duration_s, natural
from hpctl.core.hostlist import MAX_HOSTS
from hpctl.core.run_policy import DEFAULTS, RESTARTS, Action, Backoff, RunPolicy, Treatment
from hpctl.core.trouble import Kind
from hpctl.yaml import errors as yaml_errors
from hpctl.yaml.errors import FileProblems

_GENTLEST_FIRST = list(Action)
_T = TypeVar("_T", Backoff, Treatment)


def _seconds(value: Any) -> Any:
    """`90`, `"90s"`, `"10m"`, `"2h"`, `"1d"` as seconds."""
    if not isinstance(value, str):
        return value
    seconds = duration_s(value)
    if seconds is None:
        raise ValueError("is no time: write seconds, or 30s, 10m, 2h, 1d")
    return seconds


def _range(value: Any) -> Any:
    """`8`, `"6-8"` or `[6, 8]` as (least, most)."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", value)
        value = (natural(found[1]), natural(found[2] or found[1])) if found else None
    elif isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError("is no number of nodes: write 8, or 6-8")
    if not all(isinstance(n, int) for n in value) or not 1 <= value[0] <= value[1]:
        raise ValueError("goes from the least to the most nodes, and the least is 1")
    if value[1] > MAX_HOSTS:
        raise ValueError(f"names more than {MAX_HOSTS} nodes")
    return tuple(value)


def _words(value: Any) -> Any:
    """A list as it is; one string as a command line."""
    return shlex.split(value) if isinstance(value, str) else value


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


def _treatment(value: Any) -> Any:
    """`hold` or `[step, hold]` stand for their ladder."""
    return {"ladder": value} if isinstance(value, str | list) else value


Factor = Annotated[float, Field(ge=1, le=1_000_000, allow_inf_nan=False)]
Finite = Annotated[float, Field(le=MAX_SECONDS, allow_inf_nan=False)]
Seconds = Annotated[Finite, BeforeValidator(_seconds), Field(gt=0)]
SecondsOrNone = Annotated[Finite, BeforeValidator(_seconds), Field(ge=0)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
ExitCodes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=255)], ...], BeforeValidator(_one_or_more)
]
NodeRange = Annotated[
    tuple[int, int],
    BeforeValidator(_range),
    PlainSerializer(lambda nodes: f"{nodes[0]}-{nodes[1]}", return_type=str),
]


class PolicyError(FileProblems):
    """A policy with problems: all of them, each with its place."""

    hint_text = "`hpctl policy example` prints every key with its default"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class BackoffSection(_Section):
    """How long the second restart in a row waits, and each further one."""

    first_s: SecondsOrNone | None = None
    factor: Factor | None = None
    cap_s: SecondsOrNone | None = None


class TreatmentSection(_Section):
    """What one kind of trouble gets; a key that is left out keeps what it was."""

    ladder: (
        Annotated[
            tuple[Action, ...], BeforeValidator(_one_or_more), Field(min_length=1, max_length=20)
        ]
        | None
    ) = None
    backoff: bool | None = None
    exclude: Count | None = None
    save_first: bool | None = None
    hold_same: bool | None = None
    max: Count | None = None

    @field_validator("ladder")
    @classmethod
    def _climbs(cls, ladder: tuple[Action, ...] | None) -> tuple[Action, ...] | None:
        for gentle, harsh in zip(ladder or (), (ladder or ())[1:], strict=False):
            if _GENTLEST_FIRST.index(gentle) > _GENTLEST_FIRST.index(harsh):
                raise ValueError(f"goes from the gentlest on: {harsh} cannot follow {gentle}")
            if gentle in (Action.NONE, Action.HOLD):
                raise ValueError(f"nothing can follow {gentle}")
        return ladder


class PolicyFile(_Section):
    """One file, or one section of the daemon's configuration: only what is set counts."""

    restarts: Count | None = None
    window_s: Seconds | None = None
    without_progress: Count | None = None
    same_signature: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    proven_s: Seconds | None = None
    most_excluded: Count | None = None
    backoff: BackoffSection | None = None
    save_grace_s: SecondsOrNone | None = None
    nodes: NodeRange | None = None
    grow_gain: Factor | None = None
    spares: Count | None = None
    final_exit_codes: ExitCodes | None = None
    corruption_exit_codes: ExitCodes | None = None
    hang_floor_s: Seconds | None = None
    hang_factor: Factor | None = None
    hang_start_s: Seconds | None = None
    on: dict[Kind, Annotated[TreatmentSection, BeforeValidator(_treatment)]] | None = None
    log_rules: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] | None = None
    notify: Annotated[tuple[str, ...], BeforeValidator(_words)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _on_is_a_word(cls, data: Any) -> Any:
        """YAML 1.1 reads the bare key `on` as the boolean true."""
        if isinstance(data, Mapping) and True in data and "on" not in data:
            return {"on" if key is True else key: value for key, value in data.items()}
        return data

    @field_validator("log_rules")
    @classmethod
    def _known_rules(cls, rules: tuple[str, ...] | None) -> tuple[str, ...] | None:
        from hpctl.jobs.logs.rules import PRESETS

        for rule in rules or ():
            if rule not in PRESETS and not rule.startswith("/"):
                guess = yaml_errors.near(rule, list(PRESETS))
                raise ValueError(f"{rule!r} is no preset and no absolute path{guess}")
        return rules

    @field_validator("on")
    @classmethod
    def _final_is_final(
        cls, on: dict[Kind, TreatmentSection] | None
    ) -> dict[Kind, TreatmentSection] | None:
        final = (on or {}).get(Kind.FINAL)
        if final is not None and RESTARTS & set(final.ladder or ()):
            raise ValueError("final asks not to be run again: change final_exit_codes instead")
        return on

    def compact(self) -> dict[str, object]:
        """Only what is set, as JSON: what a job's Comment holds. `model_validate` reads it back."""
        return self.model_dump(mode="json", exclude_none=True, exclude_unset=True)


def read(path: str | Path) -> PolicyFile:
    """Read and validate a file. Raises PolicyError with every problem it has."""
    return parse(yaml_errors.read(path, PolicyError), str(path))


def parse(text: str, place: str = "<text>") -> PolicyFile:
    """Validate YAML text. Raises PolicyError with every problem it has."""
    return yaml_errors.validated(PolicyFile, text, place, PolicyError)


def merged(files: Iterable[PolicyFile]) -> RunPolicy:
    """The policy that layers of files make together: of each key, the last file that sets it.

    Backoff and treatments are merged key by key as well, so that a file which changes one key of
    a kind's treatment keeps the others.
    """
    policy = RunPolicy()
    treatments = dict(policy.treatments)
    for file in files:
        numbers = {
            name: value
            for name in sorted(file.model_fields_set - {"backoff", "on"})
            if (value := getattr(file, name)) is not None
        }
        backoff = _over(policy.backoff, file.backoff)
        for kind, section in (file.on or {}).items():
            before = treatments.get(kind) or policy.treatment(kind)
            treatments[kind] = _over(before, section)
        policy = replace(policy, backoff=backoff, **numbers)
    return replace(policy, treatments=treatments)


def _over(base: _T, section: _Section | None) -> _T:
    changes = {} if section is None else section.model_dump(exclude_none=True)
    return replace(base, **changes)


def example() -> str:
    """A file with every key at its default, and each kind's treatment with its reason."""
    default = RunPolicy()
    out = ["# A recovery policy: every key with its default. Leave out what you do not change."]
    out.append("# Durations are seconds, or 30s, 10m, 2h, 1d.")
    for name in PolicyFile.model_fields:
        value = getattr(default, name, None)
        if name == "on":
            out.append("on:")
            for kind, treatment in DEFAULTS.items():
                body = _body(treatment)
                out += [f"  # {treatment.why}", f"  {kind}: {body}"]
        elif name == "nodes":
            out += [
                "# The elastic range, as 6-8; without it the job keeps its size.",
                "# nodes: 6-8",
            ]
        else:
            plain = asdict(value) if isinstance(value, Backoff) else value
            out.append(_flow({name: plain})[1:-1])
    return "\n".join(out) + "\n"


def _body(treatment: Treatment) -> str:
    keys = {name: getattr(treatment, name) for name in TreatmentSection.model_fields}
    return _flow({name: value for name, value in keys.items() if value is not False and value != 0})


def _flow(value: Any) -> str:
    """JSON, which is YAML, without the quotes that YAML can do without."""
    text = json.dumps(value)
    return re.sub(r'"([A-Za-z_]\w*)"', r"\1", text)
