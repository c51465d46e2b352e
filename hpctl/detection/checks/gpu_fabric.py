"""Check `gpu.fabric`: registration of each GPU with the NVSwitch fabric: state and status."""

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    get_nvml_snapshot_with_gpus,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.nvml.snapshot import GpuState, NvlinkFabric, NvmlSnapshot

# Whether each GPU is registered with the NVSwitch fabric: state *and* status.
#
# Until it is, CUDA does not start on it, and all other readings look healthy: all links may be up
# and no Xid is written. A GPU without a fabric (state 0, or the call not supported) gives no
# finding, nor does one in MIG mode: the driver suspends its registration.

_NOT_SUPPORTED = 0


_COMPLETED = 3


_SUCCESS = 0


_STATES = {1: "not started", 2: "in progress", 3: "completed"}


# Two bits each: 0 not supported, 1 yes, 2 no. Only a plain yes is a fault.
_HEALTH = {
    0: "degraded bandwidth",
    2: "route recovery",
    4: "route unhealthy",
    6: "access timeout recovery",
}


_TRUE = 1


# Four bits: 0 not supported, 1 none, and from 2 on what is wrong.
_CONFIGURATION_SHIFT = 8


_CONFIGURATION_NONE = 1


_RACK_SCALE = ("NVIDIA GB200", "NVIDIA GB300")


def get_fabric_gpu_snapshot(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep. Raises DeviceAbsentError where no GPU belongs to a fabric."""
    seen = get_nvml_snapshot_with_gpus(machine)
    if all(_get_nvlink_fabric(gpu) is None for gpu in seen.gpus):
        raise DeviceAbsentError("no GPU belongs to an NVSwitch fabric")
    return seen


def judge_gpu_fabric_registration(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return what is wrong with each GPU's registration; `mixed` where only some of them have
    it."""
    members = [
        (gpu, fabric) for gpu in seen.gpus if (fabric := _get_nvlink_fabric(gpu)) is not None
    ]
    registered = [_is_fabric_registration_complete(fabric) for _, fabric in members]
    mixed = any(registered) and not all(registered)
    for gpu, fabric in members:
        if fabric.state != _COMPLETED:
            state = _STATES.get(fabric.state, str(fabric.state))
            code = "mixed" if mixed else "not-completed"
            yield make_fail_observation(code, gpu.device, f"fabric registration {state}")
        elif fabric.status != _SUCCESS:
            code = "mixed" if mixed else "status"
            detail = f"fabric registration ended with NVML error {fabric.status}"
            yield make_fail_observation(code, gpu.device, detail)
        else:
            yield from _judge_nvlink_fabric_health(gpu, fabric)


def _get_nvlink_fabric(gpu: GpuState) -> NvlinkFabric | None:
    fabric = gpu.fabric
    return None if fabric is None or gpu.mig or fabric.state == _NOT_SUPPORTED else fabric


def _is_fabric_registration_complete(fabric: NvlinkFabric) -> bool:
    return fabric.state == _COMPLETED and fabric.status == _SUCCESS


def _judge_nvlink_fabric_health(gpu: GpuState, fabric: NvlinkFabric) -> Judged:
    if not fabric.cluster_uuid.strip("0-") and _is_rack_scale_gpu(gpu):
        yield make_warn_observation("no-cluster", gpu.device, "the fabric's cluster id is 0")
    mask = fabric.health_mask
    if mask is None:
        return
    wrong = [text for shift, text in _HEALTH.items() if mask >> shift & 0b11 == _TRUE]
    configuration = mask >> _CONFIGURATION_SHIFT & 0b1111
    if configuration > _CONFIGURATION_NONE:
        wrong.append(f"incorrect configuration {configuration}")
    if wrong:
        yield make_warn_observation("health", gpu.device, ", ".join(wrong), f"mask {mask:#x}")


def _is_rack_scale_gpu(gpu: GpuState) -> bool:
    return gpu.name.startswith(_RACK_SCALE)
