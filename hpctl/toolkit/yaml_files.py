"""Files that people write in YAML: read into structs, and all that is wrong with one, by its place.

Every error is told at once, each in one line with a near miss. pydantic's and msgspec's errors are
said in YAML's words. msgspec stops at the first error, so each key of a struct is converted by
itself. A field with the title "seconds" takes a time with its unit too (`90s`, `10m`, `2h`, `1d`).
A struct's `normal()` and the functions in its `READS`, by field, bring what people write into the
struct's shape; a ValueError of these, or of its `__post_init__`, is the problem's text.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

from hpctl.toolkit.bounds import duration_s
from hpctl.toolkit.errors import HpctlError

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
        twice = list(_duplicates(root))
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


def _duplicates(root: Any) -> Iterator[str]:
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


_Struct = TypeVar("_Struct", bound=Struct)
Reads = Mapping[str, Callable[[Any], Any]]
_NAMES = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "a mapping of keys", "null": "nothing",
}  # fmt: skip
"""msgspec's names of types, for people who write YAML."""
_THAN = {
    ">": "greater than", ">=": "greater than or equal to",
    "<": "less than", "<=": "less than or equal to",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `(\w+)(?: \| null)?`(?:( of length)? ([<>]=?) ([-+.\de]+))?")


def struct_of(kind: type[_Struct], text: str, path: str, error: type[FileProblems]) -> _Struct:
    """A struct of a YAML text. Raises `error` with every problem that it has."""
    found, problems = build(kind, mapping(text, path, error))
    if found is None:
        raise error(path, placed(problems, text))
    return found


def build(kind: type[_Struct], data: Any) -> tuple[_Struct | None, list[tuple[Place, str]]]:
    """A struct of a mapping, or None and what is wrong with it."""
    problems: list[tuple[Place, str]] = []
    found = _struct(kind, data, (), problems)
    return (None if problems else found), problems


def _struct(kind: type[_Struct], data: Any, place: Place, problems: list[Any]) -> _Struct | None:
    before, values = len(problems), dict[str, Any]()
    reads, normal = getattr(kind, "READS", {}), getattr(kind, "normal", None)
    data = normal(data) if normal else data
    if not isinstance(data, Mapping):
        problems.append((place, f"should be a mapping of keys{_given(data)}"))
        return None
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        here = (*place, key)
        if key not in fields:
            problems.append((here, f"no such key{near(str(key), list(fields))}"))
            continue
        try:
            value = reads[key](value) if key in reads else value
        except ValueError as error:
            problems.append((here, f"{error}{_given(value)}"))
            continue
        values[key] = _value(fields[key].type, value, here, problems)
    missing = [name for name, field in fields.items() if field.required and name not in data]
    problems += [((*place, name), "is required") for name in missing]
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append((place, str(error)))
        return None


def _value(kind: Any, data: Any, place: Place, problems: list[Any]) -> Any:
    if get_origin(kind) in (Union, UnionType):
        if data is None:
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    base, *meta = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if _is_struct((base,)):
        return _struct(base, data, place, problems)
    inner = get_args(base)
    if get_origin(base) in (dict, Mapping) and isinstance(data, Mapping):
        key, value = inner
        return {
            _value(key, k, (*place, k), problems): _value(value, v, (*place, k), problems)
            for k, v in data.items()
        }
    try:
        if isinstance(data, float) and not math.isfinite(data):
            raise msgspec.ValidationError(f"should be a finite number (given {data})")
        if isinstance(data, str) and any(one.title == "seconds" for one in meta):
            data = _seconds(data)
        if isinstance(data, list) and _is_struct(inner):
            listed: Any = (list[Any], *meta)
            msgspec.convert(data, Annotated[listed])
            return tuple(_value(inner[0], one, (*place, n), problems) for n, one in enumerate(data))
        return msgspec.convert(data, kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        message, _, deeper = str(error).partition(" - at `$")
        indices = tuple(int(i) for i in re.findall(r"\[(\d+)\]", deeper))
        for index in indices:
            data = data[index]
        problems.append(((*place, *indices), _message(message, kind, data)))
    return None


def _is_struct(inner: tuple[Any, ...]) -> bool:
    return bool(inner) and _is_class(inner[0]) and issubclass(inner[0], Struct)


def _is_class(kind: Any) -> bool:
    """Python 3.10 calls `tuple[int, ...]` a type as well."""
    return isinstance(kind, type) and get_origin(kind) is None


def _seconds(text: str) -> float:
    seconds = duration_s(text)
    if seconds is None:
        wrong = f"is no time: write seconds, or 30s, 10m, 2h, 1d{_given(text)}"
        raise msgspec.ValidationError(wrong)
    return seconds


def _path(kind: type, value: Any) -> Any:
    if kind is not Path or not isinstance(value, str):
        raise ValueError("should be text: put it in quotes")
    return Path(value)


def _message(message: str, kind: Any, given: Any) -> str:
    """What msgspec says, in the words of the file."""
    if message.startswith("Invalid enum value"):
        known = [str(one) for one in _choices(kind)]
        message = f"should be one of {', '.join(known)}{_given(given)}"
        return message + near(str(given), known, cutoff=0.5)
    found = _EXPECTED.match(message)
    if found is None:
        return message
    what, size, than, number = found.groups()
    if size:
        unit = "characters" if what == "str" else "of them"
        return f"needs at least {number} {unit}" if than == ">=" else f"has over {number} {unit}"
    if than:
        return f"should be {_THAN[than]} {float(number):g}{_given(given)}"
    quotes = ": put it in quotes" if what == "str" and " matching" not in message else ""
    rest, _, _ = message[found.end() :].partition(", got ")
    return f"should be {_NAMES.get(what, what)}{rest}{quotes}{_given(given)}"


def _choices(kind: Any) -> list[Any]:
    """The values of the enum or the Literal in a type."""
    if _is_class(kind):
        return list(getattr(kind, "__members__", {}).values())
    parts = get_args(kind)
    return [c for p in parts for c in ([p] if isinstance(p, str) else _choices(p))]


def _given(value: object) -> str:
    return f" (given {value!r:.80})" if isinstance(value, str | int | float | bool) else ""
