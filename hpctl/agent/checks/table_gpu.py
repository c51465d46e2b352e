"""The GPU checks: what each looks at, how often, and from which number on it speaks.

All of them read the newest sweep of the NVML child, which costs them nothing: an interval says
how long the window of a rate is and how fast a fault is found. The numbers that are proven to be
faults act (see the fault catalogue); what is relative or new is shown and watched.
"""

from __future__ import annotations

from hpctl.agent.check import Limit, Spec
from hpctl.core.model import Clears

_BUSY = Limit(50, "%", "utilization from which on a GPU counts as working; idle ones slow down")
_PEERS = Limit(3, "GPUs", "a median of fewer peers is no measure")
# The child reads links, fabric and processes each 30 s, with its sweep 5 s later at most: a check
# that looked more often, jitter included, would count one reading as two.
_SLOWLY_S = 45
_NVML = "NVIDIA NVML API reference (nvml.h)"

_STATE: tuple[Spec, ...] = (
    Spec(
        "gpu.hung",
        "gpu_hung",
        "a call into the NVIDIA driver that does not come back",
        "NVIDIA/DCGM#313: a monitor that hung with the driver and reported nothing",
        # A call may hang 5 s after the fault, and is overdue 20 s later: found within 30 s.
        every_s=2,
        limits={
            "overdue_s": Limit(20, "s", "two missed deadlines of 10 s: a stall of one is common")
        },
        grace_s=120,
    ),
    Spec(
        "gpu.recovery",
        "gpu_recovery",
        "the driver's own recovery action for a GPU: reset, reboot, drain",
        f"{_NVML}: field 230",
        every_s=5,
        seen=(2, 2),
        gone_s=15,
    ),
    Spec(
        "gpu.lost",
        "gpu_lost",
        "GPUs that NVML calls lost, in need of a reset, or unavailable",
        f"{_NVML}: errors 15 and 16, event 0x4000",
        every_s=5,
        seen=(2, 2),
        clears=Clears.BOOT,
        limits={"event_s": Limit(60, "s", "an event is said once; its state is the error code's")},
    ),
    Spec(
        "gpu.xid",
        "gpu_xid",
        "Xids from NVML's events that act by their number: the second source",
        f"{_NVML}: event 0x8; the first source is the kernel's log",
        every_s=5,
        clears=Clears.BOOT,
    ),
    Spec(
        "gpu.count",
        "gpu_count",
        "GPUs on the PCI bus, in the driver's list, and expected of this instance type",
        "Azure/cyclecloud-healthagent and AWS's agents: any mismatch asks for a reboot",
        every_s=30,
        seen=(3, 3),
        gone_s=60,
        grace_s=300,
    ),
    Spec(
        "gpu.fabric",
        "gpu_fabric",
        "registration of each GPU with the NVSwitch fabric: state and status",
        "NVIDIA/NVSentinel#889: a dead fabric manager, unseen for 20 days",
        every_s=_SLOWLY_S,
        seen=(2, 2),
        gone_s=90,
        grace_s=300,
    ),
    Spec(
        "gpu.driver",
        "gpu_driver",
        "the NVIDIA driver: missing, or of another version than its library",
        f"{_NVML}: error 18",
        every_s=60,
        seen=(3, 3),
        gone_s=120,
        grace_s=300,
        shed=1,
    ),
)

_MEMORY: tuple[Spec, ...] = (
    Spec(
        "gpu.ecc",
        "gpu_ecc",
        "uncorrectable memory errors as they come, and the SRAM threshold flag",
        f"{_NVML}: volatile ECC counters, SramEccErrorStatus",
        every_s=5,
        clears=Clears.BOOT,
        limits={"uncorrectable": Limit(1, "errors", "each one has cost a process its memory")},
    ),
    Spec(
        "gpu.remap",
        "gpu_remap",
        "row remapping: failed, pending, spare rows used up",
        f"{_NVML}: fields 142-145, row remapper histogram",
        every_s=15,
        seen=(2, 2),
        limits={
            "uncorrectable_rows": Limit(
                512, "rows", "DCGM's and OCI's limit: what a GPU can remap at all"
            )
        },
    ),
    Spec(
        "gpu.settings",
        "gpu_settings",
        "InfoROM; VBIOS, persistence mode, clocks unlike the node's other GPUs or the default",
        f"{_NVML}: nvmlDeviceValidateInforom, GetVbiosVersion, GetPersistenceMode; NVIDIA/DCGM",
        every_s=300,
        seen=(2, 2),
        gone_s=700,
        grace_s=300,
        shed=4,
    ),
    Spec(
        "gpu.retired",
        "gpu_retired",
        "retired memory pages (GPUs before Ampere)",
        f"{_NVML}: fields 29-31",
        every_s=60,
        seen=(2, 2),
        gone_s=180,
        limits={"pages": Limit(63, "pages", "DCGM's limit; the driver can retire 64")},
        shed=1,
    ),
    Spec(
        "gpu.ecc.corrected",
        "gpu_ecc_corrected",
        "a storm of corrected memory errors that goes on",
        "NVIDIA/DCGM#313: at 17 700 a second calls into the driver stalled",
        every_s=30,
        seen=(3, 3),
        gone_s=120,
        limits={"per_second": Limit(1000, "errors/s", "counts alone say nothing (gpud#108)")},
        shed=2,
    ),
)

