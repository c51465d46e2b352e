"""Files that people write in YAML: read into structs, and all that is wrong with one, by its place.

Every error is reported at once, each in one line with a near miss. msgspec's errors are said in
YAML's words. msgspec stops at the first error, so each key of a struct, and each list entry, is
converted separately. A field with the title "seconds" takes a time with its unit too (`90s`, `10m`,
`2h`, `1d`). A type may be annotated with a `Check`. A struct's `normal()` and the functions in its
`READS`, by field, bring what people write into the struct's shape; a ValueError of these, or of its
`__post_init__`, is the problem's text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin, runtime_checkable

import msgspec
import yaml
from msgspec import Struct

from hpctl.toolkit.bounds import parse_duration
from hpctl.toolkit.errors import InvalidFileError

Place = tuple[str | int, ...]
"""Keys and indices from the top of a file to what is meant."""

LARGEST = 1 << 20
"""Bytes that are read of such a file; a larger one was not written by hand."""


def read_size_limited_text(path: str | Path, error: type[InvalidFileError]) -> str:
    """Return a file's text. Raises `error` where there is none to read."""
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


def load_yaml_mapping(text: str, path: str, error: type[InvalidFileError]) -> Mapping[Any, Any]:
    """Return the keys of a YAML text, none for an empty one. Raises `error`."""
    data = load_yaml(text, path, error)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise error(path, [f"holds a {type(data).__name__}, not a mapping of keys"])
    return data


