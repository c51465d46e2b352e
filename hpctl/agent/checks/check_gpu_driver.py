"""The NVIDIA driver: a call that hangs, versions that do not match, GPUs that are missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import (
    CannotTell,
    DriverHung,
    Functions,
    Limits,
    Machine,
    NotHere,
    Observation,
)
from hpctl.agent.checks.gpu_sweep import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    listed,
    newest,
    said,
)
from hpctl.agent.machine import pci_gpus
from hpctl.agent.nvml.snapshot import NvmlError
from hpctl.core.model import Verdict

# --- gpu.hung ----------
# A call into the driver that does not come back: itself a fault of the node, not of the agent.


@dataclass(frozen=True, slots=True)
class Sample:
    """For how long an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def gather_hung(machine: Machine) -> Sample:
    """Whether the NVML child answers. Raises NotHere, and CannotTell while it starts."""
    try:
        newest(machine)
    except DriverHung as hung:
        return Sample(hung.overdue_s, hung.call)
    return Sample()


def judge_hung(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Hung from the limit on."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield Observation("hung", detail=f"the driver has not answered {what}", evidence=what)


# --- gpu.count ----------
# How many GPUs the PCI bus has, the driver lists, and the machine should have.


@dataclass(frozen=True, slots=True)
class CountSample:
    """The three counts; None is not known."""

    pci: tuple[str, ...]
    nvml: tuple[str, ...] | None
    expected: int | None


def gather_count(machine: Machine) -> CountSample:
    """Count. NotHere where nobody knows of a GPU."""
    pci, expected = pci_gpus(machine.root), machine.expected.gpus
    nvml: tuple[str, ...] | None
    try:
        nvml = tuple(gpu.device for gpu in listed(machine))
    except NotHere:
        # Without a driver the machine has none to use, which matters where it should have some.
        nvml = () if expected else None
    except CannotTell:
        nvml = None
    if not pci and not nvml and not expected:
        raise NotHere("no GPU on the PCI bus, and none expected")
    return CountSample(pci, nvml, expected)


def judge_count(
    seen: CountSample, before: CountSample | None, limits: Limits
) -> Iterable[Observation]:
    """The first mismatch: too few on the bus, then too few with the driver, then too many."""
    pci, nvml, expected = len(seen.pci), seen.nvml, seen.expected
    if expected is not None and pci < expected:
        yield Observation("pci", detail=f"{pci} GPUs on the PCI bus, {expected} expected")
    elif nvml is not None and len(nvml) < max(pci, expected or 0):
        missing = ", ".join(sorted(set(seen.pci) - set(nvml))) if nvml else "all"
        detail = f"NVML lists {len(nvml)} of {max(pci, expected or 0)} GPUs; missing: {missing}"
        yield Observation("nvml", detail=detail)
    elif expected is not None and pci > expected:
        detail = f"{pci} GPUs on the PCI bus, only {expected} expected"
        yield Observation("more", verdict=Verdict.WARN, detail=detail)


# --- gpu.driver ----------
# The NVIDIA driver itself: missing, of another version than its library, or not answering right.
#
# A mismatch that NVML reports (error 18) is certain: no new process can use a GPU. A library on
# disk that is newer than the loaded kernel module says the same of the next process, before one is
# tried.

_MODULE = "/proc/driver/nvidia/version"
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
# `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)$")
_OTHERS_CHECKS = (GPU_IS_LOST, RESET_REQUIRED)


@dataclass(frozen=True, slots=True)
class DriverSample:
    """`error` is NVML's own; `module` and `library` are versions, empty where unknown."""

    gpus: int
    error: NvmlError | None
    no_driver: str
    module: str
    library: str


def gather_driver(machine: Machine) -> DriverSample:
    """Ask NVML, the kernel module and the library's file. NotHere without a GPU or a driver."""
    gpus, no_driver = len(pci_gpus(machine.root)), ""
    error: NvmlError | None = None
    try:
        swept = newest(machine)
        error, gpus = swept.error, max(gpus, len(swept.gpus))
    except NotHere as absent:
        no_driver = str(absent)
    except DriverHung:
        raise
    except CannotTell:
        # NVML's child is not ready: the files may still tell.
        pass
    if error is not None and error.code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        no_driver, error = said(error), None
    module = _module(machine)
    if not gpus and error is None and (no_driver or not module):
        raise NotHere(no_driver or "no NVIDIA GPU")
    return DriverSample(gpus, error, no_driver, module, _library(machine))


def judge_driver(
    seen: DriverSample, before: DriverSample | None, limits: Limits
) -> Iterable[Observation]:
    """The driver's trouble, the most certain first; one observation at most."""
    error = seen.error
    if error is not None and error.code == LIB_RM_VERSION_MISMATCH:
        versions = f"module {seen.module or 'unknown'}, library {seen.library or 'unknown'}"
        yield Observation("mismatch", detail=f"{said(error)}: {versions}")
    elif error is not None and error.code not in _OTHERS_CHECKS:
        yield Observation("error", verdict=Verdict.WARN, detail=said(error))
    elif seen.no_driver and seen.gpus:
        detail = f"{seen.gpus} GPUs on the PCI bus and no driver: {seen.no_driver}"
        yield Observation("missing", verdict=Verdict.WARN, detail=detail)
    elif seen.module and seen.library and seen.module != seen.library:
        detail = f"module {seen.module} is loaded, the library on disk is {seen.library}"
        yield Observation("upgraded", verdict=Verdict.WARN, detail=detail)


def _module(machine: Machine) -> str:
    try:
        match = _VERSION.search(machine.text(_MODULE) + " ")
    except (NotHere, CannotTell):
        return ""
    return match[1] if match else ""


def _library(machine: Machine) -> str:
    """The version that the loader's name `libnvidia-ml.so.1` leads to."""
    for folder in _LIBRARIES:
        link = machine.path(f"{folder}/libnvidia-ml.so.1")
        try:
            match = _LIBRARY.search(str(link.readlink()))
        except OSError:
            # Not here, or no link: the next folder, else not known.
            continue
        if match:
            return match[1]
    return ""


CHECKS = {
    "gpu.hung": Functions(gather_hung, judge_hung),
    "gpu.count": Functions(gather_count, judge_count),
    "gpu.driver": Functions(gather_driver, judge_driver),
}
"""What the runner calls, by the check's name."""
