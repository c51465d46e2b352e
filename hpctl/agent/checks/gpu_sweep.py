"""How the GPU checks take the NVML child's sweeps: whole, in pairs, and as growth of counters."""

from collections.abc import Iterator

from hpctl.agent.check import CannotTell, Machine, NotHere
from hpctl.agent.nvml.snapshot import Gpu, NvmlError, Snapshot

DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18


def newest(machine: Machine) -> Snapshot:
    """The newest sweep, its error included. Raises NotHere, CannotTell, DriverHung."""
    if machine.nvml is None:
        raise NotHere("no NVML on this machine")
    return machine.nvml()


def sweep(machine: Machine) -> Snapshot:
    """The newest sweep of a machine with GPUs.

    Raises NotHere where there is no driver or no GPU, CannotTell where NVML failed.
    """
    snapshot = _sound(newest(machine))
    if not snapshot.gpus:
        raise NotHere("NVML lists no GPU")
    return snapshot


def listed(machine: Machine) -> tuple[Gpu, ...]:
    """The GPUs that NVML lists, perhaps none. Raises NotHere without a driver, CannotTell."""
    return _sound(newest(machine)).gpus


def _sound(snapshot: Snapshot) -> Snapshot:
    error = snapshot.error
    if error is None:
        return snapshot
    if error.code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        raise NotHere(describe(error))
    raise CannotTell(describe(error))


def describe(error: NvmlError) -> str:
    """An NVML error as people read it."""
    return f"{error.call}: {error.text or 'error'} ({error.code})"


def pairs(seen: Snapshot, before: Snapshot | None) -> Iterator[tuple[Gpu, Gpu]]:
    """Each GPU of this sweep with itself in the earlier one; those that are in both.

    By UUID, else by PCI address: an index may change when a GPU drops out.
    """
    if before is None:
        return
    earlier = {gpu.uuid or gpu.pci: gpu for gpu in before.gpus if gpu.uuid or gpu.pci}
    for gpu in seen.gpus:
        was = earlier.get(gpu.uuid or gpu.pci)
        if was is not None:
            yield gpu, was


def grown(now: int | None, then: int | None) -> int:
    """By how much a counter grew; 0 where one is not known or it went back (a driver reset)."""
    if now is None or then is None:
        return 0
    return max(0, now - then)


def busy(gpu: Gpu, percent: float) -> bool:
    """Whether kernels run on it for at least so much of the time; an unknown load is not busy."""
    return gpu.utilization is not None and gpu.utilization >= percent
