"""Check and build a release: `make release`. CONTRIBUTING.md says what comes before and after it.

The wheels of the three distributions, the Debian packages, the bundle of lifecycle scripts, the
notes and SHA256SUMS lie in `dist/` in the end. Nothing is tagged or published: the last lines name
the commands that do.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "hpctl/client", "hpctl/sandbox")
"""Directories with a pyproject.toml of the same version."""

MACHINES = ("x86_64", "aarch64")
NOTES = "RELEASE_NOTES.md"
MOST_WORDS = 1500
"""A section of the changelog that is longer is not read."""

_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


class NotReady(Exception):
    """The tree is not ready for a release; the text says why and what to do."""


def read_version(root: Path) -> str:
    """Return the version that all projects have. Raises NotReady where they differ."""
    found = {}
    for project in PROJECTS:
        path = root / project / "pyproject.toml"
        match = _VERSION.search(path.read_text())
        if match is None:
            raise NotReady(f'{path.relative_to(root)} has no line `version = "…"`.')
        found[project] = match[1]
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{project}: {version}" for project, version in found.items())
        raise NotReady(f"The projects have different versions ({listed}). Set one version.")
    return found["."]


def read_notes(changelog: str, version: str) -> str:
    """Return the changelog's section of a version, without its heading.

    Raises NotReady where it is missing, undated or too long, or where unreleased lines remain.
    """
    matches = list(_SECTION.finditer(changelog))
    ends = [match.start() for match in matches[1:]] + [len(changelog)]
    sections = {}
    for match, end in zip(matches, ends, strict=True):
        sections[match["name"]] = (match["date"], changelog[match.end() : end].strip())
    if sections.get("Unreleased", ("", ""))[1]:
        raise NotReady(
            f"CHANGELOG.md has lines under [Unreleased]. Move them under [{version}] - DATE."
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


def build_packages(root: Path, output: Path) -> None:
    """Build the wheels and a Debian package for each machine."""
    for machine in MACHINES:
        words = ["debian/build.py", "--machine", machine, "--output", str(output)]
        subprocess.run([sys.executable, *words], cwd=root, check=True)
    for project in PROJECTS[1:]:
        words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
        subprocess.run([sys.executable, *words], cwd=root / project, check=True)


def build_bundle(root: Path, version: str, output: Path) -> None:
    """Pack the bundle of lifecycle scripts, with wheels for x86_64, as one archive."""
    name = f"hpctl-lifecycle-{version}"
    with tempfile.TemporaryDirectory() as room:
        bundle = Path(room) / name
        words = ["cluster", "lifecycle", "bundle", "--wheels", "-o", str(bundle)]
        subprocess.run([sys.executable, "-m", "hpctl", *words], cwd=root, check=True)
        with tarfile.open(output / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(bundle, arcname=name)


def write_sums(output: Path) -> None:
    """Write SHA256SUMS over all files of a directory, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(output.iterdir()):
        if path.name != "SHA256SUMS":
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (output / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    """Build what the words ask for; print what was made and what to do next."""
    parser = argparse.ArgumentParser(prog="tools/release.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the tree is ready")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    try:
        version = read_version(ROOT)
        notes = read_notes((ROOT / "CHANGELOG.md").read_text(), version)
        check_tree(ROOT)
    except NotReady as error:
        print(f"Not ready for a release: {error}", file=sys.stderr)
        return 1
    if options.check:
        print(f"Ready for the release {version}.")
        return 0
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    (options.output / NOTES).write_text(notes)
    build_packages(ROOT, options.output)
    build_bundle(ROOT, version, options.output)
    write_sums(options.output)
    for path in sorted(options.output.iterdir()):
        print(path)
    tag = f"git tag --annotate --cleanup=verbatim --file {options.output / NOTES} v{version}"
    print(f"Next: {tag} && git push origin v{version}, and attach these files to the release.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
