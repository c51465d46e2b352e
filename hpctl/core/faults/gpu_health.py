"""The health of a GPU by NVML and the PCI bus: the driver, memory, speed, settings.

All of these checks read the newest sweep of the NVML child, which costs them nothing: an interval
says how long the window of a rate is and how fast a fault is found. What is proven acts. What is
relative to peers, a rate, or a limit without a long record is shown and watched, or put before a
human; one slow signal never takes a node away.
"""

from hpctl.core.faults.row import CheckSpec, FaultRow, Limit, rows
from hpctl.core.model import Clears

_BUSY = Limit(50, "%", "utilization from which on a GPU counts as working; idle ones slow down")
_PEERS = Limit(3, "GPUs", "a median of fewer peers is no measure")
# The child reads links, fabric and processes each 30 s, with its sweep 5 s later at most: a check
# that looked more often than each 45 s, jitter included, would count one reading as two.
SLOWLY_S = 45
_DO_IT = "do what it says"
_SUSPECT = "shown as Suspect"

STATE_CHECKS = (
    CheckSpec(
        "gpu.hung",
        "a call into the NVIDIA driver that does not come back",
        "NVIDIA/DCGM#313: a monitor that hung with the driver and reported nothing",
        # A call may hang 5 s after the fault, and is overdue 20 s later: found within 30 s.
        every_s=2,
        grace_s=120,
        limits={
            "overdue_s": Limit(20, "s", "two missed deadlines of 10 s: a stall of one is common")
        },
    ),
    CheckSpec(
        "gpu.recovery",
        "the driver's own recovery action for a GPU: reset, reboot, drain",
        "NVIDIA NVML API reference (nvml.h): field 230",
        every_s=5,
        seen=(2, 2),
        gone_s=15,
    ),
    CheckSpec(
        "gpu.lost",
        "GPUs that NVML calls lost, in need of a reset, or unavailable",
        "NVIDIA NVML API reference (nvml.h): errors 15 and 16, event 0x4000",
        every_s=5,
        seen=(2, 2),
        clears=Clears.BOOT,
        limits={"event_s": Limit(60, "s", "an event is said once; its state is the error code's")},
    ),
)
COUNT_CHECKS = (
    CheckSpec(
        "gpu.count",
        "GPUs on the PCI bus, in the driver's list, and expected of this instance type",
        "Azure/cyclecloud-healthagent and AWS's agents: any mismatch asks for a reboot",
        every_s=30,
        seen=(3, 3),
        grace_s=300,
    ),
)
DRIVER_CHECKS = (
    CheckSpec(
        "gpu.driver",
        "the NVIDIA driver: missing, or of another version than its library",
        "NVIDIA NVML API reference (nvml.h): error 18",
        every_s=60,
        seen=(3, 3),
        gone_s=120,
        grace_s=300,
        shed=1,
    ),
)
MEMORY_CHECKS = (
    CheckSpec(
        "gpu.ecc",
        "uncorrectable memory errors as they come, and the SRAM threshold flag",
        "NVIDIA NVML API reference (nvml.h): volatile ECC counters, SramEccErrorStatus",
        every_s=5,
        clears=Clears.BOOT,
        limits={"uncorrectable": Limit(1, "errors", "each one has cost a process its memory")},
    ),
    CheckSpec(
        "gpu.remap",
        "row remapping: failed, pending, spare rows used up",
        "NVIDIA NVML API reference (nvml.h): fields 142-145, row remapper histogram",
        every_s=15,
        seen=(2, 2),
        limits={
            "uncorrectable_rows": Limit(
                512, "rows", "DCGM's and OCI's limit: what a GPU can remap at all"
            )
        },
    ),
    CheckSpec(
        "gpu.settings",
        "InfoROM; VBIOS, persistence mode, clocks unlike the node's other GPUs or the default",
        "NVIDIA NVML API reference (nvml.h): nvmlDeviceValidateInforom, GetVbiosVersion, "
        "GetPersistenceMode; NVIDIA/DCGM",
        every_s=300,
        seen=(2, 2),
        gone_s=700,
        grace_s=300,
        shed=4,
    ),
    CheckSpec(
        "gpu.retired",
        "retired memory pages (GPUs before Ampere)",
        "NVIDIA NVML API reference (nvml.h): fields 29-31",
        every_s=60,
        seen=(2, 2),
        gone_s=180,
        shed=1,
        limits={"pages": Limit(63, "pages", "DCGM's limit; the driver can retire 64")},
    ),
    CheckSpec(
        "gpu.ecc.corrected",
        "a storm of corrected memory errors that goes on",
        "NVIDIA/DCGM#313: at 17 700 a second calls into the driver stalled",
        every_s=30,
        seen=(3, 3),
        gone_s=120,
        shed=2,
        limits={"per_second": Limit(1000, "errors/s", "counts alone say nothing (gpud#108)")},
    ),
)
SPEED_CHECKS = (
    CheckSpec(
        "gpu.throttle",
        "time for which a busy GPU's clocks were held down by heat or a power brake, 5 minutes",
        "NVIDIA NVML API reference (nvml.h): cumulative nanoseconds, fields 269-271; "
        "NVIDIA/NVSentinel#1666",
        every_s=60,
        seen=(5, 5),
        gone_s=300,
        shed=2,
        limits={
            "hw_thermal_share": Limit(0.05, "of the time", "5 % of a 5-minute window"),
            "power_brake_share": Limit(
                0, "of the time", "none is normal; 36 hours of it on 9 nodes went unseen"
            ),
            "sw_thermal_share": Limit(0.2, "of the time", "the software's gentler limit"),
            "busy_percent": _BUSY,
        },
    ),
    CheckSpec(
        "gpu.slowdown",
        "the same, heavy and for 10 minutes: the GPU holds up every job it is in",
        "NVIDIA NVML API reference (nvml.h): cumulative nanoseconds, fields 270 and 271",
        every_s=60,
        seen=(9, 10),
        gone_s=600,
        shed=2,
        limits={
            "hw_thermal_share": Limit(0.2, "of the time", "20 % for 10 minutes"),
            "power_brake_share": Limit(0.2, "of the time", "20 % for 10 minutes"),
            "busy_percent": _BUSY,
        },
    ),
    CheckSpec(
        "gpu.clocks",
        "a busy GPU whose SM clock is below that of the node's other busy GPUs",
        "Guard (MLSys'26) and Minder (NSDI'25): compare with peers, for as long as it lasts",
        every_s=60,
        seen=(5, 5),
        gone_s=300,
        shed=3,
        limits={
            "of_median": Limit(0.9, "of the median", "below 90 % of its peers for 5 minutes"),
            "alike_percent": Limit(20, "points of utilization", "only equal loads compare"),
            "busy_percent": _BUSY,
            "peers": _PEERS,
        },
    ),
    CheckSpec(
        "gpu.temperature",
        "no margin left to the temperature at which a GPU or its memory slows itself down",
        "NVIDIA NVML API reference (nvml.h): margin temperature, slowdown and memory thresholds",
        every_s=30,
        seen=(3, 3),
        gone_s=120,
        shed=4,
        limits={"margin_c": Limit(0, "°C", "the device's own limit; none fits all models")},
    ),
    CheckSpec(
        "gpu.pcie",
        "a GPU's PCIe link: narrow, slow under load, or repeating packets",
        "NVIDIA NVML API reference (nvml.h): link width and generation, field 94; "
        "NVIDIA/NVSentinel#890",
        every_s=60,
        seen=(3, 3),
        gone_s=180,
        grace_s=300,
        shed=3,
        limits={
            "busy_percent": _BUSY,
            "bit_error_rate": Limit(
                1e-12, "errors/bit", "the PCIe standard's; scaled by speed and lanes as DCGM does"
            ),
            "times_median": Limit(10, "times", "ten times the median of the node's other GPUs"),
            "replays_floor": Limit(5, "replays/min", "a few replays are no pattern"),
            "peers": _PEERS,
        },
    ),
)
# Last, so that the numbers of the gauges, which are newer, stand over those of other checks.
LAST_CHECKS = (
    CheckSpec(
        "gpu.processes",
        "processes that hold GPU memory on a node without a Slurm job",
        "facebookresearch/gcm and nebius/soperator, which retry before they drain",
        every_s=SLOWLY_S,
        seen=(3, 3),
        gone_s=90,
        shed=5,
        limits={"used_mib": Limit(15, "MiB", "GCM's limit for an idle GPU's memory")},
    ),
    CheckSpec(
        "gpu.gauges",
        "numbers for the head node, which compares the nodes of a job; finds nothing by itself",
        "Minder (NSDI'25): similarity among the machines of a job",
        every_s=10,
        shed=4,
    ),
)

