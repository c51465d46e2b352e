"""The whole fault table: each section of it by title, in order of precedence.

Among rows that are equally urgent and equally strong the one that stands first names the fault.
Meant to be reviewed line by line; `catalogue.vendor_deviations()` and docs/catalogue.md show each
row that departs from what NVIDIA says.
"""

from types import MappingProxyType

from hpctl.core.faults import fabric, gpu_health, gpu_nvlink, gpu_xid, host, kernel, outside
from hpctl.core.faults.row import CheckSpec, FaultRow
from hpctl.core.model import RuleId

SECTIONS: tuple[tuple[str, tuple[FaultRow, ...]], ...] = (
    ("Xid", gpu_xid.XID),
    ("Xid 144-150: NVLink5, decoded from the line", gpu_nvlink.NVLINK5),
    ("Xid 154: the driver's recovery action", gpu_xid.DRIVER),
    ("SXid: NVSwitch, up to Hopper", gpu_nvlink.SXID),
    (
        "GPUs, by the sweeps of the NVML child",
        (
            *gpu_health.FIRST,
            *gpu_health.RECOVERY,
            *gpu_xid.EVENTS,
            *gpu_health.MACHINE,
            *gpu_nvlink.LINKS,
            *gpu_health.MEMORY,
            *gpu_health.SPEED,
            *gpu_health.SETTINGS,
        ),
    ),
    ("EFA, InfiniBand and RoCE, Neuron", fabric.FABRIC),
    ("The host", host.HOST),
    ("Kernel: PCIe", kernel.PCIE),
    ("Kernel: disks and local file systems", kernel.DISKS),
    ("Kernel: memory", kernel.MEMORY),
    ("Kernel: processors and the kernel itself", kernel.PROCESSORS),
    ("Kernel: network cards and file servers", (*fabric.CARDS, *kernel.SERVERS)),
    ("Kernel: limits that were reached", kernel.LIMITS),
    ("Kernel: NVIDIA's modules, without a number", kernel.NVIDIA),
    ("Kernel: AWS Neuron", fabric.NEURON),
    ("Kernel: the platform", kernel.PLATFORM),
    ("HyperPod's health agent and plugins", outside.HMA),
    ("Nodes that cannot be reached", outside.REACH),
    ("What the head node finds: peers, history", outside.GREY),
    ("A check without a rule", outside.UNKNOWN_CHECK),
)
"""A title and its rows, as the documentation shows them."""

GPU_CHECKS: tuple[CheckSpec, ...] = (
    *gpu_health.STATE_CHECKS,
    *gpu_xid.EVENT_CHECKS,
    *gpu_health.COUNT_CHECKS,
    *gpu_nvlink.FABRIC_CHECKS,
    *gpu_health.DRIVER_CHECKS,
    *gpu_health.MEMORY_CHECKS,
    *gpu_health.SPEED_CHECKS,
    *gpu_nvlink.LINK_CHECKS,
    *gpu_health.LAST_CHECKS,
)
TIMED: tuple[tuple[str, tuple[CheckSpec, ...]], ...] = (
    ("GPUs, by the sweeps of the NVML child", GPU_CHECKS),
    ("EFA, InfiniBand and RoCE, Neuron", fabric.CHECKS),
    ("The host", host.CHECKS),
)
"""The checks that run at intervals, by the same titles."""

CHECKS: tuple[CheckSpec, ...] = tuple(spec for _, specs in TIMED for spec in specs)
KERNEL_CHECKS: tuple[CheckSpec, ...] = (
    *gpu_xid.XID_CHECKS,
    *gpu_nvlink.SXID_CHECKS,
    *kernel.PCIE_CHECKS,
    *kernel.DISK_CHECKS,
    *kernel.MEMORY_CHECKS,
    *kernel.PROCESSOR_CHECKS,
    *kernel.SERVER_CHECKS,
    *fabric.CARD_CHECKS,
    *kernel.OTHER_CHECKS,
    *fabric.NEURON_CHECKS,
)
"""The checks of the kernel's lines, which are judged when they are read."""


def _by_rule() -> dict[RuleId, FaultRow]:
    index: dict[RuleId, FaultRow] = {}
    for _, rows in SECTIONS:
        for row in rows:
            for rule in row.rules:
                if rule in index:
                    raise ValueError(f"rule {rule} is in the fault table twice")
                index[rule] = row
    return index


ROWS: MappingProxyType[RuleId, FaultRow] = MappingProxyType(_by_rule())
"""Every row by its rules' ids, in order of precedence."""


def rows_of(check: str) -> tuple[FaultRow, ...]:
    """The rows of one check, in order of precedence."""
    return tuple(row for _, rows in SECTIONS for row in rows if row.check == check)
