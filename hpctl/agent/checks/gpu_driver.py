"""The NVIDIA driver itself: missing, of another version than its library, or not answering right.

A mismatch that NVML reports (error 18) is certain: no new process can use a GPU. A library on disk
that is newer than the loaded kernel module says the same of the next process, before one is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import CannotTell, Limits, Machine, NotHere, Observation
from hpctl.agent.checks.gpu_count import pci_gpus
from hpctl.agent.checks.sweep import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    newest,
    said,
)
from hpctl.agent.nvml.snapshot import DriverHung, NvmlError
from hpctl.core.model import Verdict

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
class Sample:
    """`error` is NVML's own; `module` and `library` are versions, empty where unknown."""

    gpus: int
    error: NvmlError | None
    no_driver: str
    module: str
    library: str


def gather(machine: Machine) -> Sample:
    """Ask NVML, the kernel module and the library's file. NotHere without a GPU or a driver."""
    gpus, no_driver = len(pci_gpus(machine)), ""
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
    return Sample(gpus, error, no_driver, module, _library(machine))


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
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