FIRST = (
    FaultRow(
        "gpu.remap", "failure", "X", "row remapping has failed on a GPU", "replace (RMA)", own=True
    ),
    FaultRow(
        "gpu.ecc",
        "sram-threshold",
        "X",
        "a GPU's SRAM error count passed its threshold",
        "field diagnosis",
        "replace: field diagnosis is not on offer in a cloud",
    ),
    FaultRow(
        "gpu.remap", "pending", "R1", "row remapping waits for a GPU reset", "reset when convenient"
    ),
)

# The same remedies as for Xid 154, which says the same in the kernel's log.
RECOVERY = (
    FaultRow("gpu.recovery", "reboot", "B", "the driver asks for a node reboot", _DO_IT),
    FaultRow("gpu.recovery", "system-reboot", "B", "the driver asks for a system reboot", "do it"),
    FaultRow("gpu.recovery", "reset", "R2", "the driver asks for a GPU reset", _DO_IT),
    *rows(
        "gpu.recovery",
        (
            "bus-reset",
            "B",
            "the driver asks for a bus reset of a GPU",
            _DO_IT,
            "reboot: nothing on an instance resets the bus of one GPU safely",
        ),
        ("drain-and-reset", "R1", "the driver asks for drain and reset", _DO_IT),
        ("drain-p2p", "R1", "the driver asks to drain peer-to-peer traffic", _DO_IT),
        (
            "recover-imex",
            "H",
            "the driver asks to recover the IMEX domain",
            _DO_IT,
            "a human decides: the domain is shared by the nodes of a rack",
        ),
        (
            "unknown",
            "W",
            "a recovery action of the driver that this table does not know",
            _DO_IT,
            _SUSPECT,
        ),
    ),
    FaultRow(
        "gpu.lost",
        "lost",
        "B",
        "NVML calls the GPU lost",
        "restart bare metal, as Xid 79",
        own=True,
    ),
    *rows(
        "gpu.lost",
        ("reset-required", "R2", "NVML says that the GPU needs a reset", "reset GPU"),
        (
            "unavailable",
            "R2",
            "an NVML event says that the GPU has become unavailable",
            "the GPU cannot be used",
            "the remedies of a reset",
        ),
        ("error", "W", "NVML cannot read the GPU, for another reason", "no bucket given", _SUSPECT),
    ),
    FaultRow(
        "gpu.hung",
        "hung",
        "B",
        "a call into the NVIDIA driver does not come back",
        differs="no process of the node can rely on the driver; only a restart ends such a call",
    ),
)

