"""Kernel lines. The platform's own complaints: NMI, clock sources, IOMMU."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# The platform under the devices: interrupts nobody knows, clocks, heat, address translation.
#
#     Uhhuh. NMI received for unknown reason 2d on CPU 3.                  (arch/x86/kernel/nmi.c)
#     NMI: PCI system error (SERR) for reason b1 on CPU 0.
#     clocksource: timekeeping watchdog on CPU5: Marking clocksource 'tsc' as unstable because ...
#     thermal thermal_zone0: acpitz: critical temperature reached, shutting down  (drivers/thermal)
#     DMAR: [DMA Read NO_PASID] Request device [4e:00.0] fault addr 0xf0c00000 [fault reason ...
#     nvidia 0000:4e:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021 address=0x7f1200 ...]
#     nvme 0000:3a:00.0: swiotlb buffer is full (sz: 65536 bytes), ...            (kernel/dma)
#
# A device that reads or writes where it may not (IOMMU) is often one that is about to fail, and as
# often its driver's mistake: all of this is worth watching.

PLATFORM_CHECK = "kernel.platform"


_DEVICES = ("nvid", "nvme", "mlx5", "efa ", "ena ", "pci ", "pcie")


_WORDS = ("Uhhu", "NMI:", "cloc", "tsc:", "TSC:", "ther", "ACPI", "rebo", "DMAR", "AMD-", "arm-")


PLATFORM_HEADS = (*_WORDS, *_DEVICES)


_SAYS = re.compile(
    r"(?P<nmi>Uhhuh\. NMI received for unknown reason|NMI: (?:PCI system error|IOCK error))"
    r"|(?P<clock>(?:clocksource|tsc|TSC): .{0,80}\b[Mm]arking (?:clocksource|TSC) "
    r".{0,40}\bunstable)"
    r"|(?P<thermal>(?:thermal [\w.-]{1,40}|ACPI): .{0,80}[Cc]ritical temperature"
    r"|reboot: HARDWARE PROTECTION shutdown)"
    r"|(?:[\w-]{1,32} (?P<device>[0-9a-f:.]{7,16}): )?(?:"
    r"(?P<iommu>(?:DMAR|AMD-Vi): (?:\[?(?:DMA|INTR|QI)|VT-d detected|Event logged|Completion-Wait"
    r"|DRHD: handling fault)|arm-smmu-v3 \S{1,40}: .{0,40}(?:event 0x|GERROR|CMD_SYNC timeout))"
    r"|(?P<dma>swiotlb buffer is full))"
)


def gather_platform(record: Record) -> Line | None:
    """What of the platform is in trouble, and at which device where the line says so."""
    if (match := _SAYS.match(record.text)) is None:
        return None
    return line(PLATFORM_CHECK, str(match.lastgroup), record, match["device"] or "")
