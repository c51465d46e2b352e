"""GPUs and NVSwitches in the kernel's log: Xid, SXid, and lines without a number."""

import re
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from hpctl.agent.checks.kernel_line import Family, Line, line
from hpctl.agent.kmsg import KERNEL_FACILITY, Record
from hpctl.core.decode import row_of_line, unnamed
from hpctl.core.model import Finding

# --- xid74 ----------
# The seven registers of an Xid 74 (NVLink, up to Hopper): what the set bits mean.
#
#     NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error ...
#         link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
#
# The table is NVIDIA's workflow for this code (WORKFLOW_NVLINK_ERR of the Xid catalogue). The
# first, third, fourth and fifth registers carry bits; the others say nothing.


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# (register, bits): what they mean, the most telling first. The first that is set is the kind.
_KINDS: tuple[tuple[str, dict[int, int]], ...] = (
    ("parity", {0: _mask(4, 5), 2: _mask(0, 1, 2, 6), 4: _mask(18, 19, 21, 22, 24, 25, 27, 28)}),
    ("hardware", {0: _mask(8, 9, 12, 16, 17, 24, 28), 2: _mask(16, 19)}),
    ("signal", {0: _mask(21, 22)}),
    ("repeats-matter", {0: _mask(27, 29), 2: _mask(17, 18)}),
    ("unexpected", {2: _mask(13)}),
    ("fabric", {3: _mask(18)}),
    ("side-effect", {0: _mask(1, 20), 3: _mask(16, 17)}),
    ("corrected", {4: _mask(20, 23, 26, 29)}),
    ("harmless", {0: _mask(0, 23, 30)}),
)
_READ = (0, 2, 3, 4)


def nvlink_kind(registers: Sequence[int]) -> str:
    """What the registers say in one word.

    - `parity`     ECC or parity, likely hardware
    - `hardware`   possibly hardware: the connection
    - `signal`     a marginal channel
    - `repeats-matter` nothing by itself, a fault where it comes again
    - `unexpected` never seen in production, by the vendor's word
    - `fabric`     a by-product, after which the fabric needs a reset
    - `side-effect` a by-product of another error
    - `corrected`  a count of corrected errors passed its threshold; nothing was lost
    - `harmless`   can be ignored
    - `unknown`    no bit is set, or one that the table does not have
    """
    if len(registers) <= max(_READ):
        return "unknown"
    known = dict.fromkeys(_READ, 0)
    for _, masks in _KINDS:
        for register, mask in masks.items():
            known[register] |= mask
    if any(registers[register] & ~known[register] for register in _READ):
        return "unknown"
    for name, masks in _KINDS:
        if any(registers[register] & mask for register, mask in masks.items()):
            return name
    return "unknown"


# --- xid ----------
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


# --- nvidia ----------
# What NVIDIA's kernel modules say without a number: neither Xid nor SXid.
#
#     NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!
#     NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!
#     NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0xffff:1482)
#     NVRM: API mismatch: the client has the version 570.86.10, but
#     NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os ...
#         recover.
#     NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] ...
#     NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] ...
#     nvidia: probe of 0000:18:00.0 failed with error -1
#     nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping ...
#
# The first two come again and again (open-gpu-kernel-modules, kernel_nvlink.c) while the driver
# looks for NVLinks: every call into it waits, and only a restart ends that.

NVIDIA_CHECK = "kernel.nvidia"
NVIDIA_HEADS = ("NVRM", "nvid")
_SAYS = re.compile(
    r"NVRM: (?:"
    r"(?P<nvlink>knvlink\w{1,60}: (?:Getting peer\d+(?:'s)? postRxDetLinkMask failed"
    r"|Failed to update Rx Detect Link mask))"
    r"|(?P<reboot>nvGpuOpsReportFatalError: .{0,80}\brequiring os reboot)"
    r"|(?P<lost>\w{1,60}: .{0,160}\[NV_ERR_GPU_IS_LOST\]|_threadNodeCheckTimeout: .{0,80} failed"
    r"|_issueRpcAndWait: rpcSendMessage failed with status 0x0*f\b)"
    r"|(?P<reset>\w{1,60}: .{0,160}\[NV_ERR_RESET_REQUIRED\]"
    r"|(?:GPU\d+ )?_kgspBootGspRm: unexpected WPR2)"
    r"|(?P<init>(?:GPU [0-9a-fA-F:.]{7,16}: )?(?:RmInitAdapter|rm_init_adapter) failed"
    r"|(?:GPU\d+ )?RmInitAdapter: Cannot |The NVIDIA probe routine failed|None of the NVIDIA "
    r"|No NVIDIA (?:GPU|graphics adapter) found|NVIDIA init module failed)"
    r"|(?P<version>API mismatch: ))"
    r"|(?P<init2>nvidia(?:: probe of \S{1,20}| [0-9a-f:.]{7,16}: probe with driver nvidia) failed)"
    r"|(?P<peermem>nvidia[-_]peermem \w{1,60}:\d+ ERROR detected invalid context)"
)
_DEVICE = re.compile(r"NVRM: GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): ")


def gather_nvidia(record: Record) -> Line | None:
    """What does not work, and on which GPU where the line says so."""
    if (match := _SAYS.match(record.text)) is None:
        return None
    device = _DEVICE.match(record.text)
    return line(
        NVIDIA_CHECK, str(match.lastgroup).rstrip("2"), record, device[1].lower() if device else ""
    )


NVIDIA = Family(gather_nvidia, NVIDIA_HEADS)