_SLOW: tuple[Spec, ...] = (
    Spec(
        "gpu.throttle",
        "gpu_throttle",
        "time for which a busy GPU's clocks were held down by heat or a power brake, 5 minutes",
        f"{_NVML}: cumulative nanoseconds, fields 269-271; NVIDIA/NVSentinel#1666",
        every_s=60,
        seen=(5, 5),
        gone_s=300,
        limits={
            "hw_thermal_share": Limit(0.05, "of the time", "5 % of a 5-minute window"),
            "power_brake_share": Limit(
                0.0, "of the time", "none is normal; 36 hours of it on 9 nodes went unseen"
            ),
            "sw_thermal_share": Limit(0.2, "of the time", "the software's gentler limit"),
            "busy_percent": _BUSY,
        },
        shed=2,
    ),
    Spec(
        "gpu.slowdown",
        "gpu_throttle",
        "the same, heavy and for 10 minutes: the GPU holds up every job it is in",
        f"{_NVML}: cumulative nanoseconds, fields 270 and 271",
        every_s=60,
        seen=(9, 10),
        gone_s=600,
        limits={
            "hw_thermal_share": Limit(0.2, "of the time", "20 % for 10 minutes"),
            "power_brake_share": Limit(0.2, "of the time", "20 % for 10 minutes"),
            "busy_percent": _BUSY,
        },
        shed=2,
    ),
    Spec(
        "gpu.clocks",
        "gpu_clocks",
        "a busy GPU whose SM clock is below that of the node's other busy GPUs",
        "Guard (MLSys'26) and Minder (NSDI'25): compare with peers, for as long as it lasts",
        every_s=60,
        seen=(5, 5),
        gone_s=300,
        limits={
            "of_median": Limit(0.9, "of the median", "below 90 % of its peers for 5 minutes"),
            "alike_percent": Limit(20, "points of utilization", "only equal loads compare"),
            "busy_percent": _BUSY,
            "peers": _PEERS,
        },
        shed=3,
    ),
    Spec(
        "gpu.temperature",
        "gpu_temperature",
        "no margin left to the temperature at which a GPU or its memory slows itself down",
        f"{_NVML}: margin temperature, slowdown and memory thresholds",
        every_s=30,
        seen=(3, 3),
        gone_s=120,
        limits={"margin_c": Limit(0, "°C", "the device's own limit; none fits all models")},
        shed=4,
    ),
)

_LINKS: tuple[Spec, ...] = (
    Spec(
        "gpu.pcie",
        "gpu_pcie",
        "a GPU's PCIe link: narrow, slow under load, or repeating packets",
        f"{_NVML}: link width and generation, field 94; NVIDIA/NVSentinel#890",
        every_s=60,
        seen=(3, 3),
        gone_s=180,
        grace_s=300,
        limits={
            "busy_percent": _BUSY,
            "bit_error_rate": Limit(
                1e-12, "errors/bit", "the PCIe standard's; scaled by speed and lanes as DCGM does"
            ),
            "times_median": Limit(10, "times", "ten times the median of the node's other GPUs"),
            "replays_floor": Limit(5, "replays/min", "a few replays are no pattern"),
            "peers": _PEERS,
        },
        shed=3,
    ),
    Spec(
        "gpu.nvlink",
        "gpu_nvlink",
        "NVLinks that are down where the node's other GPUs have theirs up",
        f"{_NVML}: nvmlDeviceGetNvLinkState",
        every_s=_SLOWLY_S,
        seen=(2, 2),
        gone_s=90,
        grace_s=300,
    ),
    Spec(
        "gpu.nvlink.errors",
        "gpu_nvlink_errors",
        "NVLinks that recover again and again, or whose bit error rate is high",
        f"{_NVML}: fields 162, 213-215, 220, 222; Azure/cyclecloud-healthagent",
        every_s=60,
        seen=(3, 5),
        gone_s=300,
        grace_s=300,
        limits={
            "recoveries": Limit(0, "recoveries/run", "one is chance; in three runs of five, not"),
            "ber": Limit(1e-12, "errors/bit", "beyond what a sound link shows: watched"),
            "ber_high": Limit(1e-6, "errors/bit", "Azure's warning limit"),
        },
        shed=3,
    ),
    Spec(
        "gpu.processes",
        "gpu_processes",
        "processes that hold GPU memory on a node without a Slurm job",
        "facebookresearch/gcm and nebius/soperator, which retry before they drain",
        every_s=_SLOWLY_S,
        seen=(3, 3),
        gone_s=90,
        limits={"used_mib": Limit(15, "MiB", "GCM's limit for an idle GPU's memory")},
        shed=5,
    ),
)

# Last, so that its numbers, which are newer, stand over those of the checks that it asks.
_GAUGES = (
    Spec(
        "gpu.gauges",
        "gpu_gauges",
        "numbers for the head node, which compares the nodes of a job; finds nothing by itself",
        "Minder (NSDI'25): similarity among the machines of a job",
        every_s=10,
        shed=4,
    ),
)

GPU: tuple[Spec, ...] = (*_STATE, *_MEMORY, *_SLOW, *_LINKS, *_GAUGES)
