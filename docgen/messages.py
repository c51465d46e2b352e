"""docs/messages.md: each error that an operator or a job's owner can meet, and what to do.

The page is read from the code's syntax trees: the text that a command raises is what
its user sees. Texts of decisions are in docs/recovery.md and docs/jobs-and-admins.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[1]

ROOMS: Final = {
    "cli": "Status, diagnosis and orders",
    "jobs": "Jobs",
    "checkpoints": "Checkpoints",
    "clusters": "Clusters",
    "sagemaker": "The SageMaker API",
    "capacity": "Capacity",
    "nodes": "Nodes, acceptance and maintenance",
    "insight": "Reports and forecasts",
    "slurm": "Slurm",
    "engine": "Configuration and journal",
    "daemon": "The daemon",
    "service": "Intake, page and notifications",
    "detection": "The node agent",
    "faults": "The catalogue of faults",
    "wire": "Requests and reports",
    "toolkit": "Files and values",
    "vocabulary": "Policies and values",
    "sandbox": "The sandbox",
}
"""The rooms whose errors reach a person, in the page's order, and their headings."""

BASES: Final = ("HpctlError", "UsageError")
"""Errors that a command prints: hpctl's own, and click's of a command line."""

REASONS: Final = ("NotWhole", "Unprovable", "Unfinished")
"""Why a checkpoint is passed over; `hpctl checkpoint ls` and `explain` print it."""

INTRODUCTION: Final = """# Messages

Each error that a command, the daemon or the agent prints, by what it is about, and what to do.
Words in capitals stand for values: search for a part of the text that has none.
[Troubleshooting](troubleshooting.md) goes by symptom, [recovery.md](recovery.md) has what a
recovery says, and [alerts.md](alerts.md) the alerts.
"""

_PROSE = re.compile(r"[a-z]{3}")
"""A text without it holds values only."""


class Message(Struct, frozen=True, order=True):
    """One text that a person may meet. `action` is empty where the text says what to do."""

    text: str
    action: str


def describe_value(node: ast.expr) -> str:
    """Return a word in capitals for an expression inside a text."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
    ):
        return "LIST"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return "COUNT"
    names = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name)
    ]
    return names[0].strip("_").upper() if names else "VALUE"


def read_texts(node: ast.expr | None, assigned: dict[str, ast.expr]) -> list[str]:
    """Return the texts that an expression may be; none where its value is not in the code.

    `assigned` has the values of the function's local names.
    """
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts.append(str(value.value))
            elif isinstance(value, ast.FormattedValue):
                parts.append(describe_value(value.value))
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return [*read_texts(node.body, assigned), *read_texts(node.orelse, assigned)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = read_texts(node.left, assigned), read_texts(node.right, assigned)
        return [first + second for first in left or ["TEXT"] for second in right or ["TEXT"]]
    if isinstance(node, ast.Name) and node.id in assigned:
        rest = {name: value for name, value in assigned.items() if name != node.id}
        return read_texts(assigned[node.id], rest)
    return []


def list_assignments(function: ast.AST) -> dict[str, ast.expr]:
    """Return the values of the names that a function assigns once."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def find_subclasses(trees: Sequence[ast.Module], bases: Sequence[str]) -> set[str]:
    """Return the names of the classes that stand on one of these, and these."""
    parents = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = {
                    getattr(base, "attr", getattr(base, "id", "")) for base in node.bases
                }
    found = set(bases)
    while True:
        more = {name for name, above in parents.items() if above & found} - found
        if not more:
            return found
        found |= more


def find_messages(tree: ast.Module, errors: set[str]) -> Iterator[Message]:
    """Yield the texts of the errors of these classes that a module raises or makes."""
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        assigned = list_assignments(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in errors:
                continue
            given = node.args[1] if len(node.args) > 1 else None
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            actions = read_texts(hints[0] if hints else given, assigned)
            for text in read_texts(node.args[0], assigned):
                yield Message(clean_text(text), clean_text(actions[0] if actions else ""))


def clean_text(text: str) -> str:
    """Return a text as one cell of a table."""
    one_line = re.sub(r"\s+", " ", text).strip()
    return one_line.replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


def draw_table(messages: Sequence[Message]) -> str:
    """Return a table of messages."""
    lines = ["| message | what to do |", "|---|---|"]
    for message in messages:
        lines.append(f"| {message.text} | {message.action} |")
    return "\n".join(lines)


def collect_messages(room: str, errors: set[str]) -> list[Message]:
    """Return the messages of a room, each once, in order."""
    found: set[Message] = set()
    for path in sorted((ROOT / "hpctl" / room).rglob("*.py")):
        found.update(find_messages(ast.parse(path.read_text(encoding="utf-8")), errors))
    acted = {message.text for message in found if message.action}
    shown = []
    for message in sorted(found):
        is_prose = _PROSE.search(message.text) is not None
        if is_prose and (message.action or message.text not in acted):
            shown.append(message)
    return shown


def page() -> str:
    """Return docs/messages.md."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.glob("hpctl/**/*.py")]
    errors = find_subclasses(trees, BASES)
    parts = [INTRODUCTION]
    for room, title in ROOMS.items():
        messages = collect_messages(room, errors)
        if messages:
            parts.append(f"## {title}\n\n{draw_table(messages)}\n")
    reasons = collect_messages("checkpoints", set(REASONS))
    parts.append(f"## Why a checkpoint is passed over\n\n{draw_table(reasons)}\n")
    return "\n".join(parts)
