"""A cluster file from disk: read, checked against itself, every problem at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpctl.clusters.spec.cluster import ClusterSpec
from hpctl.clusters.spec.rules import broken
from hpctl.yaml import errors as yaml_errors
from hpctl.yaml.errors import FileProblems, Place

DEFAULT_PATH = "cluster.yaml"

_DEEPEST = 8
"""Sections inside each other, so many rounds take out whatever is wrong."""


class SpecError(FileProblems):
    """A cluster file with problems: all of them, each with its place.

    `rest` is the file without what is wrong in it, where so much can be read; `unread` are the
    places that it lacks, or where it has something invented.
    """

    rest: ClusterSpec | None = None
    unread: frozenset[Place] = frozenset()
    hint_text = "docs/cluster.md names every key; `hpctl cluster init` writes a file to begin with"


def read(path: str | Path) -> ClusterSpec:
    """The spec of a file. Raises SpecError with all that is wrong with it."""
    return parse(yaml_errors.read(path, SpecError), str(path))


def parse(text: str, path: str = DEFAULT_PATH) -> ClusterSpec:
    """The spec of a YAML text; `path` names it in errors. Raises SpecError."""
    data = yaml_errors.mapping(text, path, SpecError)
    found: list[tuple[Place, str]] = []
    try:
        spec = ClusterSpec.model_validate(data)
        rules = list(broken(spec))
    except ValidationError as error:
        found = yaml_errors.told(error, ClusterSpec)
        rest, unread = _what_can_be_read(data, error)
        rules = [one for one in broken(rest) if not one.absent] if rest else []
    else:
        rest, unread = spec, set()
    if found or rules:
        unread |= {rule.place for rule in rules}
        found += [(rule.place, rule.text) for rule in rules]
        wrong = SpecError(path, yaml_errors.placed(found, text))
        wrong.rest, wrong.unread = rest, frozenset(unread)
        raise wrong
    return spec


def checked(spec: ClusterSpec, path: str) -> ClusterSpec:
    """A spec that was not read from a file. Raises SpecError where it breaks a rule."""
    problems = [f"{'.'.join(map(str, one.place))}: {one.text}" for one in broken(spec)]
    if problems:
        raise SpecError(path, problems)
    return spec


def _what_can_be_read(
    data: Mapping[Any, Any], error: ValidationError
) -> tuple[ClusterSpec | None, set[Place]]:
    """The file without what is wrong in it, so that the rules can be asked about the rest; and what
    it lacks. What is needed and cannot be read gets a stand-in that breaks no rule by itself.
    """
    unread: set[Place] = set()
    rest: dict[Any, Any] = copy.deepcopy(dict(data))
    rest.pop("hpctl", None)
    for _ in range(_DEEPEST):
        for one in yaml_errors.errors_of(error):
            place = [part for part in one["loc"] if part != "[key]"]
            unread.add(tuple(place))
            _mend(rest, place[:-1] if one["type"] == "missing" else place)
        if not isinstance(rest.get("instance_groups"), list):
            return None, unread
        rest.setdefault("name", "x")
        for index, group in enumerate(rest["instance_groups"]):
            _stand_in(group, index)
        try:
            return ClusterSpec.model_validate(rest), unread
        except ValidationError as again:
            error = again
    return None, unread


def _stand_in(group: dict[str, Any], index: int) -> None:
    group.setdefault("name", f"x-{index}")
    group.setdefault("execution_role", "arn:aws:iam::111122223333:role/x")
    if "count" not in group:
        group["count"] = 1
        group.pop("min_count", None)
        group.pop("max_count", None)


def _mend(rest: dict[Any, Any], place: list[Any]) -> None:
    """Take a place out: the deepest key that names it, but a group stays where it is."""
    data: Any = rest
    keys: list[tuple[dict[Any, Any], Any]] = []
    for depth, part in enumerate(place):
        if isinstance(data, dict) and part in data:
            keys.append((data, part))
        elif depth == 1 and isinstance(data, list) and place[0] == "instance_groups":
            if not isinstance(data[part], dict):
                data[part] = {}
            keys = []
        elif not isinstance(data, list):
            break
        data = data[part]
    if keys:
        holder, key = keys[-1]
        holder.pop(key)
