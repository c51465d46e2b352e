"""What is wrong with a YAML file that a person wrote: everything at once, with place and near miss.

The pydantic models stand where the files are read; here their errors become one line each.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml

from hpctl.errors import HpctlError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_Model = TypeVar("_Model", bound="BaseModel")

Place = tuple[str | int, ...]
"""Keys and indices from the top of a file to what is meant."""

_IN_YAML = {
    "model_type": "should be a mapping of keys",
    "dict_type": "should be a mapping of keys",
    "mapping_type": "should be a mapping of keys",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "set_type": "should be a list",
    "frozen_set_type": "should be a list",
    "string_type": "should be text: put it in quotes",
    "too_short": "needs at least {min_length} of them",
    "too_long": "has more than {max_length} of them",
}
"""What pydantic says of Python's types, said of YAML's."""

LARGEST = 1 << 20
"""Bytes that are read of such a file; what is larger, nobody wrote by hand."""


class FileProblems(HpctlError):
    """A file with problems: all of them, each with its place."""

    hint_text = ""

    def __init__(self, path: str, problems: list[str]) -> None:
        text = "\n  ".join([f"{path}: {len(problems)} problem(s)", *problems])
        super().__init__(text, self.hint_text)
        self.problems = tuple(problems)


def read(path: str | Path, error: type[FileProblems]) -> str:
    """A file's text. Raises `error` where there is none to read."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise error(str(path), [f"is over {LARGEST} bytes"])
        return raw.decode()
    except OSError as failed:
        raise error(str(path), [f"cannot be read: {failed.strerror}"]) from failed
    except UnicodeDecodeError as failed:
        raise error(str(path), [f"is not UTF-8 text: byte {failed.start}"]) from failed


def validated(model: type[_Model], text: str, path: str, error: type[FileProblems]) -> _Model:
    """A model of a YAML text. Raises `error` with every problem that it has."""
    from pydantic import ValidationError  # 80 ms, which most commands have no use for

    data = mapping(text, path, error)
    try:
        return model.model_validate(data)
    except ValidationError as failed:
        raise error(path, problems(failed, text, model)) from failed


def mapping(text: str, path: str, error: type[FileProblems]) -> Mapping[Any, Any]:
    """The keys of a YAML text, none for an empty one. Raises `error`."""
    data = load(text, path, error)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise error(path, [f"holds a {type(data).__name__}, not a mapping of keys"])
    return data


def load(text: str, path: str, error: type[FileProblems]) -> Any:
    """What a YAML text holds. Raises `error` where it is none, or says a key twice."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        twice = list(_said_twice(root))
        data = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as failed:
        mark = getattr(failed, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = getattr(failed, "problem", None) or str(failed).splitlines()[0]
        raise error(path, [f"{place}not YAML: {reason}"]) from failed
    except (ValueError, RecursionError) as failed:
        # A date that is none, or brackets without end.
        raise error(path, [f"not YAML: {failed}"]) from failed
    if twice:
        raise error(path, twice)
    return data


def _said_twice(root: Any) -> Iterator[str]:
    """Of a key that a mapping has twice YAML silently keeps the last: nobody means that."""
    left, visited = [root], set[int]()
    while left:
        node = left.pop()
        # An alias is the very node that it names: without this, ten lines can take for ever.
        if id(node) in visited or not isinstance(node, yaml.CollectionNode):
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += reversed(node.value)
            continue
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                yield f"{key.value} (line {line}): stands on line {lines[key.value]} already"
        left += [value for _, value in reversed(node.value)]


def problems(error: ValidationError, text: str, model: type[BaseModel]) -> list[str]:
    """One line for each error of a model on the YAML text that it was read from, in its order."""
    return placed(texts_of(error, model), text)


def texts_of(error: ValidationError, model: type[BaseModel]) -> list[tuple[Place, str]]:
    """The place of each error of a model, and what it says."""
    found = []
    for one in errors_of(error):
        loc = tuple(part for part in one["loc"] if part != "[key]")
        found.append((loc, text_of(one, keys(model, loc[:-1]))))
    return found


def errors_of(error: ValidationError) -> list[Any]:
    """pydantic's errors, but of a list with bad entries not that it is too short.

    It counts the entries without fault, and tells of the others anyway.
    """
    return [
        one
        for one in error.errors()
        if one["type"] != "too_short" or len(one["input"]) < one["ctx"]["min_length"]
    ]


def placed(found: Iterable[tuple[Place, str]], text: str) -> list[str]:
    """Each message with its place's name and line in a YAML text, in the text's order."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = []
    for loc, message in found:
        args = [str(part) if str(part).isprintable() else repr(part) for part in loc]
        where = ".".join(args) or "(top level)"
        line = line_of(root, loc)
        place = f"{where} (line {line})" if line else where
        lines.append((line or 0, f"{place}: {message}"))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def text_of(error: Any, known: list[str]) -> str:
    """What one of pydantic's errors says; `known` are the keys that there are beside its key."""
    if error["type"] == "extra_forbidden":
        return f"no such key{near(str(error['loc'][-1]), known)}"
    message = _IN_YAML.get(error["type"], str(error["msg"]).removeprefix("Value error, "))
    message = message.format(**error.get("ctx", {})) if error["type"] in _IN_YAML else message
    given = error.get("input")
    guess = ""
    if error["type"] in ("enum", "literal_error"):
        guess = near(str(given), re.findall(r"'([^']+)'", message), cutoff=0.5)
    shown = f" (given {given!r:.80})" if isinstance(given, str | int | float | bool) else ""
    return f"{message[:1].lower()}{message[1:]}{shown}{guess}"


def near(word: str, args: list[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` where one of the words is close."""
    found = difflib.get_close_matches(word, args, 1, cutoff=cutoff)
    return f"; did you mean {found[0]!r}?" if found else ""


def keys(model: Any, loc: tuple[Any, ...]) -> list[str]:
    """The keys that a model has at a place; none where no model is."""
    for part in loc:
        field = model.model_fields.get(str(part)) if hasattr(model, "model_fields") else None
        annotation = field.annotation if field else None
        inner = [a for a in _inside(annotation) if hasattr(a, "model_fields")]
        model = inner[0] if inner else (annotation or model)
    return list(getattr(model, "model_fields", {}))


def _inside(annotation: Any) -> list[Any]:
    """The types that a type is made of, at any depth."""
    parts = get_args(annotation)
    return [annotation, *(deep for part in parts for deep in _inside(part))]


def line_of(node: Any, loc: tuple[Any, ...]) -> int | None:
    """The line of the deepest key of a place that is in the file."""
    line = None
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = [(key, value) for key, value in pairs if key.value == str(part)]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return line
