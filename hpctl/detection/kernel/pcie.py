"""Kernel lines. PCIe errors that the kernel reports."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# PCIe errors, as the kernel's AER driver prints them (drivers/pci/pcie/aer.c).
#
# The wording changed with Linux 6.12: `Corrected` became `Correctable`, `Uncorrected` became
# `Uncorrectable`, and `error received:` became `error message received from`:
#
#     pcieport 0000:80:01.1: AER: Corrected error received: 0000:81:00.0
#     pcieport 0000:80:01.1: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:81:00.0
#     pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0
#     nvme 0000:81:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
#     nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer
#     pcieport 0000:80:01.1: AER: device recovery failed
#     nvidia 0000:c1:00.0: AER: can't recover (no error_detected callback)
#     pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000        (pcie/dpc.c)
#     pcieport 0000:80:01.1: pciehp: Slot(17): Link Down                        (hotplug/pciehp_*.c)
#     nvidia 0000:c1:00.0: not ready 65535ms after FLR; giving up                            (pci.c)
#     nvidia 0000:c1:00.0: Unable to change power state from D3cold to D0, device inaccessible
#
# A slot without a link or a card is also what detaching a volume looks like.
#
# Only a fatal error is one for the node: after it the link is down. A device whose driver has no
# say in recovery (NVIDIA's has none) reports a failed recovery after errors that it survived.

PCIE_CHECK = "kernel.pcie"


# The driver's name stands first, and any driver can: these lines are known by a later word.
PCIE_WORDS = (" AER: ", "PCIe Bus Error: ")


PCIE_HEADS = ("pcie", "pci ", "nvid", "nvme", "mlx5", "efa ", "ena ")


PCI_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


_SEVERITY = r"(?P<severity>Correct|Uncorrect)(?:ed|able)(?: \((?P<grade>Non-Fatal|Fatal)\))?"


_DRIVER = rf"[\w.-]+ (?P<own>{PCI_ADDRESS}): "


_RECEIVED = re.compile(
    rf"{_DRIVER}AER: (?:Multiple )?{_SEVERITY} error (?:received:|message received from) "
    rf"(?P<device>{PCI_ADDRESS})"
)


_DETAILED = re.compile(rf"{_DRIVER}(?:AER: )?PCIe Bus Error: severity={_SEVERITY}")


_NOT_RECOVERED = re.compile(
    rf"{_DRIVER}AER: (?:device recovery failed|can't recover \(|subordinate device reset failed)"
)


_GONE = re.compile(
    rf"{_DRIVER}(?:DPC: (?P<contained>containment event|unmasked uncorrectable error"
    r"|ERR_(?:NON)?FATAL |RP PIO severity|Data Link Layer)"
    r"|pciehp: Slot\([\w-]{1,32}\): (?P<slot>Link Down$|Card not present|No link|No device found"
    r"|Cannot train|Power fault)"
    r"|(?P<inaccessible>not ready \d+ms after .{1,40}; giving up"
    r"|(?:Unable to|[Cc]an't|Refused to) change power state))"
)


def gather_pcie(record: Record) -> Line | None:
    """The device that the error came from, and how grave it is."""
    text = record.text
    if (match := _RECEIVED.match(text)) is not None:
        return line(PCIE_CHECK, _code(match), record, match["device"])
    if (match := _DETAILED.match(text)) is not None:
        return line(PCIE_CHECK, _code(match), record, match["own"])
    if (match := _NOT_RECOVERED.match(text)) is not None:
        return line(PCIE_CHECK, "recovery-failed", record, match["own"])
    if (match := _GONE.match(text)) is not None:
        return line(PCIE_CHECK, str(match.lastgroup), record, match["own"])
    return None


def _code(match: re.Match[str]) -> str:
    if match["severity"] == "Correct":
        return "corrected"
    return "fatal" if match["grade"] == "Fatal" else "nonfatal"
