"""What the head node itself finds: peers compared, and history.

One slow signal never replaces a node, so every row is only counted or watched. A site that wants
more gives a rule a treatment of its own: `catalogue: {peer-throttle: {urgency: after_jobs,
ladder: [reset_gpu, reboot]}}`.
"""

from __future__ import annotations

from hpctl.core.faults.row import FaultRow

_WATCHED = "shown as Suspect: a single slow signal never closes a node"

GREY = (
    FaultRow(
        "peer",
        "throttle",
        "W",
        "a GPU is throttled by hardware while those of its job's other nodes are not",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "clock",
        "W",
        "a busy GPU's clock is far below that of its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "replay",
        "W",
        "a GPU's PCIe link repeats far more than those of its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "retrans",
        "W",
        "EFA sends far more packets again than on its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "remote",
        "W",
        "the EFA of its job's other nodes calls this node unresponsive or impaired",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "vbios",
        "W",
        "its GPUs have another VBIOS than most of its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "persistence",
        "W",
        "its GPUs' persistence mode is not as on its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "setclock",
        "W",
        "its GPUs' application clocks are not set as on its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "peer",
        "rate",
        "W",
        "an InfiniBand or RoCE port has another rate than on its job's other nodes",
        differs=_WATCHED,
    ),
    FaultRow(
        "history",
        "lemon",
        "I",
        "this instance broke again and again in the past weeks",
        differs="advice: test it or give it back to the provider; the node stays in service",
    ),
)
