"""`python -m tests.gpu.carry`: gather what must travel to a GPU machine that has no network.

The machine has Python 3.12 with torch, JAX and their dependencies, and neither Slurm nor hpctl. The
folder gets wheels for it and one archive of Slurm, taken from this machine's Debian packages. pip
and apt are used as they are configured here.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/gpu-carry"
WHEELS, SLURM, KEY = "wheels", "slurm.tar.gz", "key.json"
LARGEST_BYTES = 60 << 20

PYTHON = "3.12"
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(17, 40)))
"""Of Ubuntu 24.04, whose glibc is 2.39."""
TOOLS = frozenset({"hypothesis", "py-spy", "pytest", "pytest-timeout"})
"""Taken from hpctl's own extras, beside what hpctl itself requires; tests/conftest.py imports the
first."""
RESILIENCY = ("nvidia-resiliency-ext", "httpx", "defusedxml", "psutil")
"""NVRx, and what its in-process part imports that torch's machine may lack. Its other requirements
(gRPC, FastAPI) serve parts that hpctl does not use, and take 15 MB."""
LEFT_OUT = frozenset({"numpy", "torch"})
"""The machine has them, built for its GPU. moto does not travel either: no part needs it, and it
takes 15 MB with its dependencies."""

SERVICES = frozenset({"ec2", "fsx", "iam", "logs", "s3", "sagemaker", "sts"})
"""Whose models botocore's wheel keeps: 400 others take 14 MB."""

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "iproute2",
)
LIBRARIES = "opt/hpctl-proof/lib"
"""Where the archive has the libraries that the packages' programs need; run.sh tells ldconfig."""
NOT_PACKED = (
    "/etc/default",
    "/etc/init.d",
    "/etc/logrotate.d",
    "/usr/share/doc",
    "/usr/share/lintian",
    "/usr/share/locale",
    "/usr/share/man",
)
OF_LIBC = re.compile(
    r"/(ld-linux|libc|libdl|libgcc_s|libm|libpthread|libresolv|librt|libstdc\+\+)[-.]"
)
"""The machine's own, which are newer than Debian 12's, serve here as everywhere."""


class TooLarge(Exception):
    """The folder is larger than what may travel; the text lists the largest pieces."""


def main(words: Sequence[str]) -> int:
    """Fill the folder; quick when nothing has changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.carry", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--verify", action="store_true", help="only say whether hpctl's wheel is of this tree"
    )
    options = parser.parse_args(words)
    folder = options.folder
    if options.verify:
        return 0 if has_wheel_of_tree(folder) else 1
    folder.mkdir(parents=True, exist_ok=True)
    keys = _read_keys(folder)
    wanted = {
        "own": _hash_files(_own_files()),
        "wheels": _hash_files([ROOT / "pyproject.toml", Path(__file__)]),
        "slurm": _hash_text(_package_versions(), Path(__file__).read_text()),
    }
    wheels = folder / WHEELS
    if keys.get("own") != wanted["own"]:
        _build_own_wheels(wheels)
    if keys.get("wheels") != wanted["wheels"]:
        _fetch_wheels(wheels)
    if keys.get("slurm") != wanted["slurm"] or not (folder / SLURM).exists():
        pack_slurm(folder / SLURM)
    (folder / KEY).write_text(json.dumps(wanted, indent=1) + "\n")
    try:
        print(check_size(folder))
    except TooLarge as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def has_wheel_of_tree(folder: Path) -> bool:
    """Return whether hpctl's wheel in the folder was built from the files of this tree."""
    return _read_keys(folder).get("own") == _hash_files(_own_files())


def check_size(folder: Path, largest: int = LARGEST_BYTES) -> str:
    """Return the folder's size in words. Raises TooLarge."""
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    total = sum(sizes.values())
    report = f"{folder}: {total / (1 << 20):.1f} MiB in {len(sizes)} files"
    if total <= largest:
        return report
    by_size = sorted(sizes.items(), key=lambda item: -item[1])[:10]
    pieces = "".join(f"\n  {size / (1 << 20):6.1f} MiB  {name}" for name, size in by_size)
    raise TooLarge(f"{report}; at most {largest >> 20} MiB may travel. The largest:{pieces}")


