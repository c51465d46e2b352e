"""The fault table's rows for what the head node itself finds: peers compared, and history.

One slow signal never replaces a node, so every row is only counted or watched. A site that wants
more gives a rule a treatment of its own: `catalogue: {peer-throttle: {urgency: after_jobs,
ladder: [reset_gpu, reboot]}}`.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_NOT_NVIDIAS = "not NVIDIA's"
_WATCHED = "shown as Suspect: a single slow signal never closes a node"

GREY_ROWS: tuple[Row, ...] = (
    Row(
        "peer-throttle",
        "",
        "I",
        "a GPU is throttled by hardware while those of its job's other nodes are not",
        _NOT_NVIDIAS,
        _WATCHED,
        watch=True,
    ),
    Row(
        "peer-clock",
        "",
        "I",
        "a busy GPU's clock is far below that of its job's other nodes",
        _NOT_NVIDIAS,
        _WATCHED,
        watch=True,
    ),
    Row(
        "peer-replay",
        "",
        "I",
        "a GPU's PCIe link repeats far more than those of its job's other nodes",
        _NOT_NVIDIAS,
        _WATCHED,
        watch=True,
    ),
    Row(
        "peer-retrans",
        "",
        "I",
        "EFA sends far more packets again than on its job's other nodes",
        _NOT_NVIDIAS,
        _WATCHED,
        watch=True,
    ),
    Row(
        "peer-remote",
        "",
        "I",
        "the EFA of its job's other nodes calls this node unresponsive or impaired",
        _NOT_NVIDIAS,
        _WATCHED,
        watch=True,
    ),
    *(
        Row(f"peer-{name}", "", "I", meaning, _NOT_NVIDIAS, _WATCHED, watch=True)
        for name, meaning in (
            ("vbios", "its GPUs have another VBIOS than most of its job's other nodes"),
            ("persistence", "its GPUs' persistence mode is not as on its job's other nodes"),
            ("setclock", "its GPUs' application clocks are not set as on its job's other nodes"),
            ("rate", "an InfiniBand or RoCE port has another rate than on its job's other nodes"),
        )
    ),
    Row(
        "history-lemon",
        "",
        "I",
        "this instance broke again and again in the past weeks",
        _NOT_NVIDIAS,
        "advice: test it or give it back to the provider; the node stays in service",
    ),
)
