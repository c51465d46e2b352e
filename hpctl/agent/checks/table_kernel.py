"""What the agent reads in the kernel's log: the rows of the documentation.

These checks have no interval and no limits: a line is judged in the moment that it is read. How
bad a code is, and what is done, the fault catalogue says by `<check with dashes>-<code>`.
"""

from __future__ import annotations

from dataclasses import dataclass

_UNTIL_BOOT = "boot"


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One check of kernel lines: its codes in order of gravity, and what ends its findings."""

    name: str
    what: str
    codes: tuple[str, ...]
    clears: str
    source: str


KERNEL: tuple[KernelRow, ...] = (
    KernelRow(
        "kernel.xid",
        "errors of a GPU (Xid), and a GPU that fell off the bus without a number (79); the job "
        "of the process that the line names",
        ("the Xid's number",),
        _UNTIL_BOOT,
        "NVIDIA driver",
    ),
    KernelRow(
        "kernel.sxid",
        "errors of an NVSwitch (SXid), up to Hopper",
        ("the SXid's number",),
        _UNTIL_BOOT,
        "NVIDIA driver",
    ),
    KernelRow(
        "kernel.pcie",
        "errors on a PCIe link, by the device that they came from (AER, DPC); devices and slots "
        "that are gone",
        (
            *("fatal", "contained", "slot", "inaccessible"),
            *("nonfatal", "recovery-failed", "corrected"),
        ),
        _UNTIL_BOOT,
        "drivers/pci",
    ),
    KernelRow(
        "kernel.nvme",
        "an NVMe controller that is gone, went down, or let a command time out",
        ("dead", "down", "error", "timeout"),
        _UNTIL_BOOT,
        "drivers/nvme/host",
    ),
    KernelRow(
        "kernel.block",
        "a block device that fails I/O, a disk array that lost a disk",
        ("raid-lost", "raid-degraded", "raid-error", "medium-error", "io-error", "buffer-error"),
        _UNTIL_BOOT,
        "block/blk-core.c, fs/buffer.c, drivers/md",
    ),
    KernelRow(
        "kernel.fs",
        "ext4, XFS or Btrfs that went read-only, or found itself damaged",
        ("readonly", "error"),
        _UNTIL_BOOT,
        "fs/ext4, fs/xfs, fs/btrfs",
    ),
    KernelRow(
        "kernel.oom",
        "the out-of-memory killer: for a daemon of the cluster, the node, a NUMA node, a job or "
        "a service",
        ("daemon", "node", "numa", "job", "cgroup"),
        _UNTIL_BOOT,
        "mm/oom_kill.c",
    ),
    KernelRow(
        "kernel.memory",
        "errors of main memory and processors (MCE, EDAC, APEI, poisoned pages)",
        ("uncorrected", "deferred", "corrected", "logged"),
        _UNTIL_BOOT,
        "drivers/edac, drivers/acpi/apei, mm/memory-failure.c",
    ),
    KernelRow(
        "kernel.lockup",
        "processors that are stuck, inside a driver or for how long; tasks that wait for minutes",
        ("driver", "soft-long", "hard", "soft", "workqueue", "rcu", "task"),
        _UNTIL_BOOT,
        "kernel/watchdog.c, kernel/hung_task.c, kernel/rcu",
    ),
    KernelRow(
        "kernel.crash",
        "a panic, an oops, a bug in the kernel, a warning; whether in a driver that jobs live by",
        ("panic", "driver", "oops", "bug", "warning"),
        _UNTIL_BOOT,
        "kernel/panic.c, arch",
    ),
    KernelRow(
        "kernel.nfs",
        "an NFS server that does not answer, locks and state that were lost",
        ("not-responding", "locks-lost", "state-lost"),
        "gone with the line that says that the server is back; what was lost: boot",
        "net/sunrpc/clnt.c, fs/nfs",
    ),
    KernelRow(
        "kernel.lustre",
        "the Lustre client: an assertion that failed, an eviction, damaged data, a connection that "
        "was lost",
        ("bug", "evicted", "checksum", "connection-lost"),
        "boot; a lost connection is gone when it is restored",
        "Lustre client",
    ),
    KernelRow(
        "kernel.efa",
        "an EFA card whose driver closed its queue or cannot reach it",
        ("unanswered", "interrupt", "register", "reset"),
        _UNTIL_BOOT,
        "drivers/infiniband/hw/efa",
    ),
    KernelRow(
        "kernel.mlx5",
        "a Mellanox card that failed, its firmware, queues, cable, power",
        (
            *("unrecoverable", "fatal", "health", "init", "timeout", "module", "power"),
            *("link", "cqe", "command"),
        ),
        _UNTIL_BOOT,
        "drivers/net/ethernet/mellanox/mlx5",
    ),
    KernelRow(
        "kernel.limits",
        "limits of the kernel and the network that were reached",
        ("files", "conntrack", "neighbors", "sockets", "netdevice", "reset", "queue"),
        _UNTIL_BOOT,
        "fs/file_table.c, net",
    ),
    KernelRow(
        "kernel.nvidia",
        "what NVIDIA's modules say without a number: NVLinks, initialization, versions, peermem",
        ("reboot", "nvlink", "lost", "reset", "init", "version", "peermem"),
        _UNTIL_BOOT,
        "open-gpu-kernel-modules",
    ),
    KernelRow(
        "kernel.platform",
        "interrupts nobody knows, clocks that drift, heat, devices that write where they may not",
        ("thermal", "iommu", "nmi", "clock", "dma"),
        _UNTIL_BOOT,
        "arch/x86/kernel, drivers/iommu, drivers/thermal, kernel/time",
    ),
    KernelRow(
        "kernel.driver",
        "drivers and file systems that complain in words that no other check knows",
        ("unknown",),
        _UNTIL_BOOT,
        "the driver or file system",
    ),
    KernelRow(
        "kernel.process",
        "a process that crashed inside of NCCL, or made the out-of-memory killer run",
        ("nccl", "oom-killer"),
        _UNTIL_BOOT,
        "arch/x86/mm/fault.c, mm/oom_kill.c",
    ),
    KernelRow(
        "kernel.neuron",
        "hardware errors of an AWS Neuron device: SRAM, core, HBM, DMA",
        ("sram", "nc", "hbm", "dma", "unknown"),
        _UNTIL_BOOT,
        "Neuron driver (NEURON_HW_ERR=)",
    ),
)
