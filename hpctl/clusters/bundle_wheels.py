"""The wheels that a node needs to install hpctl without a network, and whether a bundle has them.

pip reads environment markers (`python_version < "3.11"`) for the Python that it runs on, whatever
`--python-version` says (pip 26, "pip download"): what a wheel needs there is asked for here.
"""

import base64
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import HeaderParser
from itertools import chain
from pathlib import Path

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from hpctl.clusters import bundle
from hpctl.clusters.bundle import PYTHON, WHEELS
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError

FILE = "target.json"
VERSION = re.compile(r"3\.\d{1,3}")
DEFAULT_PYTHON = "3.10"
"""Of Ubuntu 22.04, which HyperPod's Slurm AMIs are."""
GLIBC_MINOR = 35
"""Of Ubuntu 22.04: 2.35."""


class WheelTargetPlatform(Struct, frozen=True):
    """The Python (`3.10`) and the machine (`x86_64`) that wheels are for."""

    python: str = DEFAULT_PYTHON
    machine: str = "x86_64"

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"

    def tags(self) -> frozenset[Tag]:
        """Return all that its pip takes."""
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
        """Return what markers are asked about."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.12",
            "implementation_version": f"{self.python}.12",
            "platform_machine": self.machine,
            "extra": "",
        }


class UnmetWheelRequirement(Struct, frozen=True):
    """A requirement that no wheel meets, and why."""

    requirement: str
    why: str


def read_bundle_wheel_target_platform(bundle: Path) -> WheelTargetPlatform:
    """Return what a bundle says that its wheels are for. Raises ValueError, TypeError."""
    path = bundle / FILE
    text = json.loads(path.read_text()) if path.is_file() else {}
    target = WheelTargetPlatform(**text)
    if not VERSION.fullmatch(str(target.python)):
        raise ValueError(f"{target.python!r} is not of the form 3.10")
    return target


def find_python_version_in_archive(archive: Path) -> str:
    """Return the version of the Python in an archive, by its library's folder; "" where it has
    none."""
    try:
        with tarfile.open(archive) as packed:
            parts = set(chain.from_iterable(name.split("/") for name in packed.getnames()))
    except (tarfile.TarError, OSError, EOFError):
        return ""
    found = [part for part in parts if part.startswith("python3.") and part[8:].isdigit()]
    return max(found, key=len, default="").removeprefix("python")


def find_bundle_wheel_problems(bundle: Path) -> Iterator[tuple[str, str]]:
    """Place and reason of whatever keeps hpctl from being installed from a bundle's wheels."""
    try:
        target = read_bundle_wheel_target_platform(bundle)
    except (ValueError, TypeError) as error:
        yield FILE, f"says no Python: {error}"
        return
    packed = find_python_version_in_archive(bundle / PYTHON) if (bundle / PYTHON).is_file() else ""
    if packed and packed != target.python:
        yield PYTHON, f"has Python {packed}, and the wheels are for {target.python}"
    for lack in find_unmet_wheel_requirements(bundle / WHEELS, target):
        yield WHEELS, lack.why


def find_unmet_wheel_requirements(
    house: Path, target: WheelTargetPlatform
) -> list[UnmetWheelRequirement]:
    """Return what hpctl and pip need there, and theirs in turn, that no wheel of a directory
    gives."""
    wheels = _WheelDirectory(house, target)
    todo, seen, found = (
        [("the bundle", "hpctl"), ("the bundle", "pip")],
        set[str](),
        list[UnmetWheelRequirement](),
    )
    while todo:
        whose, text = todo.pop()
        if text in seen:
            continue
        seen.add(text)
        need = Requirement(text)
        name, why = wheels.best(need)
        if why:
            found.append(
                UnmetWheelRequirement(text, f"{whose} needs {need.name}{need.specifier}: {why}")
            )
        else:
            todo += [(name, more) for more in wheels.needs(name)]
    return sorted(found, key=lambda lack: lack.requirement)


class _WheelDirectory:
    """The wheels of a directory, as one target's pip sees them."""

    def __init__(self, house: Path, target: WheelTargetPlatform) -> None:
        self._house, self._target, self._tags = house, target, target.tags()
        self._names: dict[str, list[tuple[Version, frozenset[Tag], str]]] = {}
        for path in sorted(house.glob("*.whl")):
            try:
                name, version, _, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue  # pip does not see it either
            self._names.setdefault(name, []).append((version, tags, path.name))

    def best(self, need: Requirement) -> tuple[str, str]:
        """Return the wheel that meets a requirement, or why there is none."""
        why = "no wheel of it is there"
        for version, tags, name in sorted(
            self._names.get(canonicalize_name(need.name), []), reverse=True, key=lambda one: one[0]
        ):
            python = SpecifierSet(self._load_wheel_metadata(name).get("Requires-Python") or "")
            if not need.specifier.contains(version, prereleases=True):
                why = f"{name} is another version"
            elif tags.isdisjoint(self._tags) or not python.contains(f"{self._target.python}.12"):
                why = f"{name} is not for {self._target}"
            else:
                return name, ""
        return "", why

    def needs(self, name: str) -> Iterator[str]:
        """Yield what a wheel requires on the target, without extras."""
        for line in self._load_wheel_metadata(name).get_all("Requires-Dist") or ():
            try:
                need = Requirement(line)
            except InvalidRequirement:
                continue
            if need.marker is None or need.marker.evaluate(self._target.markers()):
                yield f"{need.name}{need.specifier}"

    def _load_wheel_metadata(self, name: str) -> Message:
        return _read_wheel_metadata(self._house / name)


