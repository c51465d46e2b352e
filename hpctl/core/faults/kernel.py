"""The kernel itself: PCIe, memory, processors, limits, NVIDIA's modules, the platform.

A code is one thing however often it was printed.
"""

from __future__ import annotations

from hpctl.core.faults.row import CheckSpec, FaultRow
from hpctl.core.model import Clears

PCIE_CHECKS = (
    CheckSpec(
        "kernel.pcie",
        "errors on a PCIe link, by the device that they came from (AER, DPC); devices and "
        "slots that are gone",
        "drivers/pci",
        clears=Clears.BOOT,
    ),
)
MEMORY_CHECKS = (
    CheckSpec(
        "kernel.oom",
        "the out-of-memory killer: for a daemon of the cluster, the node, a NUMA node, a "
        "job or a service",
        "mm/oom_kill.c",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.memory",
        "errors of main memory and processors (MCE, EDAC, APEI, poisoned pages)",
        "drivers/edac, drivers/acpi/apei, mm/memory-failure.c",
        clears=Clears.BOOT,
    ),
)
PROCESSOR_CHECKS = (
    CheckSpec(
        "kernel.lockup",
        "processors that are stuck, inside a driver or for how long; tasks that wait for minutes",
        "kernel/watchdog.c, kernel/hung_task.c, kernel/rcu",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.crash",
        "a panic, an oops, a bug in the kernel, a warning; whether in a driver that jobs live by",
        "kernel/panic.c, arch",
        clears=Clears.BOOT,
    ),
)
OTHER_CHECKS = (
    CheckSpec(
        "kernel.limits",
        "limits of the kernel and the network that were reached",
        "fs/file_table.c, net",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.nvidia",
        "what NVIDIA's modules say without a number: NVLinks, initialization, versions, peermem",
        "open-gpu-kernel-modules",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.platform",
        "interrupts nobody knows, clocks that drift, heat, devices that write where they may not",
        "arch/x86/kernel, drivers/iommu, drivers/thermal, kernel/time",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.driver",
        "drivers and file systems that complain in words that no other check knows",
        "the driver or file system",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.process",
        "a process that crashed inside of NCCL, or made the out-of-memory killer run",
        "arch/x86/mm/fault.c, mm/oom_kill.c",
        clears=Clears.BOOT,
    ),
)

PCIE = (
    FaultRow("kernel.pcie", "fatal", "B", "a fatal PCIe error: the device's link is down"),
    FaultRow("kernel.pcie", "nonfatal", "W", "an uncorrected PCIe error that the link survived"),
    FaultRow(
        "kernel.pcie",
        "recovery-failed",
        "W",
        "a device's driver took no part in the recovery from a PCIe error",
    ),
    FaultRow(
        "kernel.pcie",
        "contained",
        "W",
        "a PCIe port cut off what lies behind it after an error (DPC)",
    ),
    FaultRow(
        "kernel.pcie", "slot", "I", "a PCIe slot lost its link or card, or a volume was detached"
    ),
    FaultRow(
        "kernel.pcie",
        "inaccessible",
        "W",
        "a PCIe device does not come back from a reset or from sleep",
    ),
    FaultRow("kernel.pcie", "corrected", "W", "corrected PCIe errors"),
)

MEMORY = (
    FaultRow(
        "kernel.memory",
        "uncorrected",
        "X",
        "an uncorrected error of main memory or a processor",
        own=True,
    ),
    FaultRow(
        "kernel.memory",
        "deferred",
        "W",
        "a memory error that nobody has consumed: the page is taken out of use",
    ),
    FaultRow("kernel.memory", "corrected", "W", "corrected memory errors"),
    FaultRow(
        "kernel.memory",
        "logged",
        "W",
        "a hardware error that the kernel logged without saying what it is",
    ),
    FaultRow(
        "kernel.oom",
        "daemon",
        "A",
        "the kernel ran out of memory and killed a daemon that the cluster needs",
    ),
    FaultRow("kernel.oom", "node", "W", "the node ran out of memory: processes were killed"),
    FaultRow("kernel.oom", "numa", "W", "the memory of the NUMA nodes that a task may use ran out"),
    FaultRow("kernel.oom", "job", "I", "a job used more memory than it may: its own fault"),
    FaultRow(
        "kernel.oom", "cgroup", "I", "a job or service used more memory than its control group may"
    ),
)

