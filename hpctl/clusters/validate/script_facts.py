"""Lifecycle scripts as they are: on disk, before anybody uploads them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpctl.clusters import bundle_fit
from hpctl.clusters.bundle import MANIFEST, WHEELS

LARGEST = 1 << 20
"""Bytes that are read of one file; a larger one is no script."""

MOST = 500
"""Files that are looked at; what a person wrote are fewer."""

PARAMETERS = "provisioning_parameters.json"
CONFIG = "config.json"
_SHELL = re.compile(rb"#!\s*\S*/(?:env\s+)?(sh|bash|dash)\b")
_PYTHON = re.compile(rb"#!\s*\S*/(?:env\s+)?python")


@dataclass(frozen=True, slots=True)
class Script:
    """One file. `data` is None where it is too large to be a script."""

    name: str
    size: int
    data: bytes | None
    executable: bool | None = None
    """None where nobody can say: S3 keeps no modes."""
    syntax_error: str = ""

    @property
    def first_line(self) -> bytes:
        """The line that says what runs it."""
        return (self.data or b"").partition(b"\n")[0]

    @property
    def is_text(self) -> bool:
        """Whether a kernel or an interpreter reads it line by line."""
        return self.first_line.startswith(b"#!") or self.name.endswith((".sh", ".py"))


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """The files of a directory, by path relative to it; no directory, no files."""

    directory: str = ""
    files: Mapping[str, Script] = field(default_factory=dict)
    truncated: bool = False
    unfit: tuple[str, ...] = ()
    """Why hpctl cannot be installed from the wheels of a bundle."""


def gather(directory: Path) -> ScriptFacts:
    """Every file below a directory. Raises OSError."""
    found: dict[str, Script] = {}
    unfit: tuple[str, ...] = ()
    if (directory / WHEELS).is_dir() and (directory / MANIFEST).is_file():
        unfit = tuple(f"{place}: {why}" for place, why in bundle_fit.problems(directory))
    for at, path in enumerate(_below(directory)):
        if at >= MOST:
            return ScriptFacts(str(directory), found, True, unfit)
        name = path.relative_to(directory).as_posix()
        found[name] = _script(path, name)
    return ScriptFacts(str(directory), found, unfit=unfit)


def _below(directory: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        yield from (Path(where, name) for name in sorted(names))


def _script(path: Path, name: str) -> Script:
    size = path.stat().st_size
    if size > LARGEST:
        return Script(name, size, None, os.access(path, os.X_OK))
    data = path.read_bytes()
    return Script(name, size, data, os.access(path, os.X_OK), syntax_error(name, data))


def syntax_error(name: str, data: bytes) -> str:
    """What the interpreter says of a file that it only reads; empty where it is content."""
    line = data.partition(b"\n")[0]
    if shell := _SHELL.match(line):
        return _shell_error(shell[1].decode(), data)
    if _PYTHON.match(line) or name.endswith(".py"):
        try:
            ast.parse(data, name)
        except (SyntaxError, ValueError) as error:
            return f"{error.__class__.__name__}: {error}"
        return ""
    return _shell_error("sh", data) if name.endswith(".sh") else ""


def _shell_error(shell: str, data: bytes) -> str:
    try:
        ran = subprocess.run(
            [shell, "-n"],
            input=data,
            capture_output=True,
            timeout=10,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        # Only what the shell says counts: without one there is nothing to tell.
        return ""
    said = ran.stderr.decode(errors="replace").strip().splitlines()
    return (said[0] if said else f"{shell} -n failed") if ran.returncode else ""
