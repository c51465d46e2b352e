"""Read a struct from what a YAML file holds: every error at once, each with its place.

msgspec stops at the first error, so each key is converted by itself. A field with the title
"seconds" takes a time with its unit too (`90s`, `10m`, `2h`, `1d`). A struct's `normal()` and the
functions in its `READS`, by field, bring what people write into the struct's shape; a ValueError
of these, or of its `__post_init__`, is the problem's text.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from hpctl.core.bounds import duration_s
from hpctl.yaml import errors
from hpctl.yaml.errors import FileProblems, Place

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


def read(kind: type[_Struct], text: str, path: str, error: type[FileProblems]) -> _Struct:
    """A struct of a YAML text. Raises `error` with every problem that it has."""
    found, problems = build(kind, errors.mapping(text, path, error))
    if found is None:
        raise error(path, errors.placed(problems, text))
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
            problems.append((here, f"no such key{errors.near(str(key), list(fields))}"))
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
        problems.append(((*place, *indices), _words(message, kind, data)))
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


def _words(message: str, kind: Any, given: Any) -> str:
    """What msgspec says, in the words of the file."""
    if message.startswith("Invalid enum value"):
        known = [str(one) for one in _choices(kind)]
        message = f"should be one of {', '.join(known)}{_given(given)}"
        return message + errors.near(str(given), known, cutoff=0.5)
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