PROCESSORS = (
    FaultRow("kernel.crash", "panic", "B", "the kernel panicked"),
    FaultRow(
        "kernel.crash",
        "driver",
        "B",
        "the kernel failed inside the driver of a GPU, network card or accelerator",
    ),
    FaultRow(
        "kernel.lockup",
        "driver",
        "B",
        "a processor is stuck inside the driver of a GPU, network card or accelerator",
    ),
    FaultRow(
        "kernel.lockup", "soft-long", "B", "a processor has been stuck for more than a minute"
    ),
    FaultRow("kernel.crash", "oops", "W", "the kernel failed in one process and goes on"),
    FaultRow("kernel.lockup", "hard", "W", "a processor took no interrupts"),
    FaultRow("kernel.lockup", "soft", "W", "a processor was stuck for a while"),
    FaultRow(
        "kernel.crash", "bug", "W", "the kernel found its own data damaged, or itself at fault"
    ),
    FaultRow("kernel.crash", "warning", "I", "the kernel or a driver met what it did not expect"),
    FaultRow(
        "kernel.lockup", "workqueue", "W", "deferred work of the kernel has not run for a long time"
    ),
    FaultRow("kernel.lockup", "rcu", "W", "a processor held up the kernel (RCU)"),
    FaultRow("kernel.lockup", "task", "W", "a task waits for something for minutes"),
)

LIMITS = (
    FaultRow("kernel.limits", "files", "W", "no process can open more files"),
    FaultRow(
        "kernel.limits", "conntrack", "W", "connections are dropped: conntrack's table is full"
    ),
    FaultRow("kernel.limits", "neighbors", "W", "no room for more network neighbors"),
    FaultRow("kernel.limits", "sockets", "W", "no memory left for TCP"),
    FaultRow("kernel.limits", "netdevice", "W", "a network device is not given back"),
    FaultRow("kernel.limits", "reset", "W", "ENA's driver resets its device"),
    FaultRow("kernel.process", "nccl", "I", "a process crashed inside of NCCL: its job's own"),
    FaultRow(
        "kernel.process",
        "oom-killer",
        "I",
        "the out-of-memory killer ran: the lines after it say whose memory was used up",
    ),
    FaultRow("kernel.limits", "queue", "W", "a network device's transmit queue stood still"),
)

NVIDIA = (
    FaultRow("kernel.nvidia", "nvlink", "A", "the NVIDIA driver is stuck looking for NVLinks"),
    FaultRow(
        "kernel.nvidia",
        "reboot",
        "B",
        "the NVIDIA driver says that it needs a reboot to work again",
    ),
    FaultRow("kernel.nvidia", "lost", "W", "the NVIDIA driver lost a GPU from the bus"),
    FaultRow(
        "kernel.nvidia",
        "reset",
        "W",
        "the NVIDIA driver needs a reset of a GPU that it does not name",
    ),
    FaultRow("kernel.nvidia", "init", "W", "a GPU could not be initialized"),
    FaultRow("kernel.nvidia", "version", "W", "the NVIDIA driver is not of its library's version"),
    FaultRow(
        "kernel.nvidia", "peermem", "W", "GPU memory that was registered with the network is gone"
    ),
)

PLATFORM = (
    FaultRow("kernel.platform", "thermal", "W", "the machine is too hot and shuts down"),
    FaultRow("kernel.platform", "iommu", "W", "a device read or wrote where it may not (IOMMU)"),
    FaultRow(
        "kernel.platform",
        "nmi",
        "W",
        "an interrupt that nobody knows, mostly of failing hardware (NMI)",
    ),
    FaultRow("kernel.platform", "clock", "I", "a clock that drifts was given up"),
    FaultRow("kernel.platform", "dma", "W", "no room left to copy what devices read and write"),
    FaultRow(
        "kernel.driver",
        "unknown",
        "I",
        "a driver or file system complains in words that this table does not know",
    ),
)
