"""Check `gpu.recovery`: the driver's own recovery action for a GPU: reset, reboot, drain."""

from hpctl.detection.check import Judged, Limits, make_fail_observation
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# The driver's own recovery action for each GPU (NVML field 230): the first authority.
#
# Xid 154 writes the same value to the kernel's log when it changes. The field is its state, so an
# agent that started later also sees it, and it disappears when the GPU has recovered.

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


def judge_gpu_recovery_actions(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return one observation for each GPU for which the driver requests an action."""
    for gpu in seen.gpus:
        action = gpu.recovery_action
        if action is None or action == _NONE:
            continue
        code, phrase = _ACTIONS.get(action, ("unknown", f"recovery action {action}"))
        yield make_fail_observation(code, gpu.device, f"the driver asks: {phrase}")
