"""Check and build a release: `make release`. CONTRIBUTING.md says what comes before and after it.

The wheels of the three distributions, the Debian packages, the bundle of lifecycle scripts, the
notes and SHA256SUMS lie in `dist/` in the end. Nothing is tagged or published: the last lines name
the commands that do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name, parse_wheel_filename

from hpctl.clusters.bundle_wheels import DEFAULT_PYTHON
from tools import constraints

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "hpctl/client", "hpctl/sandbox")
"""Directories with a pyproject.toml of the same version."""

VERSION_PLACES = (
    *((f"{project}/pyproject.toml", r'^version = "([^"]+)"$') for project in PROJECTS),
    ("pyproject.toml", r'"hpctl-sandbox==([^"]+)"'),
    ("hpctl/sandbox/pyproject.toml", r'"hpctl==([^"]+)"'),
    ("hpctl/__init__.py", r'^__version__ = "([^"]+)"$'),
)
"""Files that name the version, and the expression whose group it is."""

MACHINES = ("x86_64", "aarch64")
NOTES = "RELEASE_NOTES.md"
MOST_WORDS = 1500
"""A section of the changelog that is longer is not read."""

COMPARISONS = ("Changed", "Fixed")
"""Kinds of changes that compare with the release before."""

_SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


class Section(NamedTuple):
    """A version's part of the changelog: its date, and the text below its heading."""

    date: str | None
    text: str

    def format(self, version: str) -> str:
        """Return the section with its heading."""
        dated = f"## [{version}]" if self.date is None else f"## [{version}] - {self.date}"
        return f"{dated}\n\n{self.text}".strip()


class NotReady(Exception):
    """The tree is not ready for a release; the text says why and what to do."""


def read_version(root: Path) -> str:
    """Return the version that all files name. Raises NotReady where they differ."""
    found = {}
    for name, pattern in VERSION_PLACES:
        match = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if match is None:
            raise NotReady(f"{name} has no line like {pattern}.")
        found[name, pattern] = match[1]
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name}: {version}" for (name, _), version in found.items())
        raise NotReady(f"The files name different versions ({listed}). Set one version.")
    return found[VERSION_PLACES[0]]


def set_version(root: Path, version: str) -> None:
    """Write a version into all files that name it."""
    for name, pattern in VERSION_PLACES:
        path = root / name
        text = path.read_text()
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise NotReady(f"{name} has no line like {pattern}.")
        path.write_text(text[: match.start(1)] + version + text[match.end(1) :])


def split_kinds(text: str) -> dict[str, str]:
    """Return the text below each heading `### KIND` of a section; that before them is kind ""."""
    first, *parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    kinds = {"": first.strip()}
    for kind, lines in zip(parts[::2], parts[1::2], strict=True):
        kinds[kind] = f"{kinds.get(kind, '')}\n{lines.strip()}".strip()
    return kinds


def read_sections(changelog: str) -> dict[str, Section]:
    """Return the sections of a changelog by version, in their order."""
    matches = list(_SECTION.finditer(changelog))
    ends = [match.start() for match in matches[1:]] + [len(changelog)]
    return {
        match["name"]: Section(match["date"], changelog[match.end() : end].strip())
        for match, end in zip(matches, ends, strict=True)
    }


def fold_unreleased(changelog: str, version: str, day: str) -> str:
    """Return a changelog whose unreleased lines are in the section of a version.

    A section that the version has already keeps its lines: it was written, and not released. In the
    first release, Changed and Fixed are left out: they compare with a state that was not released.
    """
    sections = read_sections(changelog)
    new = split_kinds(sections.pop("Unreleased", Section(None, "")).text)
    kinds = split_kinds(sections.pop(version, Section(None, "")).text)
    for kind, lines in new.items():
        if sections or kind not in COMPARISONS:
            kinds[kind] = f"{kinds.get(kind, '')}\n{lines}".strip()
    parts = [f"### {kind}\n\n{lines}" if kind else lines for kind, lines in kinds.items()]
    text = "\n\n".join(part for part in parts if part)
    sections = {"Unreleased": Section(None, ""), version: Section(day, text), **sections}
    head = _SECTION.split(changelog, maxsplit=1)[0]
    return head + "\n\n".join(section.format(name) for name, section in sections.items()) + "\n"


def read_notes(changelog: str, version: str) -> str:
    """Return the changelog's section of a version, without its heading.

    Raises NotReady where it is missing, undated or too long, or where unreleased lines remain.
    """
    sections = read_sections(changelog)
    if "Unreleased" in sections and sections["Unreleased"].text:
        raise NotReady(
            "CHANGELOG.md has lines under [Unreleased]. Move them:"
            f" .venv/bin/python -m tools.release --prepare {version}"
        )
    if version not in sections:
        raise NotReady(f"CHANGELOG.md has no section `## [{version}] - DATE`.")
    date, text = sections[version]
    if date is None:
        raise NotReady(f"The section [{version}] of CHANGELOG.md has no date.")
    words = len(text.split())
    if not 0 < words <= MOST_WORDS:
        raise NotReady(
            f"The section [{version}] of CHANGELOG.md has {words} words; 1 to {MOST_WORDS} are"
            " allowed. Say what changes for users."
        )
    return text + "\n"


