"""The host: disks, memory, processes, the clock, systemd's units, what EC2 gives the instance.

What touches a node by itself is certain: memory and disks that fail, a driver call that does not
return, a disk that the kernel gave up. What a person or a job can cause is told and left alone.
A thing that three of three looks 30 s apart see has been so for a minute.
"""

from hpctl.core.faults.row import CheckSpec, FaultRow, Limit, rows
from hpctl.core.model import Clears

_A_JOB = "told, never acted on: a job does that"
_SERVER = "shown as Suspect: mostly the file server's fault"
_GPUD = "gpud's limit"

CHECKS = (
    CheckSpec(
        "host.disk",
        "/, /var, /tmp, /var/tmp and /dev/shm: full by space or inodes; scratch only between jobs",
        "statvfs; /proc for slurmstepd when scratch is over half full",
        every_s=60,
        seen=(2, 2),
        gone_s=150,
        shed=1,
        limits={
            "full_pct": Limit(95, "%", "Meta's GCM calls 85 critical; jobs are lost only near 100"),
            "filling_pct": Limit(90, "%", "half way between usual use and full"),
            "roomy_gib": Limit(20, "GiB", "5 % of a disk of many TB is room for weeks of logs"),
            "least_mib": Limit(500, "MiB", "gpud's limit; for disks twenty times as large"),
        },
    ),
    CheckSpec(
        "host.readonly",
        "local file systems that the kernel took out of service after an error",
        "/proc/self/mountinfo; stat and a write of one byte in children",
        every_s=60,
        clears=Clears.BOOT,
        limits={
            "write_s": Limit(110, "s", "a full write-back cache on a slow volume lasts a minute")
        },
    ),
    CheckSpec(
        "host.nvme",
        "NVMe controllers that are dead, in a reset that does not end, or too hot",
        "/sys/class/nvme",
        every_s=30,
        seen=(3, 3),
        gone_s=300,
    ),
    CheckSpec(
        "host.nvme.smart",
        "the disks' own warning of their end (critical_warning)",
        "nvme smart-log, where nvme-cli is installed",
        every_s=3600,
        gone_s=7500,
        shed=2,
    ),
    CheckSpec(
        "host.devices",
        "as many NVMe disks as the instance type has; network cards that were there still are",
        "/sys/bus/pci/devices; Amazon EC2 instance types",
        every_s=60,
        seen=(3, 3),
        gone_s=210,
        grace_s=180,
        shed=1,
    ),
    CheckSpec(
        "host.allowance",
        "traffic beyond what EC2 allows the instance: network, connections, EBS",
        "ethtool -S, nvme get-log, where they are installed; aws/eks-node-monitoring-agent",
        every_s=120,
        seen=(2, 2),
        gone_s=300,
        shed=4,
        limits={
            "packets": Limit(1000, "packets in 2 min", "a burst costs some; 8 a second is a habit"),
            "ebs_us": Limit(12000000.0, "us in 2 min", "a tenth of the time"),
        },
    ),
    CheckSpec(
        "host.memory",
        "less memory than the instance type has, hardly any left, much in use while no "
        "job runs, corrected errors in a stream",
        "/proc/meminfo, EDAC's ce_count",
        every_s=60,
        seen=(2, 2),
        gone_s=150,
        limits={
            "short_pct": Limit(90, "%", "firmware, kernel and crash kernel take up to 4 % of it"),
            "idle_pct": Limit(30, "%", "a node with its daemons and caches needs a few of it"),
            "low_mib": Limit(100, "MiB", "gpud's limit: the kernel is about to kill"),
            "corrected_per_min": Limit(
                10, "1/min", "a failing row gives thousands, a healthy one 0"
            ),
        },
    ),
    CheckSpec(
        "host.edac",
        "uncorrected memory errors",
        "/sys/devices/system/edac/mc",
        every_s=60,
        clears=Clears.OPERATOR,
        limits={"uncorrected": Limit(1, "errors", "one says that the module fails")},
    ),
    CheckSpec(
        "host.dstate",
        "tasks that sleep in a driver or a network file system and do not run any more",
        "/proc: state, context switches, kernel stack or wchan",
        every_s=30,
        gone_s=75,
        limits={"asleep_s": Limit(60, "s", "no driver call of a healthy device is so long")},
    ),
    CheckSpec(
        "host.zombies",
        "zombies, and use of the kernel's limits of tasks and open files",
        "/proc",
        every_s=300,
        seen=(2, 2),
        gone_s=660,
        shed=2,
        limits={
            "zombies": Limit(1000, "tasks", _GPUD),
            "warn_pct": Limit(80, "%", _GPUD),
            "fail_pct": Limit(95, "%", _GPUD),
        },
    ),
    CheckSpec(
        "host.clock",
        "the clock: kept by a time service, and how far off",
        "adjtimex; chronyc tracking, where chrony is installed",
        every_s=120,
        seen=(3, 3),
        gone_s=300,
        grace_s=300,
        shed=1,
        limits={
            "offset_s": Limit(0.1, "s", "time services keep well under a hundredth of it"),
            "skewed_s": Limit(60, "s", "MUNGE refuses credentials of minutes ago or ahead"),
        },
    ),
    CheckSpec(
        "host.mounts",
        "Lustre, NFS and other network file systems that hang, or whose server is gone",
        "/proc/self/mountinfo; stat in children",
        every_s=30,
        gone_s=75,
        limits={"silent_s": Limit(10, "s", "a busy file server answers within seconds")},
    ),
    CheckSpec(
        "host.spot",
        "a spot instance that EC2 is about to take back; asked only with `expected: {spot: true}`",
        "IMDSv2: spot/instance-action",
        every_s=5,
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "host.units",
        "systemd units: fabric manager, slurmd, munge, NVIDIA's and HyperPod's services",
        "systemctl show",
        every_s=30,
        seen=(3, 3),
        gone_s=75,
        grace_s=600,
    ),
)