MACHINE = (
    *rows(
        "gpu.count",
        ("pci", "B", "the PCI bus has fewer GPUs than this instance type"),
        ("nvml", "B", "the driver lists fewer GPUs than the machine has"),
        differs="reboot, as AWS's own agent does",
    ),
    FaultRow(
        "gpu.count",
        "more",
        "W",
        "more GPUs than expected: the expectation is wrong",
        differs="shown only",
    ),
    FaultRow(
        "gpu.driver",
        "mismatch",
        "A",
        "the driver's kernel module and its library differ in version",
        "reload the driver",
        "reboot after the jobs, which go on with what they have loaded",
    ),
    FaultRow(
        "gpu.driver",
        "upgraded",
        "W",
        "a newer driver library is installed than the module that runs",
        differs="shown as Suspect: an upgrade may be under way",
    ),
    FaultRow(
        "gpu.driver",
        "missing",
        "W",
        "GPUs on the PCI bus, and no driver",
        differs="shown as Suspect: where GPUs are expected, gpu-count-nvml acts",
    ),
    FaultRow("gpu.driver", "error", "W", "NVML does not start", differs=_SUSPECT),
    FaultRow(
        "gpu.processes",
        "stray",
        "H",
        "a process holds GPU memory on a node without a Slurm job",
        differs="a human ends it: it may be somebody's work",
    ),
)

