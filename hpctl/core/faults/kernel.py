"""The kernel itself: PCIe, memory, processors, disks, file systems, limits, modules, the platform.

A code is one thing however often it was printed.
"""

from hpctl.core.faults.row import CheckSpec, FaultRow, rows
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
    *rows(
        "kernel.pcie",
        (
            "recovery-failed",
            "W",
            "a device's driver took no part in the recovery from a PCIe error",
        ),
        ("contained", "W", "a PCIe port cut off what lies behind it after an error (DPC)"),
        ("slot", "I", "a PCIe slot lost its link or card, or a volume was detached"),
        ("inaccessible", "W", "a PCIe device does not come back from a reset or from sleep"),
        ("corrected", "W", "corrected PCIe errors"),
    ),
)

MEMORY = (
    FaultRow(
        "kernel.memory",
        "uncorrected",
        "X",
        "an uncorrected error of main memory or a processor",
        own=True,
    ),
    *rows(
        "kernel.memory",
        ("deferred", "W", "a memory error that nobody has consumed: the page is taken out of use"),
        ("corrected", "W", "corrected memory errors"),
        ("logged", "W", "a hardware error that the kernel logged without saying what it is"),
    ),
    *rows(
        "kernel.oom",
        ("daemon", "A", "the kernel ran out of memory and killed a daemon that the cluster needs"),
        ("node", "W", "the node ran out of memory: processes were killed"),
        ("numa", "W", "the memory of the NUMA nodes that a task may use ran out"),
        ("job", "I", "a job used more memory than it may: its own fault"),
        ("cgroup", "I", "a job or service used more memory than its control group may"),
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
    *rows(
        "kernel.lockup",
        (
            "driver",
            "B",
            "a processor is stuck inside the driver of a GPU, network card or accelerator",
        ),
        ("soft-long", "B", "a processor has been stuck for more than a minute"),
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
    *rows(
        "kernel.nvidia",
        ("reboot", "B", "the NVIDIA driver says that it needs a reboot to work again"),
        ("lost", "W", "the NVIDIA driver lost a GPU from the bus"),
        ("reset", "W", "the NVIDIA driver needs a reset of a GPU that it does not name"),
        ("init", "W", "a GPU could not be initialized"),
        ("version", "W", "the NVIDIA driver is not of its library's version"),
        ("peermem", "W", "GPU memory that was registered with the network is gone"),
    ),
)

PLATFORM = (
    FaultRow("kernel.platform", "thermal", "W", "the machine is too hot and shuts down"),
    FaultRow("kernel.platform", "iommu", "W", "a device read or wrote where it may not (IOMMU)"),
    *rows(
        "kernel.platform",
        ("nmi", "W", "an interrupt that nobody knows, mostly of failing hardware (NMI)"),
        ("clock", "I", "a clock that drifts was given up"),
        ("dma", "W", "no room left to copy what devices read and write"),
    ),
    FaultRow(
        "kernel.driver",
        "unknown",
        "I",
        "a driver or file system complains in words that this table does not know",
    ),
)


DISK_CHECKS = (
    CheckSpec(
        "kernel.nvme",
        "an NVMe controller that is gone, went down, or let a command time out",
        "drivers/nvme/host",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.block",
        "a block device that fails I/O, a disk array that lost a disk",
        "block/blk-core.c, fs/buffer.c, drivers/md",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.fs",
        "ext4, XFS or Btrfs that went read-only, or found itself damaged",
        "fs/ext4, fs/xfs, fs/btrfs",
        clears=Clears.BOOT,
    ),
)
SERVER_CHECKS = (
    CheckSpec(
        "kernel.nfs",
        "an NFS server that does not answer, locks and state that were lost",
        "net/sunrpc/clnt.c, fs/nfs",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.lustre",
        "the Lustre client: an assertion that failed, an eviction, damaged data, a "
        "connection that was lost",
        "Lustre client",
        clears=Clears.BOOT,
    ),
)

DISKS = (
    FaultRow(
        "kernel.fs", "readonly", "B", "a local file system takes no more writes after an error"
    ),
    FaultRow("kernel.nvme", "dead", "B", "an NVMe controller is gone, with its data"),
    FaultRow("kernel.block", "raid-lost", "B", "a disk array has failed"),
    FaultRow("kernel.nvme", "down", "A", "an NVMe controller went down and was reset", own=True),
    FaultRow("kernel.block", "raid-degraded", "W", "a disk array lost a disk and goes on"),
    FaultRow("kernel.nvme", "timeout", "W", "an NVMe command timed out and was helped along"),
    FaultRow("kernel.nvme", "error", "W", "an NVMe controller or disk reports errors"),
    FaultRow("kernel.block", "raid-error", "W", "a disk array or mapped device reports errors"),
    FaultRow("kernel.block", "medium-error", "W", "a sector cannot be read"),
    FaultRow("kernel.block", "io-error", "W", "a block device failed requests"),
    FaultRow("kernel.block", "buffer-error", "W", "a buffer could not be written"),
    FaultRow("kernel.fs", "error", "W", "a file system found itself damaged"),
)

SERVERS = (
    FaultRow("kernel.lustre", "bug", "B", "the Lustre client stopped at an assertion of its own"),
    FaultRow(
        "kernel.lustre", "evicted", "W", "a Lustre server evicted this client: open files were lost"
    ),
    FaultRow(
        "kernel.lustre",
        "connection-lost",
        "W",
        "a Lustre server does not answer",
        clears=Clears.GONE,
    ),
    FaultRow("kernel.lustre", "checksum", "W", "data of a Lustre server was damaged on its way"),
    FaultRow("kernel.nfs", "state-lost", "W", "the state of files of an NFS server was lost"),
    FaultRow(
        "kernel.nfs", "not-responding", "W", "an NFS server does not answer", clears=Clears.GONE
    ),
    FaultRow("kernel.nfs", "locks-lost", "W", "locks on files of an NFS server were lost"),
)
