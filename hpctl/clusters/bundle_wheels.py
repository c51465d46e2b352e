"""The wheels that a node needs to install hpctl without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hpctl.clusters import shipped
from hpctl.clusters.bundle_fit import Target, lacking
from hpctl.core.compat import SAFE_PATH
from hpctl.errors import HpctlError

PLATFORMS = {
    "x86_64": ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"),
    "aarch64": ("manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"),
}
"""Ubuntu 20.04's glibc is 2.31: it takes all."""

DOWNLOAD_S = 900.0
ROUNDS = 4


def given(directory: Path) -> tuple[Path, ...]:
    """The wheels of a directory. Raises HpctlError where it has none."""
    wheels = tuple(sorted(directory.glob("*.whl")))
    if not wheels:
        raise HpctlError(f"{directory} has no wheels", "name a directory of *.whl files")
    return wheels


def download(house: Path, target: Target, extras: Sequence[str] = ()) -> None:
    """Fill a directory with hpctl, pip and all that they need on the nodes.

    By pip and its settings on this machine. hpctl's own wheel is that of this very installation.
    Raises HpctlError with pip's last words.
    """
    house.mkdir(parents=True, exist_ok=True)
    own = _own(house)
    wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
    platforms = [word for name in PLATFORMS[target.machine] for word in ("--platform", name)]
    words = [
        *("download", "--dest", str(house), "--find-links", str(house), "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", target.python, *platforms),
    ]
    _pip([*words, wanted, "pip"])
    # pip has read markers for the Python that it runs on: what others need comes in further rounds.
    for _ in range(ROUNDS):
        if not (missing := [lack.requirement for lack in lacking(house, target)]):
            return
        _pip([*words, *missing])


def _pip(words: list[str]) -> None:
    command = [sys.executable, *SAFE_PATH, "pip", "--no-input", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *words, "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HpctlError(f"pip took more than {DOWNLOAD_S:.0f} s", "see --wheelhouse") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise HpctlError(
            f"pip {words[0]}: {lines[-1] if lines else 'failed'}",
            "--wheelhouse DIR takes wheels that were fetched elsewhere",
        )


def installed(target: Path, python: str) -> None:
    """Fill a directory with the very wheels that are installed here, hpctl's and pip's among them.

    No network, and the versions that this hpctl was tried with; for nodes of this machine's kind.
    Raises HpctlError where they would not fit the node's Python.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != here:
        raise HpctlError(
            f"what is installed here is for Python {here}, and the nodes have {python}",
            "--wheels fetches the right ones",
        )
    target.mkdir(parents=True, exist_ok=True)
    with_needs(["pip", *_needs(_metadata(_own(target)))], target)


def with_needs(names: Sequence[str], target: Path) -> None:
    """Fill a directory with the wheels of installed packages and of all that they need."""
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a marker that is not for this machine
        repack(found, target)
        todo += _needs(found.requires or [])


def _metadata(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        name = next(n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        lines = file.read(name).decode().partition("\n\n")[0].splitlines()
    head = "Requires-Dist: "
    return [line.removeprefix(head) for line in lines if line.startswith(head)]


def _needs(requirements: Sequence[str]) -> list[str]:
    """The names that are needed whatever extras are chosen."""
    plain = (line for line in requirements if "extra ==" not in line)
    return [match[0] for line in plain if (match := re.match(r"[\w.-]+", line))]


def _own(target: Path) -> Path:
    """hpctl's wheel: packed again from what is installed, or built from the source tree."""
    try:
        found = importlib.metadata.distribution("hpctl")
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is not None and any(str(file) == "hpctl/__init__.py" for file in found.files or ()):
        return repack(found, target)
    source = shipped.lifecycle_scripts().parent
    _pip(["wheel", "--no-deps", "--wheel-dir", str(target), str(source)])
    return next(iter(sorted(target.glob("hpctl-*.whl"))))


def repack(found: importlib.metadata.Distribution, target: Path) -> Path:
    """The wheel that an installed distribution came from, file by file; scripts pip makes anew."""
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
            _add(wheel, name, content)
        _add(wheel, f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode())
    return path


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without the time of day: the same installation gives the same wheel, and the same digest.
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)
