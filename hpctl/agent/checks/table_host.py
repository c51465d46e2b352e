"""The checks of the host: how often each looks, when it believes what it sees, and its limits."""

from __future__ import annotations

from types import MappingProxyType

from hpctl.agent.check import Limit, Spec
from hpctl.core.model import Clears


def _limits(**limits: Limit) -> MappingProxyType[str, Limit]:
    return MappingProxyType(limits)


HOST: tuple[Spec, ...] = (
    Spec(
        "host.disk",
        "host_disk",
        "/, /var, /tmp, /var/tmp and /dev/shm: full by space or inodes; scratch only between jobs",
        "statvfs; /proc for slurmstepd when scratch is over half full",
        every_s=60,
        seen=(2, 2),
        gone_s=150,
        shed=1,
        limits=_limits(
            full_pct=Limit(95, "%", "Meta's GCM calls 85 critical; jobs are lost only near 100"),
            filling_pct=Limit(90, "%", "half way between usual use and full"),
            roomy_gib=Limit(20, "GiB", "5 % of a disk of many TB is room for weeks of logs"),
            least_mib=Limit(500, "MiB", "gpud's limit; for disks twenty times as large"),
        ),
    ),
    Spec(
        "host.readonly",
        "host_readonly",
        "local file systems that the kernel took out of service after an error",
        "/proc/self/mountinfo; stat and a write of one byte in children",
        every_s=60,
        clears=Clears.BOOT,
        limits=_limits(
            write_s=Limit(110, "s", "a full write-back cache on a slow volume lasts a minute")
        ),
    ),
    Spec(
        "host.nvme",
        "host_nvme",
        "NVMe controllers that are dead, in a reset that does not end, or too hot",
        "/sys/class/nvme",
        every_s=30,
        seen=(3, 3),
        gone_s=300,
    ),
    Spec(
        "host.nvme.smart",
        "host_nvme_smart",
        "the disks' own warning of their end (critical_warning)",
        "nvme smart-log, where nvme-cli is installed",
        every_s=3600,
        gone_s=7500,
        shed=2,
    ),
    Spec(
        "host.devices",
        "host_devices",
        "as many NVMe disks as the instance type has; network cards that were there still are",
        "/sys/bus/pci/devices; Amazon EC2 instance types",
        every_s=60,
        seen=(3, 3),
        gone_s=210,
        grace_s=180,
        shed=1,
    ),
    Spec(
        "host.allowance",
        "host_allowance",
        "traffic beyond what EC2 allows the instance: network, connections, EBS",
        "ethtool -S, nvme get-log, where they are installed; aws/eks-node-monitoring-agent",
        every_s=120,
        seen=(2, 2),
        gone_s=300,
        shed=4,
        limits=_limits(
            packets=Limit(1000, "packets in 2 min", "a burst costs some; 8 a second is a habit"),
            ebs_us=Limit(12e6, "us in 2 min", "a tenth of the time"),
        ),
    ),
    Spec(
        "host.memory",
        "host_memory",
        "less memory than the instance type has, hardly any left, much in use while no job runs, "
        "corrected errors in a stream",
        "/proc/meminfo, EDAC's ce_count",
        every_s=60,
        seen=(2, 2),
        gone_s=150,
        limits=_limits(
            short_pct=Limit(90, "%", "firmware, kernel and crash kernel take up to 4 % of it"),
            idle_pct=Limit(30, "%", "a node with its daemons and caches needs a few of it"),
            low_mib=Limit(100, "MiB", "gpud's limit: the kernel is about to kill"),
            corrected_per_min=Limit(10, "1/min", "a failing row gives thousands, a healthy one 0"),
        ),
    ),
    Spec(
        "host.edac",
        "host_edac",
        "uncorrected memory errors",
        "/sys/devices/system/edac/mc",
        every_s=60,
        clears=Clears.OPERATOR,
        limits=_limits(uncorrected=Limit(1, "errors", "one says that the module fails")),
    ),
    Spec(
        "host.dstate",
        "host_dstate",
        "tasks that sleep in a driver or a network file system and do not run any more",
        "/proc: state, context switches, kernel stack or wchan",
        every_s=30,
        gone_s=75,
        limits=_limits(asleep_s=Limit(60, "s", "no driver call of a healthy device is so long")),
    ),
    Spec(
        "host.zombies",
        "host_zombies",
        "zombies, and use of the kernel's limits of tasks and open files",
        "/proc",
        every_s=300,
        seen=(2, 2),
        gone_s=660,
        shed=2,
        limits=_limits(
            zombies=Limit(1000, "tasks", "gpud's limit"),
            warn_pct=Limit(80, "%", "gpud's limit"),
            fail_pct=Limit(95, "%", "gpud's limit"),
        ),
    ),
    Spec(
        "host.clock",
        "host_clock",
        "the clock: kept by a time service, and how far off",
        "adjtimex; chronyc tracking, where chrony is installed",
        every_s=120,
        seen=(3, 3),
        gone_s=300,
        grace_s=300,
        shed=1,
        limits=_limits(
            offset_s=Limit(0.1, "s", "time services keep well under a hundredth of it"),
            skewed_s=Limit(60, "s", "MUNGE refuses credentials of minutes ago or ahead"),
        ),
    ),
    Spec(
        "host.mounts",
        "host_mounts",
        "Lustre, NFS and other network file systems that hang, or whose server is gone",
        "/proc/self/mountinfo; stat in children",
        every_s=30,
        gone_s=75,
        limits=_limits(silent_s=Limit(10, "s", "a busy file server answers within seconds")),
    ),
    Spec(
        "host.spot",
        "host_spot",
        "a spot instance that EC2 is about to take back; asked only with `expected: {spot: true}`",
        "IMDSv2: spot/instance-action",
        every_s=5,
        clears=Clears.BOOT,
    ),
    Spec(
        "host.units",
        "host_units",
        "systemd units: fabric manager, slurmd, munge, NVIDIA's and HyperPod's services",
        "systemctl show",
        every_s=30,
        seen=(3, 3),
        gone_s=75,
        grace_s=600,
    ),
)
"""A thing that three of three looks 30 s apart see has been so for a minute."""
