"""Check `gpu.nvlink`: NVLinks that are down where the node's other GPUs have theirs up."""

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    get_nvml_snapshot_with_gpus,
    make_fail_observation,
)
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot

# NVLinks that are down where they should be up.
#
# How many should be up follows from the node's other GPUs of the same model and, once any link of
# the node is up at all, from the number that the model has. A node without NVLink, or a share of a
# board whose links are all off, has nothing to be compared with. A GPU in MIG mode has no NVLink:
# the driver takes its links down (open-gpu-kernel-modules, kmigmgrIsMIGNvlinkP2PSupported).

# By the beginning of NVML's name. Boards for a PCIe slot have other names and other numbers.
_LINKS = {
    "NVIDIA A100-SXM": 12,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200 NVL": 0,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA B300": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}


def get_nvlink_gpu_snapshot(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep. Raises DeviceAbsentError where no GPU has an NVLink."""
    seen = get_nvml_snapshot_with_gpus(machine)
    if not any(gpu.nvlinks for gpu in seen.gpus):
        raise DeviceAbsentError("no GPU with NVLink")
    return seen


def judge_active_nvlink_counts(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the GPUs with fewer links up than they should have."""
    most: dict[str, int] = {}
    for gpu in seen.gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), len(_list_active_nvlink_numbers(gpu)))
    in_use = any(most.values())
    for gpu in seen.gpus:
        if gpu.error is not None or gpu.mig or all(link.active is None for link in gpu.nvlinks):
            continue
        up = _list_active_nvlink_numbers(gpu)
        expected = max(most[gpu.name], _get_gpu_model_nvlink_count(gpu.name) if in_use else 0)
        if len(up) < expected:
            down = sorted({link.link for link in gpu.nvlinks} - up)
            yield make_fail_observation(
                "down",
                gpu.device,
                f"{len(up)} of {expected} NVLinks up; down: {', '.join(map(str, down))}",
            )


def _list_active_nvlink_numbers(gpu: GpuState) -> set[int]:
    return {link.link for link in gpu.nvlinks if link.active}


def _get_gpu_model_nvlink_count(name: str) -> int:
    return next((count for start, count in _LINKS.items() if name.startswith(start)), 0)