def load_yaml(text: str, path: str, error: type[InvalidFileError]) -> Any:
    """Return what a YAML text holds. Raises `error` where it is none, or says a key twice."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        twice = list(_find_duplicate_yaml_keys(root))
        data = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as failed:
        mark = getattr(failed, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = getattr(failed, "problem", None) or str(failed).splitlines()[0]
        raise error(path, [f"{place}not YAML: {reason}"]) from failed
    except (ValueError, LookupError, AttributeError, RecursionError) as failed:
        # A date that is none, a tag whose value is none of its type, or brackets without end.
        raise error(path, [f"not YAML: {failed}"]) from failed
    if twice:
        raise error(path, twice)
    return data


def _find_duplicate_yaml_keys(root: Any) -> Iterator[str]:
    """Of a key that a mapping has twice YAML silently keeps the last, which is never meant."""
    left, visited = [root], set[int]()
    while left:
        node = left.pop()
        # An alias is the very node that it names: without this, ten lines can take hours.
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
                yield f"{key.value} (line {line}): is on line {lines[key.value]} already"
        left += [value for _, value in reversed(node.value)]


def format_yaml_problems(found: Iterable[tuple[Place, str]], text: str) -> list[str]:
    """Return each message with its place's name and line in a YAML text, in the text's order."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = []
    for loc, message in found:
        args = [str(part) if str(part).isprintable() else repr(part) for part in loc]
        where = ".".join(args) or "(top level)"
        line = find_yaml_key_line(root, loc)
        place = f"{where} (line {line})" if line else where
        lines.append((line or 0, f"{place}: {message}"))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def suggest_similar_word(word: str, args: list[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` where one of the words is close."""
    from difflib import get_close_matches  # 4 ms, for a file with a mistake alone

    found = get_close_matches(word, args, 1, cutoff=cutoff)
    return f"; did you mean {found[0]!r}?" if found else ""


def find_yaml_key_line(node: Any, loc: tuple[Any, ...]) -> int | None:
    """Return the line of the deepest key of a place that is in the file."""
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


@runtime_checkable
class ValueConstraint(Protocol):
    """An annotation of a type that people write: what its values must be beside their kind."""

    def check(self, value: Any) -> Any:
        """Return the value. Raises ValueError with what is wrong."""


REQUIRED = "is required"
"""The problem of a key that is not there, at its place."""

_Struct = TypeVar("_Struct", bound=Struct)
Reads = Mapping[str, Callable[[Any], Any]]
_NAMES = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "a mapping of keys", "null": "nothing",
    "datetime": "a date and time",
}  # fmt: skip
"""msgspec's names of types, for people who write YAML."""
_THAN = {
    ">": "greater than", ">=": "greater than or equal to",
    "<": "less than", "<=": "less than or equal to",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `(\w+)(?: \| null)?`(?:( of length)? ([<>]=?) ([-+.\de]+))?")


def parse_yaml_struct(
    kind: type[_Struct], text: str, path: str, error: type[InvalidFileError]
) -> _Struct:
    """Return a struct of a YAML text. Raises `error` with every problem that it has."""
    found, problems = build_struct_from_mapping(kind, load_yaml_mapping(text, path, error))
    if found is None:
        raise error(path, format_yaml_problems(problems, text))
    return found


def build_struct_from_mapping(
    kind: type[_Struct], data: Any
) -> tuple[_Struct | None, list[tuple[Place, str]]]:
    """Return a struct of a mapping, or None and what is wrong with it."""
    problems: list[tuple[Place, str]] = []
    found = _convert_mapping_to_struct(kind, data, (), problems)
    return (None if problems else found), problems


def _convert_mapping_to_struct(
    kind: type[_Struct], data: Any, place: Place, problems: list[Any]
) -> _Struct | None:
    before, values = len(problems), dict[str, Any]()
    reads, normal = getattr(kind, "READS", {}), getattr(kind, "normal", None)
    data = normal(data) if normal else data
    if not isinstance(data, Mapping):
        problems.append((place, f"should be a mapping of keys{_format_given_value(data)}"))
        return None
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        here = (*place, key)
        if key not in fields:
            problems.append((here, f"no such key{suggest_similar_word(str(key), list(fields))}"))
            continue
        try:
            value = reads[key](value) if key in reads else value
        except ValueError as error:
            problems.append((here, f"{error}{_format_given_value(value)}"))
            continue
        values[key] = _convert_yaml_value(fields[key].type, value, here, problems)
    missing = [name for name, field in fields.items() if field.required and name not in data]
    problems += [((*place, name), REQUIRED) for name in missing]
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        problems.append((place, str(error)))
        return None


def _convert_yaml_value(  # noqa: C901 -- one branch for each kind of type
    kind: Any, data: Any, place: Place, problems: list[Any]
) -> Any:
    if get_origin(kind) in (Union, UnionType):
        if data is None:
            return None
        kind = next(one for one in get_args(kind) if one is not type(None))
    base, *meta = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if _is_struct_type((base,)):
        return _convert_mapping_to_struct(base, data, place, problems)
    inner = get_args(base)
    try:
        if get_origin(base) in (dict, Mapping) and isinstance(data, Mapping):
            msgspec.convert(data, _add_type_bounds(dict[Any, Any], meta))
            key, value = inner
            return {
                _convert_yaml_value(key, k, (*place, k), problems): _convert_yaml_value(
                    value, v, (*place, k), problems
                )
                for k, v in data.items()
            }
        if isinstance(data, float) and not math.isfinite(data):
            raise msgspec.ValidationError(f"should be a finite number (given {data})")
        if isinstance(data, str) and any(getattr(one, "title", "") == "seconds" for one in meta):
            data = _parse_duration_seconds(data)
        if isinstance(data, list) and _is_list_type(base):
            msgspec.convert(data, _add_type_bounds(list[Any], meta))
            entries = [
                _convert_yaml_value(inner[0], one, (*place, n), problems)
                for n, one in enumerate(data)
            ]
            return {set: set, frozenset: frozenset}.get(get_origin(base), tuple)(entries)
        found = msgspec.convert(data, kind, dec_hook=_convert_text_to_path)
        for one in meta:
            if isinstance(one, ValueConstraint):
                found = _run_value_check(one, found)
        return found
    except msgspec.ValidationError as error:
        message, _, deeper = str(error).partition(" - at `$")
        indices = tuple(int(i) for i in re.findall(r"\[(\d+)\]", deeper))
        for index in indices:
            data = data[index]
        problems.append(((*place, *indices), _translate_msgspec_message(message, kind, data)))
    return None


def _add_type_bounds(kind: Any, meta: list[Any]) -> Any:
    """Return a type with the bounds of another."""
    parts: Any = (kind, *meta)
    return Annotated[parts] if meta else kind


def _is_list_type(base: Any) -> bool:
    """Return whether a type has any number of entries, all of one type."""
    inner = get_args(base)
    return get_origin(base) in (list, set, frozenset) or inner[1:] == (...,)


def _run_value_check(check: ValueConstraint, value: Any) -> Any:
    try:
        return check.check(value)
    except ValueError as error:
        raise msgspec.ValidationError(f"{error}{_format_given_value(value)}") from error


def _is_struct_type(inner: tuple[Any, ...]) -> bool:
    return bool(inner) and _is_plain_class(inner[0]) and issubclass(inner[0], Struct)


def _is_plain_class(kind: Any) -> bool:
    """Python 3.10 calls `tuple[int, ...]` a type as well."""
    return isinstance(kind, type) and get_origin(kind) is None


def _parse_duration_seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None:
        wrong = f"is no time: write seconds, or 30s, 10m, 2h, 1d{_format_given_value(text)}"
        raise msgspec.ValidationError(wrong)
    return seconds


def _convert_text_to_path(kind: type, value: Any) -> Any:
    if kind is not Path or not isinstance(value, str):
        raise ValueError("should be text: put it in quotes")
    return Path(value)


def _translate_msgspec_message(message: str, kind: Any, given: Any) -> str:
    """Return what msgspec says, in the words of the file."""
    if message.startswith("Invalid enum value"):
        known = [str(one) for one in _list_enum_or_literal_values(kind)]
        message = f"should be one of {', '.join(known)}{_format_given_value(given)}"
        return message + suggest_similar_word(str(given), known, cutoff=0.5)
    found = _EXPECTED.match(message)
    if found is None:
        return message
    what, size, than, number = found.groups()
    if size:
        unit = "characters" if what == "str" else "of them"
        return f"needs at least {number} {unit}" if than == ">=" else f"has over {number} {unit}"
    if than:
        return f"should be {_THAN[than]} {float(number):g}{_format_given_value(given)}"
    quotes = ": put it in quotes" if what == "str" and " matching" not in message else ""
    rest, _, _ = message[found.end() :].partition(", got ")
    return f"should be {_NAMES.get(what, what)}{rest}{quotes}{_format_given_value(given)}"


def _list_enum_or_literal_values(kind: Any) -> list[Any]:
    """Return the values of the enum or the Literal in a type."""
    if _is_plain_class(kind):
        return list(getattr(kind, "__members__", {}).values())
    choices: list[Any] = []
    for part in get_args(kind):
        choices += [part] if isinstance(part, str) else _list_enum_or_literal_values(part)
    return choices


def _format_given_value(value: object) -> str:
    return f" (given {value!r:.80})" if isinstance(value, str | int | float | bool) else ""
