"""Write constraints.txt, the versions with which the tests passed: `make constraints`.

The file names one version of each distribution that hpctl, its sandbox and its tests require,
directly or through another one. `make release` packs these versions, and `PIP_CONSTRAINT` installs
them. The environment has to be the one in which the tests passed, with the frameworks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hatchling.metadata.core import ProjectMetadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints.txt"
PROJECTS = {"hpctl": ROOT, "hpctl-sandbox": ROOT / "hpctl/sandbox"}
"""Directories with a pyproject.toml whose requirements are pinned."""
EXTRAS = ("postgresql", "mariadb", "notify", "stacks", "sandbox", "frameworks", "dev")
"""The extras of a head node, of a compute node and of the tests. Of the others, `engines` and `jax`
do not install everywhere, `pyslurm` is built for one Slurm, and `docs` only builds the site."""

HEADER = """\
# What hpctl, its sandbox and its tests require: the versions with which the tests passed.
# Written by `make constraints` on Python {python}. A comment names who requires the package.
"""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Those that hpctl runs on, the lowest first."""

_PIN = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)"
    r'(?:; python_version >= "(?P<least>3\.\d+)")?  # (?P<parent>[a-z0-9-]+)$'
)


class Pin(NamedTuple):
    """The version of a distribution, and where it counts."""

    version: Version
    parent: str
    """The distribution through which the walk came to it."""
    least: str = PYTHONS[0]
    """The lowest Python that the version runs on. Below it no version is pinned."""


class Stale(Exception):
    """constraints.txt does not fit the requirements; the text lists each disagreement."""


def select_requirements(name: str, extras: Iterable[str]) -> list[Requirement]:
    """Return what an installed distribution requires here with these extras.

    Raises PackageNotFoundError where it is not installed.
    """
    environments = [{"extra": extra} for extra in ("", *extras)]
    found = []
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate(one) for one in environments):
            found.append(requirement)
    return found


def list_direct() -> list[Requirement]:
    """Return what the pyproject.toml files of hpctl and its sandbox require here."""
    todo: list[tuple[str, tuple[str, ...]]] = [("hpctl", EXTRAS)]
    seen, found = set[tuple[str, tuple[str, ...]]](), list[Requirement]()
    while todo:
        project = todo.pop()
        if project in seen:
            continue
        seen.add(project)
        name, extras = project
        core = ProjectMetadata(str(PROJECTS[name]), None).core
        lines = core.dependencies + [
            line for extra in extras for line in core.optional_dependencies[extra]
        ]
        for requirement in map(Requirement, lines):
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            needed = canonicalize_name(requirement.name)
            if needed in PROJECTS:
                todo.append((needed, tuple(sorted(requirement.extras))))
            else:
                found.append(requirement)
    return sorted(found, key=str)


def find_least_python(name: str) -> str:
    """Return the lowest Python of PYTHONS that an installed distribution allows."""
    lines = importlib.metadata.metadata(name).get_all("Requires-Python") or []
    allowed = SpecifierSet(",".join(lines))
    return next(python for python in PYTHONS if allowed.contains(f"{python}.99"))


def pin_environment() -> dict[str, Pin]:
    """Return a pin for each distribution that is required here, directly or not.

    Raises PackageNotFoundError with the name of one that is not installed.
    """
    todo = [("hpctl", requirement) for requirement in list_direct()]
    seen, pins = set[tuple[str, frozenset[str]]](), dict[str, Pin]()
    for parent, requirement in todo:  # it grows: the nearest parent is found first
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        # Without the local part (`+cpu`): it depends on the index, and no index is required.
        version = Version(Version(importlib.metadata.version(name)).public)
        pins.setdefault(name, Pin(version, parent, find_least_python(name)))
        todo += [(name, more) for more in sorted(select_requirements(name, extras), key=str)]
    return pins


def format_pins(pins: Mapping[str, Pin], python: str) -> str:
    """Return the text of constraints.txt."""
    lines = []
    for name, pin in sorted(pins.items()):
        marker = f'; python_version >= "{pin.least}"' if pin.least != PYTHONS[0] else ""
        lines.append(f"{name}=={pin.version}{marker}  # {pin.parent}\n")
    return HEADER.format(python=python) + "".join(lines)


def write_selections(pins: Mapping[str, Pin], directory: Path) -> None:
    """Write the pins for each Python into a separate file, `3.11.txt`.

    `pip download --python-version` evaluates markers for the Python that it runs on.
    """
    for python in PYTHONS:
        least = Version(python)
        lines = [
            f"{name}=={pin.version}\n" for name, pin in pins.items() if Version(pin.least) <= least
        ]
        (directory / f"{python}.txt").write_text("".join(lines))


def parse_pins(text: str) -> dict[str, Pin]:
    """Return the pins of a text that format_pins wrote. Raises Stale for another line."""
    pins: dict[str, Pin] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _PIN.match(line)
        if match is None or match["name"] in pins:
            raise Stale(f"not a line that `make constraints` writes: {line}")
        least = match["least"] or PYTHONS[0]
        pins[match["name"]] = Pin(Version(match["version"]), match["parent"], least)
    return pins


def check_pins(pins: Mapping[str, Pin], requirements: Iterable[Requirement]) -> None:
    """Raise Stale where a requirement has no pin that it allows, or a pin has no requirement."""
    problems, direct = list[str](), set[str]()
    for requirement in requirements:
        name: str = canonicalize_name(requirement.name)
        direct.add(name)
        if name not in pins:
            problems.append(f"{requirement} has no pin")
        elif not requirement.specifier.contains(pins[name].version, prereleases=True):
            problems.append(f"{requirement} does not allow {pins[name].version}")
    for name, pin in pins.items():
        known = direct if pin.parent == "hpctl" else pins
        if (name if pin.parent == "hpctl" else pin.parent) not in known:
            problems.append(f"{name} is required by {pin.parent} no longer")
    if problems:
        raise Stale("; ".join(problems))


def read_file() -> dict[str, Pin]:
    """Return the pins of constraints.txt. Raises Stale where they do not fit the requirements."""
    pins = parse_pins(FILE.read_text())
    check_pins(pins, list_direct())
    return pins


def main() -> int:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(prog="tools/constraints.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the file is stale")
    options = parser.parse_args()
    try:
        if options.check:
            read_file()
            return 0
        pins = pin_environment()
    except Stale as error:
        print(f"constraints.txt is stale: {error}. Run make constraints.", file=sys.stderr)
        return 1
    except importlib.metadata.PackageNotFoundError as error:
        print(f"{error.name} is not installed: run .ci/setup --frameworks", file=sys.stderr)
        return 1
    python = platform.python_version().rpartition(".")[0]
    FILE.write_text(format_pins(pins, python))
    print(f"{FILE.name}: {len(pins)} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