def _read_keys(folder: Path) -> dict[str, str]:
    try:
        keys = json.loads((folder / KEY).read_text())
    except (OSError, ValueError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _hash_text(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _hash_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _own_files() -> list[Path]:
    """Return what hpctl's wheel is made of."""
    folders = [ROOT / name for name in ("hpctl", "lifecycle_scripts", "slurm_plugins")]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in found if "__pycache__" not in path.parts]
    return [*kept, ROOT / "pyproject.toml"]


def _pip(*words: str) -> None:
    """Run pip. Raises SystemExit with what it printed."""
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *words, "--quiet"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        raise SystemExit(f"pip {words[0]}: {done.stdout}{done.stderr}")


def _build_own_wheels(wheels: Path) -> None:
    wheels.mkdir(exist_ok=True)
    for old in wheels.glob("hpctl*.whl"):
        old.unlink()
    sandbox = ROOT / "hpctl/sandbox"
    _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT), str(sandbox))


def _fetch_wheels(wheels: Path) -> None:
    """Fill the folder with what hpctl and the tools require, directly and in turn.

    Each wheel is fetched without its dependencies, because pip would evaluate their markers for
    the Python that runs it and fetch 3 GB of CUDA for torch.
    """
    for old in wheels.glob("*.whl"):
        if not old.name.startswith("hpctl"):
            old.unlink()
    own = next(wheels.glob("hpctl-*.whl"))
    needed = {name: SpecifierSet() for name in RESILIENCY}
    needed = merge_needs(needed, read_requirements(read_metadata(own), TOOLS))
    while missing := find_unmet(wheels, needed):
        _download(wheels, missing)
        for wheel in sorted(wheels.glob("*.whl")):
            name = canonicalize_name(parse_wheel_filename(wheel.name)[0])
            if name not in ("hpctl", "nvidia-resiliency-ext"):
                needed = merge_needs(needed, read_requirements(read_metadata(wheel)))
    for wheel in wheels.glob("botocore-*.whl"):
        trim_botocore(wheel)


def _download(wheels: Path, requirements: Sequence[str]) -> None:
    names = {canonicalize_name(Requirement(text).name) for text in requirements}
    for old in wheels.glob("*.whl"):
        if canonicalize_name(parse_wheel_filename(old.name)[0]) in names:
            old.unlink()
    target = ["--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:"]
    for platform in PLATFORMS:
        target += ["--platform", platform]
    _pip("download", "--no-deps", "--dest", str(wheels), *target, *requirements)


def read_metadata(wheel: Path) -> Message:
    """Return a wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode(errors="replace"))


def read_requirements(
    metadata: Message, extra_names: frozenset[str] = frozenset()
) -> dict[str, SpecifierSet]:
    """Return what a wheel requires on the machine, by name.

    `extra_names` are taken from whatever extra names them; no other extra counts.
    """
    markers = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.3",
        "implementation_version": f"{PYTHON}.3",
        "platform_machine": "x86_64",
    }
    extras = metadata.get_all("Provides-Extra") or []
    found: dict[str, SpecifierSet] = {}
    for line in metadata.get_all("Requires-Dist") or []:
        need = Requirement(line)
        name = canonicalize_name(need.name)
        plain = need.marker is None or need.marker.evaluate({**markers, "extra": ""})
        in_extra = name in extra_names and any(
            need.marker is None or need.marker.evaluate({**markers, "extra": extra})
            for extra in extras
        )
        if (plain or in_extra) and name not in LEFT_OUT:
            found[name] = found.get(name, SpecifierSet()) & need.specifier
    return found


def merge_needs(
    known: dict[str, SpecifierSet], more: dict[str, SpecifierSet]
) -> dict[str, SpecifierSet]:
    """Return both; what both name must meet both."""
    merged = dict(known)
    for name, specifier in more.items():
        merged[name] = merged.get(name, SpecifierSet()) & specifier
    return merged


def find_unmet(wheels: Path, needed: dict[str, SpecifierSet]) -> list[str]:
    """Return the requirements that no wheel of a folder meets."""
    present = {}
    for wheel in wheels.glob("*.whl"):
        name, version, *_ = parse_wheel_filename(wheel.name)
        present[canonicalize_name(name)] = version
    return sorted(
        f"{name}{specifier}"
        for name, specifier in needed.items()
        if name not in present or not specifier.contains(present[name], prereleases=True)
    )


def keep_botocore_file(name: str, services: frozenset[str] = SERVICES) -> bool:
    """Return whether a file of botocore's wheel travels: all but the models of other services."""
    parts = name.split("/")
    is_model = parts[:2] == ["botocore", "data"] and len(parts) > 3
    return not is_model or parts[2] in services


