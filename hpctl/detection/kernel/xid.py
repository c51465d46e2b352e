"""Read the numbered errors of GPUs (Xid) and NVSwitches (SXid).

Not patterns of rows: one shape serves all numbers, the number is the code, and its meaning may
depend on registers and phrases in the rest of the line, which become the finding's detail. The
shapes are those of NVIDIA's Xid guide and the open kernel modules, in all the spellings in which
logs show them:

    NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    NVRM: Xid (0000:c1:00.0 GPU-I:05): 94, ...
    NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004ab0a1 0x0 ...)
    NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (...)
    nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress ...
"""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kernel.xid74 import classify_xid74_registers
from hpctl.detection.kmsg import KernelRecord
from hpctl.faults.decode import strip_process_name_from_log_line

CHECK_XID = "kernel.xid"


CHECK_SXID = "kernel.sxid"


RECOVERY_ACTION = "154"


CHANNEL_TORN_DOWN = "45"


NVLINK_ERROR = "74"


_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


_XID = re.compile(
    rf"NVRM:?\s*(?:GPU ?[\w:.]{{1,20}} )?Xid\s*\((?:PCI:)?{_PCI}[^)]*\)"
    r":\s*(?P<code>\d{1,5})\b,?\s*(?P<rest>.*)"
)


_SXID = re.compile(
    rf"nvidia-nvswitch\d+:? SXid \((?:PCI:)?{_PCI}\):\s*(?P<code>\d{{4,6}})\b,?\s*(?P<rest>.*)"
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


# The last match: a process's name may come before it, and can be `to 0x0 (None)`.
_ACTION = re.compile(r".*\bto\s+0x[0-9a-fA-F]+\s+\((?P<phrase>[^)]+)\)")


# Drivers since R610 phrase some of them differently.
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


def parse_xid_or_sxid_line(record: KernelRecord) -> KernelFaultLine | None:
    """Return the error of a GPU or NVSwitch that a line numbers; None for all other lines."""
    text = record.text
    match = _XID.match(text)
    if match is not None:
        code, rest = str(int(match["code"])), match["rest"]
        found = make_kernel_fault_line(
            CHECK_XID, code, record, normalize_pci_address(match["pci"]), _find_xid_pid(code, rest)
        )
        return replace(
            found, detail=_format_xid_detail(code, rest), count=_count_repeated_xid_errors(rest)
        )
    match = _SXID.match(text)
    if match is not None and not match["rest"].startswith(_SXID_COMPANION):
        rest = match["rest"]
        device, pid = normalize_pci_address(match["pci"]), _find_xid_pid(match["code"], rest)
        found = make_kernel_fault_line(CHECK_SXID, match["code"], record, device, pid)
        return replace(
            found, detail=_format_sxid_detail(rest), count=_count_repeated_xid_errors(rest)
        )
    return None


def _find_xid_pid(code: str, rest: str) -> str | None:
    """Return the process that the line names.

    None for the channels that every end of a job closes by the hundred: they are no evidence about
    the job.
    """
    match = None if code == CHANNEL_TORN_DOWN else _PID.search(rest)
    return None if match is None else match["pid"]


def _count_repeated_xid_errors(rest: str) -> int:
    """Return how many errors the line represents, with those that the driver skipped."""
    skipped = _SKIPPED.search(rest)
    return 1 + (int(skipped["skipped"]) if skipped else 0)


def normalize_pci_address(pci: str) -> str:
    """Return a PCI address as sysfs spells it: `0000:c1:00.0`."""
    domain, _, rest = ("0000:" * (pci.count(":") < 2) + pci.lower()).partition(":")
    address = f"{int(domain, 16):04x}:{rest}"
    return address if "." in address else f"{address}.0"


def _format_sxid_detail(rest: str) -> str:
    word = rest.partition(",")[0].strip()
    return {"fatal": "Fatal", "non-fatal": "Non-fatal", "nonfatal": "Non-fatal"}.get(
        word.lower(), ""
    )


def _format_xid_detail(code: str, text: str) -> str:
    """Return the details beyond the code, as far as the catalogue can use them."""
    if code == RECOVERY_ACTION and (match := _ACTION.match(text)) is not None:
        phrase = match["phrase"].strip()
        return _ACTION_SYNONYMS.get(phrase.lower(), phrase[:64])
    if code == RECOVERY_ACTION:
        # Some logs have the action alone: `154, Node Reboot Required`.
        words = strip_process_name_from_log_line(text).rpartition(", ")[2].strip(" .")
        return _ACTION_SYNONYMS.get(words.lower(), "")
    if "ink" not in text:  # a storm runs through this line, and few Xids name a link
        return ""
    rest = strip_process_name_from_log_line(text)
    if code == NVLINK_ERROR and (match := _NVLINK.search(rest)) is not None:
        kind = classify_xid74_registers([int(word, 16) for word in match["registers"].split(",")])
        return f"link={int(match['link'])} {kind}"
    match = _NVLINK5.search(rest)
    if match is not None:
        # Interrupt info and error status are the first two registers (NVIDIA's Xid guide).
        severity = "Fatal" if match["severity"] == "Fatal" else "Nonfatal"
        registers = ",".join(r.lower() for r in match["registers"].split()[:2])
        return f"{match['unit']} {severity} link={int(match['link'])} regs={registers}"
    return ""
