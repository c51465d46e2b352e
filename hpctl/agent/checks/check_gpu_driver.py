"""The NVIDIA driver and what it says of GPUs: hung, mismatched, missing, lost, to be reset."""

import re

from msgspec import Struct

from hpctl.agent.check import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    CannotTell,
    DriverHung,
    Functions,
    Judged,
    Limits,
    Machine,
    NotHere,
    Observation,
    describe,
    fail,
    listed,
    newest,
    sweep,
    warn,
)
from hpctl.agent.driver_files import library_version
from hpctl.agent.machine import pci_gpus
from hpctl.agent.nvml.snapshot import NvmlError, Snapshot
from hpctl.core.faults import rows_of

# --- gpu.hung ----------
# A call into the driver that does not come back: itself a fault of the node, not of the agent.


class Sample(Struct, frozen=True):
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


def judge_hung(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Hung from the limit on."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield fail("hung", "", f"the driver has not answered {what}", what)


# --- gpu.count ----------
# How many GPUs the PCI bus has, the driver lists, and the machine should have.


class CountSample(Struct, frozen=True):
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


def judge_count(seen: CountSample, before: CountSample | None, limits: Limits) -> Judged:
    """The first mismatch: too few on the bus, then too few with the driver, then too many."""
    pci, nvml, expected = len(seen.pci), seen.nvml, seen.expected
    if expected is not None and pci < expected:
        yield fail("pci", "", f"{pci} GPUs on the PCI bus, {expected} expected")
    elif nvml is not None and len(nvml) < max(pci, expected or 0):
        missing = ", ".join(sorted(set(seen.pci) - set(nvml))) if nvml else "all"
        detail = f"NVML lists {len(nvml)} of {max(pci, expected or 0)} GPUs; missing: {missing}"
        yield fail("nvml", "", detail)
    elif expected is not None and pci > expected:
        yield warn("more", "", f"{pci} GPUs on the PCI bus, only {expected} expected")


# --- gpu.driver ----------
# The NVIDIA driver itself: missing, of another version than its library, or not answering right.
#
# A mismatch that NVML reports (error 18) is certain: no new process can use a GPU. A library on
# disk that is newer than the loaded kernel module says the same of the next process, before one is
# tried.

_MODULE = "/proc/driver/nvidia/version"
# `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_OTHERS_CHECKS = (GPU_IS_LOST, RESET_REQUIRED)


class DriverSample(Struct, frozen=True):
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
        no_driver, error = describe(error), None
    module = _module(machine)
    if not gpus and error is None and (no_driver or not module):
        raise NotHere(no_driver or "no NVIDIA GPU")
    return DriverSample(gpus, error, no_driver, module, library_version(machine.root))


def judge_driver(seen: DriverSample, before: DriverSample | None, limits: Limits) -> Judged:
    """The driver's trouble, the most certain first; one observation at most."""
    error = seen.error
    if error is not None and error.code == LIB_RM_VERSION_MISMATCH:
        versions = f"module {seen.module or 'unknown'}, library {seen.library or 'unknown'}"
        yield fail("mismatch", "", f"{describe(error)}: {versions}")
    elif error is not None and error.code not in _OTHERS_CHECKS:
        yield warn("error", "", describe(error))
    elif seen.no_driver and seen.gpus:
        detail = f"{seen.gpus} GPUs on the PCI bus and no driver: {seen.no_driver}"
        yield warn("missing", "", detail)
    elif seen.module and seen.library and seen.module != seen.library:
        detail = f"module {seen.module} is loaded, the library on disk is {seen.library}"
        yield warn("upgraded", "", detail)


def _module(machine: Machine) -> str:
    try:
        match = _VERSION.search(machine.text(_MODULE) + " ")
    except (NotHere, CannotTell):
        return ""
    return match[1] if match else ""


# --- gpu.recovery ----------
# The driver's own recovery action for each GPU (NVML field 230): the first authority.
#
# It is the same word that Xid 154 writes to the kernel's log when it changes; the field is its
# state, so it is also seen by an agent that started later, and it goes when the GPU has recovered.

# NVML_GPU_RECOVERY_ACTION_* of nvml.h.
_NONE = 0
_ACTIONS = {
    1: ("reset", "GPU reset"),
    2: ("reboot", "node reboot"),
    3: ("drain-p2p", "drain peer-to-peer traffic"),
    4: ("drain-and-reset", "drain and reset"),
    5: ("recover-imex", "recover the IMEX domain"),
    6: ("bus-reset", "bus reset"),
    7: ("system-reboot", "system reboot"),
}


def judge_recovery(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """One observation for each GPU for which the driver asks anything."""
    for gpu in seen.gpus:
        action = gpu.recovery_action
        if action is None or action == _NONE:
            continue
        code, phrase = _ACTIONS.get(action, ("unknown", f"recovery action {action}"))
        yield fail(code, gpu.device, f"the driver asks: {phrase}")


# --- gpu.lost ----------
# GPUs that NVML says are lost, wait for a reset, or have become unavailable.

_UNAVAILABLE = 0x4000
_LOST_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset-required"}


def gather_lost(machine: Machine) -> Snapshot:
    """The newest sweep, also one that failed as a whole. NotHere where there are no GPUs."""
    seen = newest(machine)
    if not seen.gpus and (seen.error is None or seen.error.code not in _LOST_CODES):
        raise NotHere(describe(seen.error) if seen.error else "NVML lists no GPU")
    return seen


def judge_lost(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """One observation for each GPU (or NVML itself) that answers with an error."""
    if seen.error is not None and seen.error.code in _LOST_CODES:
        yield _observation(seen.error, "")
    for gpu in seen.gpus:
        if gpu.error is not None:
            yield _observation(gpu.error, gpu.device)
    newest_at: dict[str, float] = {}
    for event in seen.events:
        if event.kind == _UNAVAILABLE:
            newest_at[event.pci] = event.at
    for pci, at in newest_at.items():
        if seen.at - at <= limits["event_s"]:
            yield fail("unavailable", pci, "NVML event: GPU unavailable")


def _observation(error: NvmlError, device: str) -> Observation:
    code = _LOST_CODES.get(error.code)
    if code is None:
        return warn("error", device, describe(error))
    return fail(code, device, describe(error))


# --- gpu.xid ----------
# Xids that NVML's events name: the second source beside the kernel's log.
#
# Only those whose number alone says everything. Where the driver's text or a companion line decides
# (48 with 94, 154, the NVLink codes) the kernel's log is the source: an event has no text.

_XID = 0x8
CERTAIN = frozenset(int(code) for row in rows_of("gpu.xid") for code in row.codes)
"""The Xids that act by their number."""


def judge_xid(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The certain Xids among the events that came since `before`."""
    since = max((event.at for event in before.events), default=None) if before else None
    for event in seen.events:
        new = since is None or event.at > since
        if new and event.kind == _XID and event.data in CERTAIN:
            yield fail(str(event.data), event.pci, "NVML event")


CHECKS = {
    "gpu.hung": Functions(gather_hung, judge_hung),
    "gpu.count": Functions(gather_count, judge_count),
    "gpu.driver": Functions(gather_driver, judge_driver),
    "gpu.recovery": Functions(sweep, judge_recovery),
    "gpu.lost": Functions(gather_lost, judge_lost),
    "gpu.xid": Functions(sweep, judge_xid),
}
"""What the runner calls, by the check's name."""
