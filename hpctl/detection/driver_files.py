"""Where NVIDIA's driver keeps its library and nvidia-smi: the one answer for the whole agent.

Sources: the driver's packages use the system's folders; NVIDIA's container images and Google's GPU
machines use /usr/local/nvidia (an H200 machine with driver 580.159.04 did); NVIDIA's GPU operator
puts a driver container's root at /run/nvidia/driver; NVIDIA's device plug-in and container toolkit
take that root from NVIDIA_DRIVER_ROOT.

The agent runs as root and loads what it finds here. So a file counts only where only root can have
written it, by the same rules as plug-ins (`hpctl.detection.outside.trust`).
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from hpctl.detection.outside import trust

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
SMI = "nvidia-smi"
DRIVER_ROOT = "NVIDIA_DRIVER_ROOT"
"""The environment variable that names the driver's root."""

_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
_LIBRARY_VERSION = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)$")
REFUSED: set[Path] = set()


class NvidiaDriverLocation(Struct, frozen=True):
    """One place of a driver: the folder of its programs, and those where its libraries may be."""

    programs: Path
    libraries: tuple[Path, ...]


class NvidiaDriverProgram(Struct, frozen=True):
    """A program, and the environment that it needs to find the driver's libraries."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def list_nvidia_driver_locations(
    root: Path, env: Mapping[str, str] = os.environ
) -> Iterator[NvidiaDriverLocation]:
    """Yield where to look, in order: what the environment names, the system, then the others."""
    named = env.get(DRIVER_ROOT, "").strip("/")
    if named:
        yield _make_system_driver_location(root / named)
    yield _make_system_driver_location(root)
    own = root / "usr/local/nvidia"
    yield NvidiaDriverLocation(own / "bin", (own / "lib64", own / "lib"))
    yield _make_system_driver_location(root / "run/nvidia/driver")


def find_nvml_library(root: Path, env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the driver's libnvidia-ml.so.1; None where no trusted one is found."""
    for place in list_nvidia_driver_locations(root, env):
        found = _find_trusted_nvml_library(place)
        if found is not None:
            return found
    return None


def find_nvidia_smi(root: Path, env: Mapping[str, str] = os.environ) -> NvidiaDriverProgram | None:
    """Return nvidia-smi; None where no trusted one is found."""
    for place in list_nvidia_driver_locations(root, env):
        path = place.programs / SMI
        if not _is_trusted_driver_file(path):
            continue
        library = _find_trusted_nvml_library(place)
        in_system = place.programs == root / "usr/bin"
        if library is None or in_system:
            return NvidiaDriverProgram(path)
        return NvidiaDriverProgram(path, {"LD_LIBRARY_PATH": str(library.parent)})
    return None


def read_nvml_library_version(root: Path, env: Mapping[str, str] = os.environ) -> str:
    """Return the version that the loader's name of the library leads to; empty where unknown.

    Only the link is read, so that a link to a removed file still shows the version.
    """
    for place in list_nvidia_driver_locations(root, env):
        for folder in place.libraries:
            try:
                match = _LIBRARY_VERSION.search(str((folder / LIBRARY).readlink()))
            except OSError:
                continue  # missing, or not a link
            if match:
                return match[1]
    return ""


def _make_system_driver_location(root: Path) -> NvidiaDriverLocation:
    return NvidiaDriverLocation(
        root / "usr/bin", tuple(root / folder for folder in _LIBRARY_FOLDERS)
    )


def _find_trusted_nvml_library(place: NvidiaDriverLocation) -> Path | None:
    for folder in place.libraries:
        if _is_trusted_driver_file(folder / LIBRARY):
            return folder / LIBRARY
    return None


def _is_trusted_driver_file(path: Path) -> bool:
    """Return whether a file is there and can only be root's; what is refused is logged once."""
    try:
        target = path.resolve(strict=True)
        trouble = (
            trust.explain_untrusted_directory(path.parent)
            or trust.explain_untrusted_directory(target.parent)
            or trust.explain_untrusted_path(target, target.lstat())
        )
    except OSError:
        return False
    if trouble and path not in REFUSED:
        REFUSED.add(path)
        log.warning("%s is not used: %s", path, trouble)
    return not trouble
