"""Check `gpu.recovery`: the driver's own recovery action for a GPU: reset, reboot, drain."""

from hpctl.detection.check import Judged, Limits, make_failure
from hpctl.detection.nvml.snapshot import Snapshot

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
        yield make_failure(code, gpu.device, f"the driver asks: {phrase}")
