"""Tests use what a module offers: the uses of private names and of stand-in objects only shrink.

Counted in `tests/`: a private attribute of another object (`server._clients`), a private name that
is imported from hpctl, a private name of hpctl that is replaced (`monkeypatch.setattr(module,
"_name", …)`), and a `SimpleNamespace`, which has no type that a change of the real one would break.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import python_files, tree

DOCUMENTED = {
    "_asdict",
    "_exit",
    "_fields",
    "_fields_",
    "_getframe",
    "_make",
    "_replace",
    "_sigsegv",
}
"""Names of Python's own that begin with an underscore for another reason."""
LIMITS = {
    "adversary": 2,
    "capacity": 1,
    "checkpoints": 8,
    "cli": 7,
    "client": 2,
    "clusters": 4,
    "daemon": 3,
    "detection": 4,
    "engine": 3,
    "fakes": 2,
    "faults": 2,
    "fuzz": 2,
    "gpu": 13,
    "insight": 2,
    "jobs": 13,
    "nodes": 5,
    "sagemaker": 5,
    "sandbox": 3,
    "service": 7,
    "soak": 2,
    "toolkit": 3,
    "wire": 4,
}
"""Uses in each room's tests. Lower a number with the uses; never raise one."""
REPLACED_AT = {"setattr": 1, "object": 1}
"""The calls that replace an attribute (`patch.object`), and which argument names it."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def find_replaced(call: ast.Call) -> str:
    """Return the attribute that a call replaces; empty for another call."""
    position = REPLACED_AT.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None
    if position is None or not call.args:
        return ""
    # monkeypatch.setattr("hpctl.module.name", …) names all of it in its first argument.
    target = call.args[min(position, len(call.args) - 1)]
    first = call.args[0]
    for one in (first, target):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            return one.value.rpartition(".")[2]
    return ""


def find_uses(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of everything in a file that is counted."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpctl"):
            for alias in node.names:
                if is_private(alias.name):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func).endswith("SimpleNamespace"):
                yield node.lineno, "SimpleNamespace"
            elif is_private(find_replaced(node)):
                yield node.lineno, find_replaced(node)


def find_room(path: Path) -> str:
    """Return the folder of `tests/` that a file is in, or the file's own name."""
    return path.parts[1]


def test_uses_of_private_names_only_shrink() -> None:
    found: Counter[str] = Counter()
    places = []
    for path in python_files("tests"):
        for line, what in find_uses(path):
            found[find_room(path)] += 1
            places.append(f"{path}:{line} {what}")
    grown = sorted(room for room in found if found[room] > LIMITS.get(room, 0))
    shown = [place for place in places if find_room(Path(place)) in grown]
    assert grown == [], "test through public names:\n" + "\n".join(shown)
    assert dict(found) == LIMITS, "fewer than before: write the new numbers into LIMITS"