MEMORY = (
    *rows(
        "gpu.ecc",
        (
            "uncorrectable",
            "R2",
            "an uncorrectable memory error that nothing calls contained",
            "reset GPU, as Xid 48",
        ),
        (
            "contained",
            "R1",
            "an uncorrectable memory error that was contained",
            "restart app, reset when convenient, as Xid 94",
        ),
        settle_s=3,
        own=True,
    ),
    FaultRow(
        "gpu.ecc.corrected",
        "storm",
        "W",
        "more than 1000 corrected memory errors a second, and on",
        "ignore",
        "shown as Suspect: calls into the driver may stall",
    ),
    FaultRow(
        "gpu.remap",
        "uncorrectable",
        "X",
        "512 rows or more were remapped for uncorrectable errors",
        "DCGM's limit",
        own=True,
    ),
    *rows(
        "gpu.remap",
        (
            "bank-none",
            "H",
            "a memory bank has no spare row left",
            "no bucket given",
            "a human decides: the next error there is a failure",
        ),
        ("bank-low", "I", "a memory bank has few spare rows left", "no bucket given"),
    ),
    FaultRow("gpu.retired", "pending", "R1", "a page retirement waits for a reset", "reset GPU"),
    FaultRow("gpu.retired", "pages", "X", "63 memory pages or more are retired", "DCGM's limit"),
)

SPEED = (
    *rows(
        "gpu.slowdown",
        ("hw-thermal", "H", "heat held a busy GPU's clocks down for a fifth of ten minutes"),
        (
            "power-brake",
            "H",
            "a power brake held a busy GPU's clocks down for a fifth of ten minutes",
        ),
        differs="a human decides; compare with the nodes beside it",
    ),
    *rows(
        "gpu.throttle",
        ("hw-thermal", "W", "heat holds a busy GPU's clocks down"),
        ("power-brake", "W", "a power brake holds a busy GPU's clocks down"),
        ("sw-thermal", "W", "the driver holds a busy GPU's clocks down because of heat"),
        differs=_SUSPECT,
    ),
    FaultRow(
        "gpu.clocks",
        "slow",
        "W",
        "a busy GPU runs below nine tenths of its neighbours' clock",
        differs=_SUSPECT,
    ),
    *rows(
        "gpu.temperature",
        ("core", "W", "a GPU has no margin left to its slowdown temperature"),
        ("memory", "W", "a GPU's memory has no margin left to its highest temperature"),
        differs=_SUSPECT,
    ),
    *rows(
        "gpu.pcie",
        (
            "width",
            "R1",
            "a GPU's PCIe link is narrower than it can be, and others of the node are not",
        ),
        (
            "generation",
            "R1",
            "a busy GPU's PCIe link is slower than it can be, and others of the node are not",
        ),
        differs="after the jobs: they are slow, not lost",
    ),
    *rows(
        "gpu.pcie",
        (
            "width-all",
            "I",
            "every GPU of the node has a narrow PCIe link: the instance type is wired so",
        ),
        ("generation-all", "I", "every busy GPU of the node has a slow PCIe link"),
        differs="counted only",
    ),
    *rows(
        "gpu.pcie",
        ("replays", "W", "a GPU's PCIe link repeats more packets than its speed allows"),
        (
            "replays-peers",
            "W",
            "a GPU's PCIe link repeats ten times as many packets as its neighbours'",
        ),
        differs=_SUSPECT,
    ),
)

SETTINGS = (
    FaultRow("gpu.settings", "inforom", "W", "a GPU's InfoROM is corrupt", differs=_SUSPECT),
    *rows(
        "gpu.settings",
        ("vbios", "W", "a GPU has another VBIOS than the node's others", "", _SUSPECT),
        (
            "persistence",
            "I",
            "persistence mode is off",
            "",
            "told: jobs run, but each begins by loading the driver's state",
        ),
        (
            "clocks",
            "I",
            "a GPU's application clocks are set below the default",
            "",
            "told: somebody set them",
        ),
    ),
)
