"""What can be known of a bundle before a node pays for it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctl.clusters import bundle_wheels
from hpctl.clusters.bundle import ENTRY_POINTS, PYTHON, WHEELS

PYTHON_FLOOR = (3, 8)
"""Of Ubuntu 20.04, the oldest AMI."""

LARGEST_FILE = 1 << 30
LARGEST = 4 << 30
"""Bytes. Each new node downloads all of it before it does anything."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that would keep nodes from coming up, and where."""

    path: str
    what: str


def problems(directory: Path) -> tuple[Problem, ...]:
    """Everything that is wrong with a bundle's files."""
    found = [Problem(name, "is not there") for name in ENTRY_POINTS if not _is(directory / name)]
    total = 0
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name = path.relative_to(directory).as_posix()
        total += path.stat().st_size
        found += [Problem(name, what) for what in _of_file(path, name)]
    if total > LARGEST:
        found.append(Problem(".", f"has {total} bytes, over {LARGEST}"))
    found += [Problem(WHEELS, what) for what in _of_wheels(directory / WHEELS)]
    if (directory / WHEELS).is_dir():
        found += [Problem(place, why) for place, why in bundle_wheels.problems(directory)]
    found += [Problem(PYTHON, what) for what in _of_packed_python(directory / PYTHON)]
    if not found:
        found += _of_settings(directory)
    return tuple(found)


def _is(path: Path) -> bool:
    return path.is_file()


def _of_file(path: Path, name: str) -> Iterator[str]:
    if any(ord(letter) < 32 or letter == "\\" for letter in name):
        yield "has a name that a MANIFEST cannot hold"
    if path.stat().st_size > LARGEST_FILE:
        yield f"is over {LARGEST_FILE} bytes"
    elif path.suffix in (".sh", ".py", ".json"):
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            yield f"is not UTF-8 text: byte {error.start}"
            return
        yield from _of_shell(path, text) if path.suffix == ".sh" else _OF_TEXT[path.suffix](text)


def _of_shell(path: Path, text: str) -> Iterator[str]:
    first = text.partition("\n")[0]
    if "\r" in text:
        yield f"has CRLF line ends (line {text[: text.index(chr(13))].count(chr(10)) + 1})"
        return
    if not first.startswith("#!"):
        yield "has no shebang in its first line"
    if not path.stat().st_mode & 0o100:
        yield "is not executable"
    shell = "bash" if "bash" in first else "sh"
    try:
        checked = subprocess.run(
            [shell, "-n", str(path)], capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return
    if checked.returncode:
        yield f"{shell} -n: {checked.stderr.strip().splitlines()[-1].replace(str(path), path.name)}"


def _of_python(text: str) -> Iterator[str]:
    try:
        ast.parse(text, feature_version=PYTHON_FLOOR)
    except SyntaxError as error:
        floor = ".".join(map(str, PYTHON_FLOOR))
        yield f"line {error.lineno}: not Python {floor}: {error.msg}"


def _of_json(text: str) -> Iterator[str]:
    try:
        json.loads(text)
    except ValueError as error:
        yield f"not JSON: {error}"


_OF_TEXT = {".py": _of_python, ".json": _of_json}


def _of_wheels(directory: Path) -> Iterator[str]:
    names = [path.name for path in directory.glob("*")]
    for name in names:
        if not name.endswith(".whl"):
            yield f"{name} is no wheel: a node has nothing to build it with"


def _of_packed_python(packed: Path) -> Iterator[str]:
    """Whether a node finds bin/python3 in it; that it runs where it is put only a node can tell."""
    if not packed.is_file():
        return
    try:
        with tarfile.open(packed) as archive:
            names = {name.removeprefix("./") for name in archive.getnames()}
    except (tarfile.TarError, OSError, EOFError) as error:
        yield f"cannot be unpacked: {error}"
        return
    if not names & {"bin/python3", "python/bin/python3"}:
        yield "has neither bin/python3 nor python/bin/python3"


def _of_settings(directory: Path) -> list[Problem]:
    """What the scripts themselves say of config.json and the users file."""
    said = subprocess.run(
        [sys.executable, "-IB", str(directory / "lifecycle"), "check", "--bundle", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if said.returncode:
        return [Problem("lifecycle", said.stderr.strip().splitlines()[-1])]
    lines = (str(problem).partition(": ") for problem in json.loads(said.stdout))
    return [Problem(path, what) for path, _, what in lines]
