"""Kernel lines. Xids and SXids."""

import re
from datetime import datetime

from msgspec import Struct

from hpctl.detection.kernel.xid74 import nvlink_kind
from hpctl.detection.kmsg import KERNEL_FACILITY, Record
from hpctl.faults.decode import row_of_line, unnamed
from hpctl.vocabulary.model import Finding

# GPU (Xid) and NVSwitch (SXid) errors in the kernel's log.
#
# `gather` reads what the driver's line says; `judge` turns it into a Finding. How bad it is, its
# row of the fault table says. The shapes are those of NVIDIA's Xid guide and the open kernel
# modules, in all the spellings in which logs show them:
#
#     NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, name=python, GPU has fallen off the bus.
#     NVRM: Xid (0000:c1:00.0 GPU-I:05): 94, ...
#     NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004ab0a1 0x0 ...)
#     NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (...)
#     NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.
#     nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress ...

CHECK_XID = "kernel.xid"


CHECK_SXID = "kernel.sxid"


EVIDENCE_CHARS = 512


FALLEN_OFF_THE_BUS = "79"


RECOVERY_ACTION = "154"


CHANNEL_TORN_DOWN = "45"


NVLINK_ERROR = "74"


_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


_XID = re.compile(
    rf"NVRM:\s*Xid\s*\((?:PCI:)?{_PCI}[^)]*\):\s*(?P<code>\d{{1,5}})\b,?\s*(?P<rest>.*)"
)


_OFF_BUS = re.compile(
    rf"NVRM: (?:(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_PCI}\W.{{0,200}})?\bfallen off the bus\b"
)


_SXID = re.compile(
    rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_PCI}\):\s*(?P<code>\d{{4,6}})\b,?\s*(?P<rest>.*)"
)


_SKIPPED = re.compile(r"\((?P<skipped>\d{1,9}) more errors skipped\)")


_NVLINK5 = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9_]{1,40})\s{1,4}(?P<severity>Fatal|Nonfatal|Non-fatal)\s{1,4}XC\s?\d{1,3}"
    r"\s{1,4}i\s?\d{1,3}\s{1,4}Link\s{1,4}(?P<link>-?\d{1,6})\s{1,4}"
    r"[(\[](?P<registers>0x[0-9a-fA-F]{1,8}(?:\s{1,4}0x[0-9a-fA-F]{1,8}){0,15})"
)


_NVLINK = re.compile(
    r"\blink\s+(?P<link>\d{1,3})\s*\((?P<registers>0x[0-9a-fA-F]{1,8}(?:,\s*0x[0-9a-fA-F]{1,8}){6})\)"
)


_PID = re.compile(r"\bpid='?(?P<pid>\d{1,10})\b")


# The last one: before it may stand the name of a process, which can be `to 0x0 (None)`.
_ACTION = re.compile(r".*\bto\s+0x[0-9a-fA-F]+\s+\((?P<phrase>[^)]+)\)")


# Drivers since R610 phrase some of them otherwise.
_ACTION_SYNONYMS = {
    "os reboot": "Node Reboot Required",
    "node reboot required": "Node Reboot Required",
    "pf flr": "GPU Reset Required",
    "gpu reset": "GPU Reset Required",
    "gpu reset required": "GPU Reset Required",
    "drain and reset": "Drain and Reset",
    "drain p2p": "Drain P2P",
    "none": "None",
}


# Lines that only dump registers of the SXid named in the line before.
_SXID_COMPANION = ("Data {", "Severity ")


class GpuError(Struct, frozen=True):
    """What one line of the driver says."""

    check: str
    device: str
    code: str
    rest: str
    line: str
    at: datetime

    @property
    def pid(self) -> int | None:
        """The process that the line names: none for the channels that every end of a job tears
        down by the hundred, which say nothing of the job."""
        if self.code == CHANNEL_TORN_DOWN or (match := _PID.search(self.rest)) is None:
            return None
        return int(match["pid"])


def gather(record: Record, *, accept_user: bool = False) -> GpuError | None:
    """What a kernel record says of a GPU or NVSwitch; None for all other lines.

    Lines that the kernel did not write itself are not believed, unless `accept_user`.
    """
    text = record.text
    # Anchored: what user space gets into a kernel line stands later, or `kernel_line` sorts it out.
    if not text.startswith(("NVRM:", "nvidia-nvswitch")):
        return None
    if record.facility != KERNEL_FACILITY and not accept_user:
        return None
    line = text[:EVIDENCE_CHARS]
    if (match := _XID.match(text)) is not None:
        device, code, rest = match["pci"], str(int(match["code"])), match["rest"]
        return GpuError(CHECK_XID, normalise(device), code, rest, line, record.at)
    if (match := _SXID.match(text)) is not None:
        if match["rest"].startswith(_SXID_COMPANION):
            return None
        device, code = normalise(match["pci"]), match["code"]
        return GpuError(CHECK_SXID, device, code, match["rest"], line, record.at)
    if (match := _OFF_BUS.match(text)) is not None:
        device = normalise(match["pci"]) if match["pci"] else ""
        return GpuError(CHECK_XID, device, FALLEN_OFF_THE_BUS, "", line, record.at)
    return None


def judge(error: GpuError) -> Finding:
    """Return the finding of a line, with the verdict of its row in the fault table.

    A program's own Xid (13, 31, 43) is a NOTE: the job is restarted, the node has no fault.
    """
    skipped = _SKIPPED.search(error.rest)
    detail = _sxid_detail(error.rest) if error.check == CHECK_SXID else _xid_detail(error)
    return Finding(
        check=error.check,
        verdict=row_of_line(error.check, error.code, detail, error.line).verdict,
        first=error.at,
        last=error.at,
        device=error.device,
        code=error.code,
        detail=detail,
        evidence=error.line,
        count=1 + (int(skipped["skipped"]) if skipped else 0),
    )


def normalise(pci: str) -> str:
    """A PCI address as sysfs spells it: `0000:c1:00.0`."""
    domain, _, rest = ("0000:" * (pci.count(":") < 2) + pci.lower()).partition(":")
    address = f"{int(domain, 16):04x}:{rest}"
    return address if "." in address else f"{address}.0"


def _sxid_detail(rest: str) -> str:
    word = rest.partition(",")[0].strip()
    return {"fatal": "Fatal", "non-fatal": "Non-fatal", "nonfatal": "Non-fatal"}.get(
        word.lower(), ""
    )


def _xid_detail(error: GpuError) -> str:
    """What the code alone does not say, as far as the catalogue can use it."""
    if error.code == RECOVERY_ACTION and (match := _ACTION.match(error.rest)) is not None:
        phrase = match["phrase"].strip()
        return _ACTION_SYNONYMS.get(phrase.lower(), phrase[:64])
    if "ink" not in error.rest:  # a storm runs through this line, and few Xids name a link
        return ""
    rest = unnamed(error.rest)
    if error.code == NVLINK_ERROR and (match := _NVLINK.search(rest)) is not None:
        kind = nvlink_kind([int(word, 16) for word in match["registers"].split(",")])
        return f"link={int(match['link'])} {kind}"
    if (match := _NVLINK5.search(rest)) is not None:
        # Interrupt info and error status are the first two registers (NVIDIA's Xid guide).
        severity = "Fatal" if match["severity"] == "Fatal" else "Nonfatal"
        registers = ",".join(r.lower() for r in match["registers"].split()[:2])
        return f"{match['unit']} {severity} link={int(match['link'])} regs={registers}"
    return ""
