"""A lifecycle bundle: the scripts of every node, what they need without a network, a MANIFEST.

MANIFEST is what `sha256sum` writes and checks, so that a node needs nothing else to verify it. The
bundle's digest is that of its MANIFEST; the same content gives the same digest anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctl.clusters import shipped
from hpctl.errors import HpctlError

MANIFEST = "MANIFEST"
ENTRY_POINTS = ("on_create.sh", "on_init_complete.sh")
WHEELS = "wheels"
PYTHON = "python.tar.gz"
_LEFT_OUT = ("__pycache__", ".git", ".DS_Store", MANIFEST)


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file: its path in the bundle, bytes and SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it lies in a directory."""

    directory: Path
    files: tuple[BundleFile, ...]

    @property
    def manifest(self) -> str:
        """The text of MANIFEST."""
        return "".join(f"{file.sha256}  {file.path}\n" for file in self.files)

    @property
    def digest(self) -> str:
        """Which bundle this is."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def wheels(self) -> tuple[str, ...]:
        """The names of the wheels in it."""
        inside = (file.path for file in self.files if file.path.startswith(f"{WHEELS}/"))
        return tuple(path.removeprefix(f"{WHEELS}/") for path in inside)


def lay(
    target: Path,
    config: Path | None = None,
    additions: Sequence[Path] = (),
    wheels: Sequence[Path] = (),
    python: Path | None = None,
    made_for: Mapping[str, str] | None = None,
) -> None:
    """Put a bundle's files into an empty directory.

    `additions` are files and directories for its top: provisioning_parameters.json,
    shared_users.txt, site.d, debs, hpctl.yaml. `made_for` is what the wheels are for, in the words
    of bundle_fit.Target. Raises HpctlError.
    """
    _copy_tree(shipped.lifecycle_scripts(), target)
    _copy_tree(shipped.slurm_plugins(), target / "slurm_plugins")
    for source in additions:
        if source.is_dir():
            _copy_tree(source, target / source.resolve().name)
        else:
            _copy(source, target / source.name)
    if config is not None:
        _copy(config, target / "config.json")
    for wheel in wheels:
        _copy(wheel, target / WHEELS / wheel.name)
    if wheels and made_for:
        (target / "target.json").write_text(json.dumps(made_for) + "\n")
    if python is not None:
        _copy(python, target / PYTHON)


def sign(directory: Path) -> Bundle:
    """Write the MANIFEST of what lies in a directory."""
    bundle = Bundle(directory, tuple(_files(directory)))
    (directory / MANIFEST).write_text(bundle.manifest)
    return bundle


def read(directory: Path) -> Bundle:
    """A bundle that is as its MANIFEST says. Raises HpctlError with every file that is not."""
    try:
        signed = (directory / MANIFEST).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise HpctlError(
            f"{directory} is no bundle: it has no {MANIFEST}", "make one: hpctl lifecycle bundle"
        ) from error
    bundle = Bundle(directory, tuple(_files(directory)))
    if bundle.manifest != signed:
        before = _entries(signed)
        now = {file.path: file.sha256 for file in bundle.files}
        changed = sorted(p for p in before.keys() | now.keys() if before.get(p) != now.get(p))
        raise HpctlError(
            f"{directory} is not as its {MANIFEST} says: {', '.join(changed[:10]) or 'its order'}",
            "make it again: hpctl lifecycle bundle",
        )
    return bundle


def replaceable(target: Path) -> None:
    """Raise HpctlError where writing a bundle there would destroy something else."""
    if target.is_dir() and ((target / MANIFEST).exists() or not any(target.iterdir())):
        return
    if target.exists():
        raise HpctlError(f"{target} is there and is no bundle", "name another place in --output")


def replace(made: Path, target: Path) -> None:
    """Put a bundle that was made beside its place into it."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _entries(manifest: str) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in manifest.splitlines() if "  " in line)
    return {path: digest for digest, path in pairs}


def _files(directory: Path) -> Iterator[BundleFile]:
    paths = (p for p in directory.rglob("*") if p.is_file() and not _left_out(p, directory))
    for path in sorted(paths, key=lambda one: one.relative_to(directory).as_posix()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        yield BundleFile(path.relative_to(directory).as_posix(), path.stat().st_size, digest)


def _left_out(path: Path, top: Path) -> bool:
    return any(part in _LEFT_OUT for part in path.relative_to(top).parts)


def _copy_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not _left_out(path, source):
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise HpctlError(
            f"{source} cannot be copied to {target}: {error.strerror}",
            "check both paths, and the room at the second",
        ) from error
    # S3 forgets modes, and nothing here depends on them; a bundle tried in place has them.
    target.chmod(0o755 if target.suffix == ".sh" else 0o644)
