"""Whether a bundle's wheels can be installed on the nodes that it is for, without a network.

pip reads environment markers (`python_version < "3.11"`) for the Python that it runs on, whatever
`--python-version` says (pip 26, "pip download"): what a wheel needs there is asked for here.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from hpctl.clusters.bundle import PYTHON, WHEELS

FILE = "target.json"
VERSION = re.compile(r"3\.\d{1,3}")
DEFAULT_PYTHON = "3.10"
"""Of Ubuntu 22.04, which HyperPod's Slurm AMIs are."""
GLIBC_MINOR = 35
"""Of Ubuntu 22.04: 2.35."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python (`3.10`) and the machine (`x86_64`) that wheels are for."""

    python: str = DEFAULT_PYTHON
    machine: str = "x86_64"

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"

    def tags(self) -> frozenset[Tag]:
        """All that its pip takes."""
        version = tuple(map(int, self.python.split(".")))
        names = [f"manylinux_2_{minor}" for minor in range(GLIBC_MINOR, 4, -1)]
        names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
        platforms = [f"{name}_{self.machine}" for name in names]
        interpreter = "cp{}{}".format(*version)
        return frozenset(
            [
                *cpython_tags(version, platforms=platforms),
                *compatible_tags(version, interpreter, platforms),
            ]
        )

    def markers(self) -> dict[str, str]:
        """What markers are asked about."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.12",
            "implementation_version": f"{self.python}.12",
            "platform_machine": self.machine,
            "extra": "",
        }


@dataclass(frozen=True, slots=True)
class Lack:
    """A requirement that no wheel meets, and why."""

    requirement: str
    why: str


def target_of(bundle: Path) -> Target:
    """What a bundle says that its wheels are for. Raises ValueError, TypeError."""
    path = bundle / FILE
    said = json.loads(path.read_text()) if path.is_file() else {}
    target = Target(**said)
    if not VERSION.fullmatch(str(target.python)):
        raise ValueError(f"{target.python!r} is not of the form 3.10")
    return target


def packed_python(archive: Path) -> str:
    """The version of the Python in an archive, by its library's folder; "" where it has none."""
    try:
        with tarfile.open(archive) as packed:
            parts = {part for name in packed.getnames() for part in name.split("/")}
    except (tarfile.TarError, OSError, EOFError):
        return ""
    found = [part for part in parts if part.startswith("python3.") and part[8:].isdigit()]
    return max(found, key=len, default="").removeprefix("python")


def problems(bundle: Path) -> Iterator[tuple[str, str]]:
    """Place and reason of whatever keeps hpctl from being installed from a bundle's wheels."""
    try:
        target = target_of(bundle)
    except (ValueError, TypeError) as error:
        yield FILE, f"says no Python: {error}"
        return
    packed = packed_python(bundle / PYTHON) if (bundle / PYTHON).is_file() else ""
    if packed and packed != target.python:
        yield PYTHON, f"has Python {packed}, and the wheels are for {target.python}"
    for lack in lacking(bundle / WHEELS, target):
        yield WHEELS, lack.why


def lacking(house: Path, target: Target) -> list[Lack]:
    """What hpctl and pip need there, and theirs in turn, that no wheel of a directory gives."""
    wheels = _Wheels(house, target)
    todo, seen, found = [("the bundle", "hpctl"), ("the bundle", "pip")], set[str](), list[Lack]()
    while todo:
        whose, text = todo.pop()
        if text in seen:
            continue
        seen.add(text)
        need = Requirement(text)
        name, why = wheels.best(need)
        if why:
            found.append(Lack(text, f"{whose} needs {need.name}{need.specifier}: {why}"))
        else:
            todo += [(name, more) for more in wheels.needs(name)]
    return sorted(found, key=lambda lack: lack.requirement)


class _Wheels:
    """The wheels of a directory, as one target's pip sees them."""

    def __init__(self, house: Path, target: Target) -> None:
        self._house, self._target, self._tags = house, target, target.tags()
        self._names: dict[str, list[tuple[Version, frozenset[Tag], str]]] = {}
        for path in sorted(house.glob("*.whl")):
            try:
                name, version, _, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue  # pip does not see it either
            self._names.setdefault(name, []).append((version, tags, path.name))

    def best(self, need: Requirement) -> tuple[str, str]:
        """The wheel that meets a requirement, or why there is none."""
        why = "no wheel of it is there"
        for version, tags, name in sorted(
            self._names.get(canonicalize_name(need.name), []), reverse=True, key=lambda one: one[0]
        ):
            python = SpecifierSet(self._metadata(name).get("Requires-Python") or "")
            if not need.specifier.contains(version, prereleases=True):
                why = f"{name} is another version"
            elif tags.isdisjoint(self._tags) or not python.contains(f"{self._target.python}.12"):
                why = f"{name} is not for {self._target}"
            else:
                return name, ""
        return "", why

    def needs(self, name: str) -> Iterator[str]:
        """What a wheel requires on the target, without extras."""
        for line in self._metadata(name).get_all("Requires-Dist") or ():
            try:
                need = Requirement(line)
            except InvalidRequirement:
                continue
            if need.marker is None or need.marker.evaluate(self._target.markers()):
                yield f"{need.name}{need.specifier}"

    def _metadata(self, name: str) -> Message:
        try:
            with zipfile.ZipFile(self._house / name) as wheel:
                path = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
                return HeaderParser().parsestr(wheel.read(path).decode(errors="replace"))
        except (zipfile.BadZipFile, OSError, StopIteration):
            return Message()
