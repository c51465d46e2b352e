"""The numbers by which a node is compared with its peers, and what standing out means in each.

Sources of the numbers: the ways in which a GPU is slowed and what is normal (NVML, NVIDIA's
documentation of the clocks' event reasons), EFA's counters (amzn-drivers), and the robust z of
3.5 that Iglewicz and Hoaglin (1993) advise; 5 where a counter's noise has a long tail.
"""

from __future__ import annotations

from dataclasses import dataclass

BUSY = "gpu.busy"
POWER = "gpu.power_w"
REMOTE = "efa.remote_events_per_s"
VBIOS = "gpu.vbios"
"""The version's bytes as one number: 96.00.74.00.01 is 0x9600740001."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One gauge and when a node stands out by it.

    `name`: the finding's check is `peer.<name>`. `worse`: +1 where more is worse, -1 where less
    is. It must be off by `floor` (in `unit`) and by `share` of the reference, with a robust z of
    `z`. `low`: the reference is the peers' lower quartile and not their median, because healthy
    is zero whatever the others do. `crowd`: where more than this share of the peers stands out,
    the cause is shared and nobody is marked. `busy`: only working nodes count. `wide`: all nodes
    of the job are compared, for healthy is the same on every instance type. Found when `seen[0]`
    of the last `seen[1]` windows stood out, gone when at most one did. `odd`: a setting and no
    measure: who differs at all from what three quarters of its peers have stands out.
    """

    name: str
    gauge: str
    unit: str
    worse: int
    floor: float
    share: float
    z: float
    why: str
    low: bool = False
    crowd: float = 0.25
    busy: bool = False
    wide: bool = False
    odd: bool = False
    seen: tuple[int, int] = (6, 7)


SIGNALS: tuple[Signal, ...] = (
    Signal(
        "throttle",
        "gpu.throttle_share",
        "of the time",
        +1,
        0.05,
        0.0,
        3.5,
        "hardware slowdown (heat, power brake) of the worst GPU, from the nanosecond counters",
        low=True,
        crowd=0.75,
        busy=True,
        wide=True,
    ),
    Signal(
        "clock",
        "gpu.sm_clock_mhz",
        "MHz",
        -1,
        50.0,
        0.10,
        3.5,
        "SM clock of the slowest busy GPU, under nine tenths of its peers'",
        busy=True,
    ),
    Signal(
        "replay",
        "gpu.pcie_replays_per_minute",
        "a minute",
        +1,
        60.0,
        9.0,
        5.0,
        "PCIe replays of the worst GPU, over ten times its peers'",
        crowd=0.5,
    ),
    Signal(
        "retrans",
        "efa.retrans_ratio",
        "of the packets",
        +1,
        1e-4,
        1.0,
        5.0,
        "EFA packets sent again",
        crowd=0.1,
        wide=True,
    ),
    Signal(
        "remote",
        REMOTE,
        "/s",
        +1,
        0.02,
        0.0,
        0.0,
        "EFA's unresponsive and impaired remote events: many nodes name the one that has none",
        wide=True,
        seen=(4, 8),
    ),
    *(
        Signal(name, gauge, unit, -1, 0.0, 0.0, 0.0, why, odd=True)
        for name, gauge, unit, why in (
            ("vbios", VBIOS, "", "VBIOS of the GPUs"),
            ("persistence", "gpu.persistence", "(1: on)", "persistence mode of every GPU"),
            (
                "setclock",
                "gpu.application_clock_mhz",
                "MHz",
                "lowest application clock that is set",
            ),
            ("rate", "rdma.gbps", "Gb/s", "rate of the slowest InfiniBand or RoCE port in use"),
        )
    ),
)
GAUGES: tuple[str, ...] = (BUSY, POWER, *(s.gauge for s in SIGNALS))
"""The gauges that this module reads, per node; an agent that lacks one leaves it out."""
SIGNAL = {signal.name: signal for signal in SIGNALS}
"""The same by name."""