def trim_botocore(wheel: Path) -> None:
    """Repack botocore's wheel with the models of SERVICES alone."""
    smaller = wheel.with_suffix(".part")
    with (
        zipfile.ZipFile(wheel) as before,
        zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as after,
    ):
        for entry in before.infolist():
            if not keep_botocore_file(entry.filename):
                continue
            content = before.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                kept = [line for line in lines if keep_botocore_file(line.split(",")[0])]
                content = "".join(kept).encode()
            after.writestr(entry, content, zipfile.ZIP_DEFLATED)
    smaller.replace(wheel)


def _package_versions() -> str:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def pack_slurm(archive: Path) -> None:
    """Pack the files of PACKAGES and the libraries that they need, as below /.

    Raises SystemExit where a package is missing.
    """
    versions = _package_versions()
    missing = [name for name in PACKAGES if not re.search(rf"(?m)^{name} .* installed$", versions)]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; see `make setup`")
    listed = subprocess.run(
        ["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [Path(line) for line in dict.fromkeys(listed) if is_packed(line)]
    files += _find_alternatives(files)
    libraries = _find_libraries(files)
    with tempfile.TemporaryDirectory() as room:
        tree = Path(room)
        for file in files:
            _copy(file, tree / str(file).lstrip("/"))
        for library in libraries:
            target = tree / LIBRARIES / library.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library.resolve(), target)
        _write_archive(tree, archive)


def is_packed(line: str) -> bool:
    """Return whether a line of `dpkg -L` is a file that the machine needs."""
    return line.startswith("/") and not line.startswith(NOT_PACKED) and os.path.isfile(line)


def _find_alternatives(files: Sequence[Path]) -> list[Path]:
    """Return the links through /etc/alternatives to packed files, which no package lists: Debian's
    /usr/sbin/slurmctld is one to slurmctld-wlm."""
    packed = set(files)
    folders = {file.parent for file in files if file.parent.name in ("bin", "sbin")}
    return [
        link
        for folder in sorted(folders)
        for link in sorted(folder.iterdir())
        if _leads_through_alternatives(link) and link.resolve() in packed and link not in packed
    ]


def _leads_through_alternatives(link: Path) -> bool:
    return link.is_symlink() and os.readlink(link).startswith("/etc/alternatives")


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if _leads_through_alternatives(file):
        target.symlink_to(file.resolve())
    elif file.is_symlink():
        target.symlink_to(os.readlink(file))
    else:
        shutil.copy2(file, target)


def _find_libraries(files: Sequence[Path]) -> list[Path]:
    """Return the shared libraries that programs and plugins are linked with, without libc's."""
    own = {str(file.resolve()) for file in files}
    found: set[str] = set()
    for file in files:
        if not (os.access(file, os.X_OK) or ".so" in file.name):
            continue
        done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
        for library in re.findall(r"=> (/\S+)", done.stdout):
            if not OF_LIBC.search(library) and str(Path(library).resolve()) not in own:
                found.add(library)
    return [Path(library) for library in sorted(found)]


def _write_archive(tree: Path, archive: Path) -> None:
    """Write a tree as a tar whose bytes depend on its content alone."""

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = 0
        return entry

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as out:
        for path in sorted(tree.rglob("*")):
            if not path.is_dir() or path.is_symlink():
                name = str(path.relative_to(tree))
                out.add(path, name, recursive=False, filter=without_owner)
    archive.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