def _read_wheel_metadata(path: Path) -> Message:
    """Return a wheel's; nothing of a file that is none."""
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            return HeaderParser().parsestr(wheel.read(name).decode(errors="replace"))
    except (zipfile.BadZipFile, OSError, StopIteration):
        return Message()


PLATFORMS = {
    "x86_64": ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"),
    "aarch64": ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"),
}
"""Ubuntu 20.04's glibc is 2.31: it takes all."""

DOWNLOAD_S = 900.0
ROUNDS = 4


def list_wheels(directory: Path) -> tuple[Path, ...]:
    """Return the wheels of a directory. Raises HpctlError where it has none."""
    wheels = tuple(sorted(directory.glob("*.whl")))
    if not wheels:
        raise HpctlError(
            f"the directory {directory} has no Python wheels", "name a directory with *.whl files"
        )
    return wheels


def download_wheels_with_dependencies(
    house: Path,
    target: WheelTargetPlatform,
    extras: Sequence[str] = (),
    constraints: Path | None = None,
) -> None:
    """Fill a directory with hpctl, pip and all that they need on the nodes.

    By pip and its settings on this machine. hpctl's own wheel is that of this very installation.
    `constraints` is a file of pip's; its markers are evaluated for the Python that runs this.
    Raises HpctlError with pip's last words.
    """
    house.mkdir(parents=True, exist_ok=True)
    own = _build_hpctl_wheel(house)
    wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
    platforms: list[str] = []
    for name in PLATFORMS[target.machine]:
        platforms += ["--platform", name]
    args = [
        *("download", "--dest", str(house), "--find-links", str(house), "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", target.python, *platforms),
    ]
    if constraints is not None:
        args += ["--constraint", str(constraints)]
    _run_pip([*args, wanted, "pip"])
    # pip has read markers for the Python that it runs on: what others need comes in further rounds.
    for _ in range(ROUNDS):
        missing = [lack.requirement for lack in find_unmet_wheel_requirements(house, target)]
        if not missing:
            return
        _run_pip([*args, *missing])


def _run_pip(args: list[str]) -> None:
    command = [sys.executable, *SAFE_PATH, "pip", "--no-input", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *args, "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HpctlError(
            f"pip did not finish downloading the wheels within {DOWNLOAD_S:.0f} s",
            "use wheels on disk: --wheelhouse DIR",
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise HpctlError(
            f"the command pip {args[0]} failed: {lines[-1] if lines else 'it gave no reason'}",
            "fix the cause in the message, or download the wheels on another machine and use "
            "--wheelhouse DIR",
        )


def copy_wheels_of_installed_packages(target: Path, python: str) -> None:
    """Fill a directory with the very wheels that are installed here, hpctl's and pip's among them.

    No network, and the versions that this hpctl was tried with; for nodes of this machine's kind.
    Raises HpctlError where they would not fit the node's Python.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != here:
        raise HpctlError(
            f"cannot copy this installation's packages: they are for Python {here}, but the nodes "
            f"have Python {python}",
            "use --wheels to download packages for the nodes' Python",
        )
    target.mkdir(parents=True, exist_ok=True)
    needed = _read_wheel_metadata(_build_hpctl_wheel(target)).get_all("Requires-Dist") or []
    copy_wheels_with_dependencies(["pip", *_list_required_packages(needed)], target)


def copy_wheels_with_dependencies(names: Sequence[str], target: Path) -> None:
    """Fill a directory with the wheels of installed packages and of all that they need."""
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        key = canonicalize_name(name)
        if key in seen:
            continue
        seen.add(key)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a marker that is not for this machine
        repack_installed_wheel(found, target)
        todo += _list_required_packages(found.requires or [])


def _list_required_packages(requirements: Sequence[str]) -> list[str]:
    """The names that are needed whatever extras are chosen."""
    plain = (line for line in requirements if "extra ==" not in line)
    return [match[0] for line in plain if (match := re.match(r"[\w.-]+", line))]


def _build_hpctl_wheel(target: Path) -> Path:
    """hpctl's wheel: packed again from what is installed, or built from the source tree."""
    try:
        found = importlib.metadata.distribution("hpctl")
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is not None and any(str(file) == "hpctl/__init__.py" for file in found.files or ()):
        return repack_installed_wheel(found, target)
    source = bundle.find_lifecycle_script_directory().parent
    _run_pip(["wheel", "--no-deps", "--wheel-dir", str(target), str(source)])
    return next(iter(sorted(target.glob("hpctl-*.whl"))))


def repack_installed_wheel(found: importlib.metadata.Distribution, target: Path) -> Path:
    """Rebuild the wheel of an installed distribution, file by file, without what pip generates."""
    info = next(f.parts[0] for f in found.files or () if f.parts[0].endswith(".dist-info"))
    skipped = {f"{info}/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")}
    tags = re.findall(r"(?m)^Tag: (\S+)-(\S+)-(\S+)\s*$", found.read_text("WHEEL") or "")
    # As its file was called: each part lists its values once, `py2.py3-none-any`.
    tag = "-".join(".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True))
    path = target / f"{info.removesuffix('.dist-info')}-{tag or 'py3-none-any'}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(found.files or (), key=str):
            name = str(file)
            if name in skipped or ".." in file.parts or "__pycache__" in file.parts:
                continue
            content = file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}")
            _add_file_to_wheel(wheel, name, content)
        _add_file_to_wheel(
            wheel, f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
        )
    return path


def _add_file_to_wheel(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without the time of day: the same installation gives the same wheel, and the same digest.
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)