def check_tree(root: Path) -> None:
    """Raise NotReady where the work tree differs from its commit."""
    words = ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=normal"]
    changed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    if changed:
        raise NotReady(f"{len(changed)} files differ from the commit ({changed[0]}). Commit them.")


def check_tag(root: Path, version: str) -> None:
    """Raise NotReady where the version's tag exists and names another commit."""
    words = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet"]
    tagged = subprocess.run(
        [*words, f"refs/tags/v{version}^{{commit}}"], check=False, capture_output=True, text=True
    ).stdout
    head = subprocess.run([*words, "HEAD"], check=True, capture_output=True, text=True).stdout
    if tagged and tagged != head:
        raise NotReady(
            f"The tag v{version} names another commit, {tagged[:12]}. Set the next version, or"
            " check that commit out."
        )


def build_packages(root: Path, limits: Path, output: Path) -> None:
    """Build the wheels and a Debian package for each machine."""
    for machine in MACHINES:
        words = ["debian/build.py", "--machine", machine, "--constraints", str(limits)]
        command = [sys.executable, *words, "--output", str(output)]
        subprocess.run(command, cwd=root, check=True)
    for project in PROJECTS[1:]:
        words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
        subprocess.run([sys.executable, *words], cwd=root / project, check=True)


def build_bundle(root: Path, version: str, limits: Path, output: Path) -> None:
    """Pack the bundle of lifecycle scripts, with wheels for x86_64, as one archive."""
    name = f"hpctl-lifecycle-{version}"
    environment = {**os.environ, "PIP_CONSTRAINT": str(limits / f"{DEFAULT_PYTHON}.txt")}
    with tempfile.TemporaryDirectory() as room:
        bundle = Path(room) / name
        words = ["cluster", "lifecycle", "bundle", "--wheels", "-o", str(bundle)]
        command = [sys.executable, "-m", "hpctl", *words]
        subprocess.run(command, cwd=root, env=environment, check=True)
        with tarfile.open(output / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(bundle, arcname=name)


def list_wheels(package: Path) -> set[str]:
    """Return the file names of the wheels in a Debian package."""
    words = ["dpkg-deb", "--contents", str(package)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.rpartition("/")[2] for line in lines if line.endswith(".whl")}


def check_notice(notice: str, wheels: Iterable[str]) -> None:
    """Raise NotReady where NOTICE does not name a library whose wheel is packed.

    What a library requires depends on the Python that it is packed for: only the wheels show it.
    """
    named = {canonicalize_name(name) for name in re.findall(r"([A-Za-z0-9.-]+)\s\(", notice)}
    packed = {str(parse_wheel_filename(wheel)[0]) for wheel in wheels}
    if missing := packed - named - {"hpctl"}:
        raise NotReady(
            f"NOTICE does not name {', '.join(sorted(missing))}. Add each with its license."
        )


def write_sums(output: Path) -> None:
    """Write SHA256SUMS over all files of a directory, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(output.iterdir()):
        if path.name != "SHA256SUMS":
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (output / "SHA256SUMS").write_text("".join(lines))


def prepare(root: Path, version: str) -> int:
    """Name the version in all files, and move the unreleased lines of CHANGELOG.md below it."""
    set_version(root, version)
    path = root / "CHANGELOG.md"
    today = datetime.now(timezone.utc).date()
    path.write_text(fold_unreleased(path.read_text(), version, today.isoformat()))
    print(f"Prepared {version}. Next: make docs, read `git diff`, and commit it.")
    return 0


def build_all(root: Path, version: str, pins: Mapping[str, constraints.Pin], output: Path) -> None:
    """Build what a release consists of. Raises NotReady where NOTICE lacks a packed library."""
    with tempfile.TemporaryDirectory() as room:
        limits = Path(room)
        constraints.write_selections(pins, limits)
        build_packages(root, limits, output)
        for package in output.glob("*.deb"):
            check_notice((root / "NOTICE").read_text(), list_wheels(package))
        build_bundle(root, version, limits, output)
    write_sums(output)


def main() -> int:
    """Build what the words ask for; print what was made and what to do next."""
    parser = argparse.ArgumentParser(prog="tools/release.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the tree is ready")
    parser.add_argument("--prepare", metavar="VERSION", help="set the version, date its changes")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if options.prepare:
        return prepare(ROOT, options.prepare)
    try:
        version = read_version(ROOT)
        notes = read_notes((ROOT / "CHANGELOG.md").read_text(), version)
        pins = constraints.read_file()
        check_tree(ROOT)
        check_tag(ROOT, version)
    except (NotReady, constraints.Stale) as error:
        print(f"Not ready for a release: {error}", file=sys.stderr)
        return 1
    if options.check:
        print(f"Ready for the release {version}.")
        return 0
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    (options.output / NOTES).write_text(notes)
    try:
        build_all(ROOT, version, pins, options.output)
    except NotReady as error:
        print(f"Not ready for a release: {error}", file=sys.stderr)
        return 1
    for path in sorted(options.output.iterdir()):
        print(path)
    tag = f"git tag --annotate --cleanup=verbatim --file {options.output / NOTES} v{version}"
    print(f"Next: {tag} && git push origin v{version}, and attach these files to the release.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