HOST = (
    FaultRow(
        "host.spot",
        "interruption",
        "X",
        "EC2 takes the spot instance back",
        differs=(
            "its jobs are saved and moved within the two minutes' notice; nobody orders a "
            "replacement, for the service brings one when there is capacity"
        ),
        ladder="AWAIT",
    ),
    FaultRow(
        "host.readonly",
        "readonly",
        "B",
        "a local file system was taken out of service after an error",
        differs="jobs fail at their next write; only a restart checks and mounts it again",
    ),
    FaultRow(
        "host.dstate",
        "nvidia",
        "B",
        "a process has not returned from the NVIDIA driver for a minute",
        differs="it cannot be killed and holds its GPU; resetting needs the driver that hangs",
    ),
    FaultRow(
        "host.dstate",
        "efa",
        "B",
        "a process has not returned from the EFA driver for a minute",
        differs="it cannot be killed and holds its adapter",
    ),
    FaultRow(
        "host.dstate",
        "neuron",
        "B",
        "a process has not returned from the Neuron driver for a minute",
        differs="it cannot be killed and holds its accelerator",
    ),
    FaultRow(
        "host.edac",
        "ue",
        "R1",
        "uncorrected memory error",
        differs=(
            "replaced after its jobs: the process that was hit is dead, and a restart mends nothing"
        ),
        ladder="REPLACE",
        own=True,
    ),
    FaultRow(
        "host.nvme",
        "dead",
        "A",
        "an NVMe controller is dead",
        differs=(
            "a restart resets it; if it dies again, it is replaced. Jobs that used it have failed"
        ),
        own=True,
    ),
    FaultRow(
        "host.nvme.smart",
        "failing",
        "R1",
        "an NVMe disk says that it fails",
        differs="replaced when its jobs have ended: the disk works until then",
        ladder="REPLACE",
        own=True,
    ),
    FaultRow(
        "host.units",
        "fabricmanager",
        "A",
        "the fabric manager does not run",
        differs="not started again under running jobs: they go on, but new ones cannot use NVLink",
    ),
    *rows(
        "host.units",
        (
            "slurmd",
            "R1",
            "slurmd has failed and does not come up",
            "",
            "a restart, then a person: a replaced node with the same configuration fails the "
            "same way",
        ),
        ("munge", "R1", "munged has failed and does not come up", "", "as for slurmd"),
        ladder="REBOOT ASK_HUMAN",
    ),
    FaultRow(
        "host.memory",
        "short",
        "R1",
        "less memory than the instance type has",
        differs=(
            "a restart, then a person: a boot parameter can be the cause as well as a memory module"
        ),
        ladder="REBOOT ASK_HUMAN",
    ),
    FaultRow(
        "host.clock",
        "skewed",
        "R1",
        "the clock is more than a minute off",
        differs=(
            "a restart sets the clock; MUNGE refuses a node that is minutes off: nothing "
            "starts there"
        ),
        ladder="REBOOT ASK_HUMAN",
    ),
    *rows(
        "host.disk",
        (
            "full",
            "R1",
            "a system disk is full",
            "",
            "a restart frees what dead processes hold open; then a person: replacing discards data",
        ),
        ("inodes", "R1", "a system disk has no inodes left", "", "as for a full disk"),
        (
            "leftovers",
            "R1",
            "scratch space is full though no job runs",
            "",
            "a restart empties /dev/shm, and /tmp where it is memory; then a person",
        ),
        ladder="REBOOT ASK_HUMAN",
    ),
    FaultRow("host.disk", "filling", "W", "a system disk fills up"),
    FaultRow("host.readonly", "write-hangs", "W", "a local write hangs"),
    FaultRow("host.nvme", "not-live", "W", "an NVMe reset does not end"),
    FaultRow("host.nvme", "hot", "W", "an NVMe disk is too hot"),
    FaultRow("host.nvme.smart", "hot", "W", "an NVMe disk is too hot"),
    FaultRow(
        "host.devices",
        "nvme",
        "A",
        "disks of the instance storage are missing",
        differs=(
            "a restart probes the bus; a disk that is still missing is replaced with its instance"
        ),
    ),
    FaultRow("host.devices", "network", "W", "a network card is gone"),
    *rows(
        "host.allowance",
        ("network", "I", "traffic beyond what EC2 allows the instance was held back", "", _A_JOB),
        ("conntrack", "I", "more connections than EC2 tracks for the instance", "", _A_JOB),
        ("ebs", "I", "an EBS volume or the instance's way to EBS is at its limit", "", _A_JOB),
    ),
    FaultRow(
        "host.memory",
        "leftovers",
        "W",
        "much memory is in use though no job runs",
        differs="shown as Suspect: files in /dev/shm or processes that a job left",
    ),
    FaultRow("host.memory", "low", "W", "hardly any memory is left"),
    FaultRow("host.memory", "ce-rate", "W", "many corrected memory errors"),
    *rows(
        "host.dstate",
        (
            "lustre",
            "W",
            "a process has not returned from Lustre for a minute",
            "",
            "shown as Suspect: mostly the file server's fault, and a restart would hang in it too",
        ),
        ("nfs", "W", "a process has not returned from NFS for a minute", "", _SERVER),
    ),
    *rows(
        "host.mounts",
        ("hangs", "W", "a network file system does not answer"),
        ("error", "W", "the server of a network file system has gone or has shut this node out"),
        differs=_SERVER,
    ),
    FaultRow("host.zombies", "zombies", "W", "a thousand zombies"),
    FaultRow("host.zombies", "tasks", "W", "the kernel's tasks are nearly used up"),
    FaultRow("host.zombies", "files", "W", "the kernel's open files are nearly used up"),
    FaultRow("host.clock", "offset", "W", "the clock is off"),
    FaultRow("host.clock", "unsynchronised", "W", "nothing keeps the clock"),
    FaultRow("host.units", "stopped", "W", "a unit was stopped"),
    FaultRow("host.units", "nvidia", "W", "a service of NVIDIA's does not run"),
    FaultRow("host.units", "hyperpod", "W", "an agent of HyperPod does not run"),
)
