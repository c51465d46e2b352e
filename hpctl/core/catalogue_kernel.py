"""The fault table's rows for what the kernel says beside Xid and SXid lines.

`hpctl.agent.checks.kernel_*` makes the findings. None of these rows counts: a code is one thing
however often it was printed. `AFTER` closes the node to new work and treats it when its jobs have
ended; it is R1 with a ladder that begins at the reboot, for there is no GPU to reset.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_OURS = "not NVIDIA's"
_AFTER = "REBOOT REPLACE"

PCIE = (
    Row("kernel-pcie-fatal", "", "B", "a fatal PCIe error: the device's link is down", _OURS),
    Row(
        "kernel-pcie-nonfatal",
        "",
        "I",
        "an uncorrected PCIe error that the link survived",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-pcie-recovery-failed",
        "",
        "I",
        "a device's driver took no part in the recovery from a PCIe error",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-pcie-contained",
        "",
        "I",
        "a PCIe port cut off what lies behind it after an error (DPC)",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-pcie-slot",
        "",
        "I",
        "a PCIe slot lost its link or card, or a volume was detached",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-pcie-inaccessible",
        "",
        "I",
        "a PCIe device does not come back from a reset or from sleep",
        _OURS,
        watch=True,
    ),
    Row("kernel-pcie-corrected", "", "I", "corrected PCIe errors", _OURS, watch=True),
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
    Row(
        "kernel-block-raid-degraded",
        "",
        "I",
        "a disk array lost a disk and goes on",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-nvme-timeout",
        "",
        "I",
        "an NVMe command timed out and was helped along",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-nvme-error", "", "I", "an NVMe controller or disk reports errors", _OURS, watch=True
    ),
    Row(
        "kernel-block-raid-error",
        "",
        "I",
        "a disk array or mapped device reports errors",
        _OURS,
        watch=True,
    ),
    Row("kernel-block-medium-error", "", "I", "a sector cannot be read", _OURS, watch=True),
    Row("kernel-block-io-error", "", "I", "a block device failed requests", _OURS, watch=True),
    Row("kernel-block-buffer-error", "", "I", "a buffer could not be written", _OURS, watch=True),
    Row("kernel-fs-error", "", "I", "a file system found itself damaged", _OURS, watch=True),
)

MEMORY = (
    Row(
        "kernel-memory-uncorrected",
        "",
        "X",
        "an uncorrected error of main memory or a processor",
        _OURS,
    ),
    Row(
        "kernel-memory-deferred",
        "",
        "I",
        "a memory error that nobody has consumed: the page is taken out of use",
        _OURS,
        watch=True,
    ),
    Row("kernel-memory-corrected", "", "I", "corrected memory errors", _OURS, watch=True),
    Row(
        "kernel-memory-logged",
        "",
        "I",
        "a hardware error that the kernel logged without saying what it is",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-oom-daemon",
        "",
        "R1",
        "the kernel ran out of memory and killed a daemon that the cluster needs",
        _OURS,
        ladder=_AFTER,
    ),
    Row(
        "kernel-oom-node",
        "",
        "I",
        "the node ran out of memory: processes were killed",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-oom-numa",
        "",
        "I",
        "the memory of the NUMA nodes that a task may use ran out",
        _OURS,
        watch=True,
    ),
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
    Row(
        "kernel-crash-oops",
        "",
        "I",
        "the kernel failed in one process and goes on",
        _OURS,
        watch=True,
    ),
    Row("kernel-lockup-hard", "", "I", "a processor took no interrupts", _OURS, watch=True),
    Row("kernel-lockup-soft", "", "I", "a processor was stuck for a while", _OURS, watch=True),
    Row(
        "kernel-crash-bug",
        "",
        "I",
        "the kernel found its own data damaged, or itself at fault",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-crash-warning", "", "I", "the kernel or a driver met what it did not expect", _OURS
    ),
    Row(
        "kernel-lockup-workqueue",
        "",
        "I",
        "deferred work of the kernel has not run for a long time",
        _OURS,
        watch=True,
    ),
    Row("kernel-lockup-rcu", "", "I", "a processor held up the kernel (RCU)", _OURS, watch=True),
    Row("kernel-lockup-task", "", "I", "a task waits for something for minutes", _OURS, watch=True),
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
    Row(
        "kernel-mlx5-health", "", "I", "a network card's firmware is in trouble", _OURS, watch=True
    ),
    Row(
        "kernel-mlx5-timeout",
        "",
        "I",
        "a queue of a network card stood still and was set up anew",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-mlx5-command",
        "",
        "I",
        "a network card refused a command: mostly a question that its function may not ask",
        _OURS,
    ),
    Row(
        "kernel-mlx5-init",
        "",
        "I",
        "a network card or its firmware did not start",
        _OURS,
        watch=True,
    ),
    Row("kernel-mlx5-link", "", "I", "a network port lost its link", _OURS),
    Row(
        "kernel-mlx5-cqe",
        "",
        "I",
        "a network request ended in an error: mostly its job's own, or its peer's",
        _OURS,
    ),
    Row("kernel-mlx5-module", "", "I", "trouble with a network port's cable", _OURS, watch=True),
    Row(
        "kernel-mlx5-power",
        "",
        "I",
        "a network card gets too little power from its slot",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-lustre-bug",
        "",
        "B",
        "the Lustre client stopped at an assertion of its own",
        _OURS,
    ),
    Row(
        "kernel-lustre-evicted",
        "",
        "I",
        "a Lustre server evicted this client: open files were lost",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-lustre-connection-lost",
        "",
        "I",
        "a Lustre server does not answer",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-lustre-checksum",
        "",
        "I",
        "data of a Lustre server was damaged on its way",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-nfs-state-lost",
        "",
        "I",
        "the state of files of an NFS server was lost",
        _OURS,
        watch=True,
    ),
    Row("kernel-nfs-not-responding", "", "I", "an NFS server does not answer", _OURS, watch=True),
    Row(
        "kernel-nfs-locks-lost",
        "",
        "I",
        "locks on files of an NFS server were lost",
        _OURS,
        watch=True,
    ),
)

LIMITS = (
    Row("kernel-limits-files", "", "I", "no process can open more files", _OURS, watch=True),
    Row(
        "kernel-limits-conntrack",
        "",
        "I",
        "connections are dropped: conntrack's table is full",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-limits-neighbors", "", "I", "no room for more network neighbors", _OURS, watch=True
    ),
    Row("kernel-limits-sockets", "", "I", "no memory left for TCP", _OURS, watch=True),
    Row(
        "kernel-limits-netdevice", "", "I", "a network device is not given back", _OURS, watch=True
    ),
    Row("kernel-limits-reset", "", "I", "ENA's driver resets its device", _OURS, watch=True),
    Row("kernel-process-nccl", "", "I", "a process crashed inside of NCCL: its job's own", _OURS),
    Row(
        "kernel-process-oom-killer",
        "",
        "I",
        "the out-of-memory killer ran: the lines after it say whose memory was used up",
        _OURS,
    ),
    Row(
        "kernel-limits-queue",
        "",
        "I",
        "a network device's transmit queue stood still",
        _OURS,
        watch=True,
    ),
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
    Row(
        "kernel-nvidia-lost",
        "",
        "I",
        "the NVIDIA driver lost a GPU from the bus",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-nvidia-reset",
        "",
        "I",
        "the NVIDIA driver needs a reset of a GPU that it does not name",
        _OURS,
        watch=True,
    ),
    Row("kernel-nvidia-init", "", "I", "a GPU could not be initialized", _OURS, watch=True),
    Row(
        "kernel-nvidia-version",
        "",
        "I",
        "the NVIDIA driver is not of its library's version",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-nvidia-peermem",
        "",
        "I",
        "GPU memory that was registered with the network is gone",
        _OURS,
        watch=True,
    ),
)

NEURON = (
    Row(
        "kernel-neuron-unknown",
        "",
        "I",
        "a hardware error of a Neuron device that this table does not know",
        _OURS,
        watch=True,
    ),
    Row("kernel-neuron", "", "X", "an uncorrected hardware error of a Neuron device", _OURS),
)

PLATFORM = (
    Row(
        "kernel-platform-thermal",
        "",
        "I",
        "the machine is too hot and shuts down",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-platform-iommu",
        "",
        "I",
        "a device read or wrote where it may not (IOMMU)",
        _OURS,
        watch=True,
    ),
    Row(
        "kernel-platform-nmi",
        "",
        "I",
        "an interrupt that nobody knows, mostly of failing hardware (NMI)",
        _OURS,
        watch=True,
    ),
    Row("kernel-platform-clock", "", "I", "a clock that drifts was given up", _OURS, watch=True),
    Row(
        "kernel-platform-dma",
        "",
        "I",
        "no room left to copy what devices read and write",
        _OURS,
        watch=True,
    ),
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
