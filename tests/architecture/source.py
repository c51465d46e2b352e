"""The source tree as these tests read it: files that git tracks, and their syntax trees."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hpctl"


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Every file that git tracks or would track, relative to the root."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, timeout=30,
    ).stdout.decode()  # fmt: skip
    found = {Path(name) for name in listing.split("\0") if name}
    return tuple(sorted(path for path in found if (ROOT / path).is_file()))


def python_files(under: str = "") -> list[Path]:
    """Tracked Python files, relative to the root, in a folder of it."""
    return [p for p in tracked() if p.suffix == ".py" and p.is_relative_to(under)]


@functools.cache
def text(path: Path) -> str:
    """A tracked file's text."""
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def tree(path: Path) -> ast.Module:
    """A tracked Python file's syntax tree."""
    return ast.parse(text(path), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, at any depth."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
