"""Log rules as people write them: YAML, validated with every error at once.

The keys are those of `logMonitoringConfiguration`, the HyperPod training operator's own block,
which is read unchanged; hpctl adds its own keys. `presets/` has rules for the logs of known
frameworks: one YAML file each, to be used by name or copied.
"""

import difflib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from hpctl.jobs.logs.patterns import LogLinePattern
from hpctl.toolkit import yaml_files
from hpctl.toolkit.errors import HpctlError, InvalidFileError
from hpctl.toolkit.yaml_files import Place, Reads
from hpctl.vocabulary.log_presets import PRESETS

Kind = Literal["threshold", "nan", "spike", "slow", "upload", "seen"]


Operator = Literal["gt", "gteq", "lt", "lteq", "eq"]


BLOCK = "logMonitoringConfiguration"


DEFAULT_POINTS: dict[str, int] = {"spike": 3, "slow": 10}


def _validate_regex(text: Any) -> Any:
    if isinstance(text, str):
        LogLinePattern(text)
    return text


_Seconds = Annotated[float, Meta(gt=0)]


class LogRule(Struct, frozen=True):
    """One rule. Seconds and thresholds may have fractions; unset keys judge nothing."""

    READS: ClassVar[Reads] = dict.fromkeys(
        ("logPattern", "stopPattern", "successPattern"), _validate_regex
    )

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    logPattern: str
    expectedStartCutOffInSeconds: _Seconds | None = None
    expectedRecurringFrequencyInSeconds: _Seconds | None = None
    metricThreshold: float | None = None
    operator: Operator | None = None
    metricEvaluationDataPoints: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    stopPattern: str | None = None

    kind: Kind | None = None
    successPattern: str | None = None
    worse: Literal["higher", "lower"] | None = None
    window: Annotated[int, Meta(ge=10, le=10_000)] = 100
    minimum: Annotated[int, Meta(ge=5)] = 20
    sigmas: Annotated[float, Meta(gt=0)] = 6.0
    fraction: Annotated[float, Meta(ge=0, lt=10)] = 0.2

    @property
    def judges(self) -> Kind | None:
        """Return what is judged of a match apart from its time."""
        return self.kind or ("threshold" if self.metricThreshold is not None else None)

    @property
    def points(self) -> int:
        """Return how many consecutive bad data points make a verdict."""
        default = DEFAULT_POINTS.get(self.judges or "", 1)
        return self.metricEvaluationDataPoints or default

    @property
    def is_higher_worse(self) -> bool:
        """Return which side of a baseline is bad. Throughput falls, a loss rises."""
        return self.worse == "higher" if self.worse else self.judges == "spike"

    def __post_init__(self) -> None:
        problems = [text for bad, text in self._list_contradicting_rule_keys() if bad]
        if problems:
            raise ValueError("; ".join(problems))

    def _list_contradicting_rule_keys(self) -> list[tuple[bool, str]]:
        threshold, kind = self.metricThreshold is not None, self.judges
        timed = self.expectedStartCutOffInSeconds or self.expectedRecurringFrequencyInSeconds
        captures = LogLinePattern(self.logPattern).captures
        baseline = kind in ("spike", "slow")
        defaults = {"window": 100, "minimum": 20, "sigmas": 6.0, "fraction": 0.2, "worse": None}
        tuned = [name for name, default in defaults.items() if getattr(self, name) != default]
        return [
            (threshold and self.operator is None, "metricThreshold needs an operator"),
            (self.operator is not None and not threshold, "operator needs a metricThreshold"),
            (
                threshold and kind != "threshold",
                f"metricThreshold and kind {kind} exclude one another",
            ),
            (kind == "threshold" and not threshold, "kind threshold needs a metricThreshold"),
            (
                kind in ("threshold", "spike", "slow") and not captures,
                f"logPattern captures no number, and {kind} judges one: put it in (...)",
            ),
            (
                kind is None and not timed,
                "judges nothing: give it expectedStartCutOffInSeconds,"
                " expectedRecurringFrequencyInSeconds, metricThreshold or kind",
            ),
            (
                kind is None and self.metricEvaluationDataPoints not in (None, 1),
                "metricEvaluationDataPoints counts nothing without metricThreshold or kind",
            ),
            (
                self.successPattern is not None and kind not in ("upload", "seen"),
                "successPattern is for the kinds upload and seen",
            ),
            (bool(tuned) and not baseline, f"{', '.join(sorted(tuned))}: for spike and slow only"),
            (self.minimum > self.window, f"minimum {self.minimum} is over window {self.window}"),
        ]


