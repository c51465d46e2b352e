"""The fault table's rows for what the kernel says beside Xid and SXid lines.

`hpctl.agent.checks.kernel_*` makes the findings. None of these rows counts: a code is one thing
however often it was printed. `AFTER` closes the node to new work and treats it when its jobs have
ended; it is R1 with a ladder that begins at the reboot, for there is no GPU to reset.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_OURS = "not NVIDIA's"
_AFTER = "REBOOT REPLACE"


def _watched(rule: str, meaning: str) -> Row:
    """A code that is shown as Suspect and never acted on."""
    return Row(rule, "", "I", meaning, _OURS, watch=True)


PCIE = (
    Row("kernel-pcie-fatal", "", "B", "a fatal PCIe error: the device's link is down", _OURS),
    _watched("kernel-pcie-nonfatal", "an uncorrected PCIe error that the link survived"),
    _watched(
        "kernel-pcie-recovery-failed",
        "a device's driver took no part in the recovery from a PCIe error",
    ),
    _watched(
        "kernel-pcie-contained", "a PCIe port cut off what lies behind it after an error (DPC)"
    ),
    Row(
        "kernel-pcie-slot",
        "",
        "I",
        "a PCIe slot lost its link or card, or a volume was detached",
        _OURS,
    ),
    _watched(
        "kernel-pcie-inaccessible", "a PCIe device does not come back from a reset or from sleep"
    ),
    _watched("kernel-pcie-corrected", "corrected PCIe errors"),
)

STORAGE = (
    Row(
        "kernel-fs-readonly",
        "",
        "B",
        "a local file system takes no more writes after an error",
        _OURS,
    ),
    Row("kernel-nvme-dead", "", "B", "an NVMe controller is gone, with its data", _OURS),
    Row("kernel-block-raid-lost", "", "B", "a disk array has failed", _OURS),
    Row(
        "kernel-nvme-down",
        "",
        "R1",
        "an NVMe controller went down and was reset",
        _OURS,
        ladder=_AFTER,
    ),
    _watched("kernel-block-raid-degraded", "a disk array lost a disk and goes on"),
    _watched("kernel-nvme-timeout", "an NVMe command timed out and was helped along"),
    _watched("kernel-nvme-error", "an NVMe controller or disk reports errors"),
    _watched("kernel-block-raid-error", "a disk array or mapped device reports errors"),
    _watched("kernel-block-medium-error", "a sector cannot be read"),
    _watched("kernel-block-io-error", "a block device failed requests"),
    _watched("kernel-block-buffer-error", "a buffer could not be written"),
    _watched("kernel-fs-error", "a file system found itself damaged"),
)

MEMORY = (
    Row(
        "kernel-memory-uncorrected",
        "",
        "X",
        "an uncorrected error of main memory or a processor",
        _OURS,
    ),
    _watched(
        "kernel-memory-deferred",
        "a memory error that nobody has consumed: the page is taken out of use",
    ),
    _watched("kernel-memory-corrected", "corrected memory errors"),
    _watched(
        "kernel-memory-logged", "a hardware error that the kernel logged without saying what it is"
    ),
    Row(
        "kernel-oom-daemon",
        "",
        "R1",
        "the kernel ran out of memory and killed a daemon that the cluster needs",
        _OURS,
        ladder=_AFTER,
    ),
    _watched("kernel-oom-node", "the node ran out of memory: processes were killed"),
    _watched("kernel-oom-numa", "the memory of the NUMA nodes that a task may use ran out"),
    Row("kernel-oom-job", "", "I", "a job used more memory than it may: its own fault", _OURS),
    Row(
        "kernel-oom-cgroup",
        "",
        "I",
        "a job or service used more memory than its control group may",
        _OURS,
    ),
)

PROCESSORS = (
    Row("kernel-crash-panic", "", "B", "the kernel panicked", _OURS),
    Row(
        "kernel-crash-driver",
        "",
        "B",
        "the kernel failed inside the driver of a GPU, network card or accelerator",
        _OURS,
    ),
    Row(
        "kernel-lockup-driver",
        "",
        "B",
        "a processor is stuck inside the driver of a GPU, network card or accelerator",
        _OURS,
    ),
    Row(
        "kernel-lockup-soft-long",
        "",
        "B",
        "a processor has been stuck for more than a minute",
        _OURS,
    ),
    _watched("kernel-crash-oops", "the kernel failed in one process and goes on"),
    _watched("kernel-lockup-hard", "a processor took no interrupts"),
    _watched("kernel-lockup-soft", "a processor was stuck for a while"),
    _watched("kernel-crash-bug", "the kernel found its own data damaged, or itself at fault"),
    Row(
        "kernel-crash-warning", "", "I", "the kernel or a driver met what it did not expect", _OURS
    ),
    _watched("kernel-lockup-workqueue", "deferred work of the kernel has not run for a long time"),
    _watched("kernel-lockup-rcu", "a processor held up the kernel (RCU)"),
    _watched("kernel-lockup-task", "a task waits for something for minutes"),
)

REMOTE = (
    Row(
        "kernel-efa",
        "",
        "B",
        "an EFA card or its driver stopped answering: no job can open it",
        _OURS,
    ),
    Row("kernel-mlx5-fatal", "", "B", "a network card reports that it has failed", _OURS),
    Row(
        "kernel-mlx5-unrecoverable",
        "",
        "X",
        "a network card reports an unrecoverable hardware error",
        _OURS,
    ),
    _watched("kernel-mlx5-health", "a network card's firmware is in trouble"),
    _watched("kernel-mlx5-timeout", "a queue of a network card stood still and was set up anew"),
    Row(
        "kernel-mlx5-command",
        "",
        "I",
        "a network card refused a command: mostly a question that its function may not ask",
        _OURS,
    ),
    _watched("kernel-mlx5-init", "a network card or its firmware did not start"),
    Row("kernel-mlx5-link", "", "I", "a network port lost its link", _OURS),
    Row(
        "kernel-mlx5-cqe",
        "",
        "I",
        "a network request ended in an error: mostly its job's own, or its peer's",
        _OURS,
    ),
    _watched("kernel-mlx5-module", "trouble with a network port's cable"),
    _watched("kernel-mlx5-power", "a network card gets too little power from its slot"),
    Row(
        "kernel-lustre-bug",
        "",
        "B",
        "the Lustre client stopped at an assertion of its own",
        _OURS,
    ),
    _watched("kernel-lustre-evicted", "a Lustre server evicted this client: open files were lost"),
    _watched("kernel-lustre-connection-lost", "a Lustre server does not answer"),
    _watched("kernel-lustre-checksum", "data of a Lustre server was damaged on its way"),
    _watched("kernel-nfs-state-lost", "the state of files of an NFS server was lost"),
    _watched("kernel-nfs-not-responding", "an NFS server does not answer"),
    _watched("kernel-nfs-locks-lost", "locks on files of an NFS server were lost"),
)

LIMITS = (
    _watched("kernel-limits-files", "no process can open more files"),
    _watched("kernel-limits-conntrack", "connections are dropped: conntrack's table is full"),
    _watched("kernel-limits-neighbors", "no room for more network neighbors"),
    _watched("kernel-limits-sockets", "no memory left for TCP"),
    _watched("kernel-limits-netdevice", "a network device is not given back"),
    _watched("kernel-limits-reset", "ENA's driver resets its device"),
    Row("kernel-process-nccl", "", "I", "a process crashed inside of NCCL: its job's own", _OURS),
    Row(
        "kernel-process-oom-killer",
        "",
        "I",
        "the out-of-memory killer ran: the lines after it say whose memory was used up",
        _OURS,
    ),
    _watched("kernel-limits-queue", "a network device's transmit queue stood still"),
)

DRIVER = (
    Row(
        "kernel-nvidia-nvlink",
        "",
        "R1",
        "the NVIDIA driver is stuck looking for NVLinks",
        _OURS,
        ladder=_AFTER,
    ),
    Row(
        "kernel-nvidia-reboot",
        "",
        "B",
        "the NVIDIA driver says that it needs a reboot to work again",
        _OURS,
    ),
    _watched("kernel-nvidia-lost", "the NVIDIA driver lost a GPU from the bus"),
    _watched(
        "kernel-nvidia-reset", "the NVIDIA driver needs a reset of a GPU that it does not name"
    ),
    _watched("kernel-nvidia-init", "a GPU could not be initialized"),
    _watched("kernel-nvidia-version", "the NVIDIA driver is not of its library's version"),
    _watched("kernel-nvidia-peermem", "GPU memory that was registered with the network is gone"),
)

NEURON = (
    _watched(
        "kernel-neuron-unknown", "a hardware error of a Neuron device that this table does not know"
    ),
    Row("kernel-neuron", "", "X", "an uncorrected hardware error of a Neuron device", _OURS),
)

PLATFORM = (
    _watched("kernel-platform-thermal", "the machine is too hot and shuts down"),
    _watched("kernel-platform-iommu", "a device read or wrote where it may not (IOMMU)"),
    _watched(
        "kernel-platform-nmi", "an interrupt that nobody knows, mostly of failing hardware (NMI)"
    ),
    Row("kernel-platform-clock", "", "I", "a clock that drifts was given up", _OURS),
    _watched("kernel-platform-dma", "no room left to copy what devices read and write"),
    Row(
        "kernel-driver-unknown",
        "",
        "I",
        "a driver or file system complains in words that this table does not know",
        _OURS,
    ),
)

KERNEL_SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("Kernel: PCIe", PCIE),
    ("Kernel: disks and local file systems", STORAGE),
    ("Kernel: memory", MEMORY),
    ("Kernel: processors and the kernel itself", PROCESSORS),
    ("Kernel: network cards and file servers", REMOTE),
    ("Kernel: limits that were reached", LIMITS),
    ("Kernel: NVIDIA's modules, without a number", DRIVER),
    ("Kernel: AWS Neuron", NEURON),
    ("Kernel: the platform, and words nobody knows", PLATFORM),
)
KERNEL_ROWS = tuple(row for _, rows in KERNEL_SECTIONS for row in rows)
