"""docs/cli-json.md: the JSON of every command, from the views that the commands print."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

import hpctl

HEAD = """# The JSON that commands print

`--json` prints one JSON object on standard output (`hpctl agent triage` one a line); progress,
questions and errors go to standard error.

**Compatibility.** While the number at the end of `schema` stays the same, fields keep their names
and meanings, and new ones may be added. A field is never left out: what is unknown is `null` or,
for text, empty. The state `UNKNOWN` means that the system with the answer could not be asked.

**Types.** A field without a type is text; `number`, `boolean`; `time` is ISO 8601 in UTC; `T[]` is
a list, `{text: T}` a map, `T?` may be null, `object` and `any` are free. Names in capitals are
described under [parts](#parts). Fields that end in `_s` are seconds.

**States** are spelled as Slurm, SageMaker and hpctl spell them. Unless a note says otherwise,
`condition` and `health` are healthy, suspect, faulty or unknown; `verdict` is ok, note, warn, fail
or unknown; `urgency` is none, after_jobs or now; `role` is controller, login or compute.

**Exit codes** are those of the [command](cli.md). On 2, and where a command cannot answer at all,
standard output is empty.

Each object begins with `schema`, for example:

```json
{"schema": "hpctl.audit-verify/1", "rows": 42, "ok": true, "broken_at": null, ...}
```
"""
NOTES = Path(__file__).with_name("json_notes.yaml")


def page() -> str:
    """Return the page. Raises ValueError for an unknown view, or a note on no field."""
    written = yaml.safe_load(NOTES.read_text(encoding="utf-8"))
    notes: dict[str, dict[str, str]] = written["notes"]
    classes = _list_classes()
    lines = [HEAD]
    todo: list[type] = []
    used: set[str] = set()
    done: set[type] = set()
    for name, entry in written["schemas"].items():
        view = classes[entry["view"]]
        exits = f" Exit {entry['exit']}." if "exit" in entry else ""
        head = f"{_name_command(name, entry['command'])}{exits}".strip()
        lines += [f"## hpctl.{name}/1", "", *([head, ""] if head else [])]
        noted = notes.get(entry["view"], {})
        used.add(entry["view"])
        lines += [*_describe_view(view, noted, todo), ""]
    lines += ["## Parts", ""]
    while todo:
        part = todo.pop(0)
        if part in done:
            continue
        done.add(part)
        lines += [f"### {_name_class(part)}", ""]
        key = f"{part.__module__.rpartition('.')[2]}.{part.__name__}"
        key = key if key in notes else part.__name__
        used.add(key)
        lines += [*_describe_view(part, notes.get(key, {}), todo), ""]
    if unused := notes.keys() - used:
        raise ValueError(f"notes on types that no command prints: {', '.join(unused)}")
    return "\n".join(lines)


def _name_command(schema: str, command: str) -> str:
    """Return what prints it, where that is not plain from the schema's name."""
    text = command.removeprefix("hpctl ")
    words = re.match(r"[a-z -]*[a-z]", text)
    plain = words and words[0].replace(" ", "-") == schema and "|" not in text
    return "" if plain else f"`{text}`."


def _list_classes() -> dict[str, type]:
    """Return the classes that may be views, by their names.

    Of several with one name that of a command wins, and above it that of what commands share.
    """
    found: dict[str, type] = {}
    commands: dict[str, type] = {}
    shared: dict[str, type] = {}
    for name in _list_modules():
        module = importlib.import_module(name)
        parts = {key: value for key, value in vars(module).items() if _is_part(value)}
        is_command = any(isinstance(value, click.Command) for value in vars(module).values())
        if name.endswith("views"):
            shared |= parts
        elif is_command:
            commands |= parts
        else:
            found |= parts
    return found | commands | shared


def _list_modules() -> Iterator[str]:
    """Yield the modules that may hold views, by name."""
    for info in pkgutil.walk_packages(hpctl.__path__, "hpctl."):
        room = info.name.split(".")[1]
        if room not in ("__main__", "sandbox"):
            yield info.name


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _describe_view(
    view: type[msgspec.Struct], notes: Mapping[str, str], todo: list[type]
) -> Iterator[str]:
    hints = typing.get_type_hints(view, None, _for_type_checkers(view.__module__))
    if unknown := notes.keys() - set(view.__struct_fields__):
        raise ValueError(f"notes on fields that {view.__name__} has not: {', '.join(unknown)}")
    yield "```"
    for field in view.__struct_fields__:
        kind = _name_type(hints[field], todo)
        yield from _describe_field(
            field if kind == "text" else f"{field}: {kind}", notes.get(field, "")
        )
    yield "```"


def _describe_field(line: str, note: str) -> Iterator[str]:
    """Yield a field with its note behind it, or below it where the page is too narrow."""
    note = note.replace("`", "")
    if not note or len(line) + len(note) < _WIDTH:
        yield f"{line}  # {note}" if note else line
    else:
        yield line
        yield from textwrap.wrap(note, _WIDTH, initial_indent="  # ", subsequent_indent="  # ")


_WIDTH = 72


def _for_type_checkers(module: str) -> dict[str, Any]:
    """Return what a module imports for type checkers alone, which hints name too."""
    found: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("hpctl"):
                    source = importlib.import_module(str(line.module))
                    found |= {a.asname or a.name: getattr(source, a.name) for a in line.names}
    return found


def _name_type(hint: Any, todo: list[type]) -> str:
    """Return a type in the page's words; the parts that it names are added to `todo`."""
    hint = getattr(hint, "__supertype__", hint)
    if hint is Any:
        return "any"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        known = [_name_type(a, todo) for a in arguments if a is not type(None)]
        return " or ".join(dict.fromkeys(known)) + ("?" if len(known) < len(arguments) else "")
    if origin is typing.Literal:
        return "text"
    if origin is not None and arguments:
        return _name_container(origin, arguments, todo)
    if _is_part(hint):
        todo.append(hint)
        return _name_class(hint)
    if isinstance(hint, type):
        for base, word in _WORDS.items():
            if issubclass(hint, base):
                return word
    return "object"


def _name_container(origin: Any, arguments: tuple[Any, ...], todo: list[type]) -> str:
    """Return a sequence or a mapping in the page's words."""
    sequence = origin in (list, tuple, set, frozenset)
    if sequence or len(arguments) != 2:
        return f"{_name_type(arguments[0], todo)}[]"
    if arguments[1] is Any:
        return "object"
    return f"{{text: {_name_type(arguments[1], todo)}}}"


_WORDS: dict[type, str] = {
    bool: "boolean",
    enum.IntEnum: "number",
    enum.Enum: "text",
    str: "text",
    int: "number",
    float: "number",
    datetime: "time",
    date: "text",
    Path: "text",
}


_NAMED: dict[str, type] = {}


def _name_class(part: type) -> str:
    """Return the class's name; the second class of a name has its module's in front."""
    name = part.__name__.removesuffix("View")
    if _NAMED.setdefault(name, part) is not part:
        name = f"{part.__module__.rpartition('.')[2]}.{name}"
    return name