class LogRuleSet(Struct, frozen=True):
    """Rules with names that differ, in the order of their file."""

    rules: tuple[LogRule, ...]


class InvalidLogRulesError(InvalidFileError):
    """A file of rules with everything that is wrong with it."""

    hint_text = "see docs/logs.md"


def load_log_rules(path: Path) -> LogRuleSet:
    """Read a file of rules. Raises InvalidLogRulesError, also where it cannot be read."""
    return parse_log_rules(yaml_files.read_size_limited_text(path, InvalidLogRulesError), str(path))


def parse_log_rules(text: str, path: str = "<text>") -> LogRuleSet:
    """Validate YAML text. Raises InvalidLogRulesError with every problem it has."""
    data = yaml_files.load_yaml(text, path, InvalidLogRulesError)
    try:
        place, entries = _find_log_rule_entries(data)
    except ValueError as error:
        raise InvalidLogRulesError(path, [str(error)]) from error
    problems: list[tuple[Place, str]] = []
    rules: list[LogRule] = []
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        here = (*place, number)
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str):
            if name in seen:
                problems.append(((*here, "name"), f"another rule has the name {name!r} already"))
            seen.add(name)
        rule, wrong = yaml_files.build_struct_from_mapping(LogRule, entry)
        rules += [rule] if rule is not None else []
        problems += [((*here, *key), why) for key, why in wrong]
    if problems:
        raise InvalidLogRulesError(path, yaml_files.format_yaml_problems(problems, text))
    return LogRuleSet(tuple(rules))


def _find_log_rule_entries(data: Any) -> tuple[Place, list[Any]]:
    """Return the list of rules and its place: bare, under `rules`, or under the operator's key,
    however deep. Raises ValueError where there is none."""
    place: Place = ()
    for key in ("spec", "runPolicy"):
        if isinstance(data, Mapping) and key in data:
            data, place = data[key], (*place, key)
    if isinstance(data, Mapping):
        keys = [key for key in ("rules", BLOCK) if key in data]
        # A whole HyperPodPyTorchJob has other keys than the block: they are not checked here.
        others = [str(key) for key in data if key not in keys]
        if len(keys) != 1 or (keys == ["rules"] and others):
            near: list[str] = []
            for key in others:
                near += difflib.get_close_matches(key, ["rules", BLOCK])
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"needs one list of rules, under `rules` or `{BLOCK}`{guess}")
        data, place = data[keys[0]], (*place, keys[0])
    if not isinstance(data, list) or not data:
        raise ValueError("holds no list of rules")
    return place, data


class NoSuchLogRulePresetError(HpctlError):
    """The name is no preset's."""


def load_log_rule_preset(name: str) -> LogRuleSet:
    """Return the rules of one preset. Raises NoSuchLogRulePresetError with the nearest names."""
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=2)
        known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PRESETS)}"
        raise NoSuchLogRulePresetError(
            f"hpctl has no preset of log rules with the name {name!r}", known
        )
    return parse_log_rules(read_log_rule_preset_text(name), f"preset {name}")


def read_log_rule_preset_text(name: str) -> str:
    """Return a preset's YAML as it is in its file."""
    return files(__package__).joinpath(f"presets/{name}.yaml").read_text(encoding="utf-8")
