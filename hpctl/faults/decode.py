"""Reads what a kernel line says beyond its number: severity, unit, link, the driver's action.

Pure text functions, total over any string. Line shapes as the drivers print them:

    NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 ...)
    NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU ...)
    nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up
"""

import re

from msgspec import Struct

from hpctl.faults.table import ROWS, FaultRow
from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import RuleId

NVLINK5_CODES = frozenset({"144", "145", "146", "147", "148", "149", "150"})

_UNIT = re.compile(r"\b(?:SAW|RLW|TLW|TREX|NVLPW|NETIR|MSE)\w*")
_SEVERITY = re.compile(r"\b(?P<no>non-?)?fatal\b", re.IGNORECASE)
_LINK = re.compile(r"\blink[ =]+(\d+)", re.IGNORECASE)
_REGISTERS = re.compile(
    r"\b(?:regs=|link +-?\d+ +[(\[])((?:0x[0-9a-f]{1,8}[\s,]*)+)", re.IGNORECASE
)
# A process's name is its owner's to choose, commas included; 15 characters, four each if escaped.
_NAME = re.compile(r"(\bpid='?[^,' ]{1,20}'?, name=)(?:(?:\\x[0-9a-fA-F]{2}|.){0,15}(?=, |$))")

# IntrInfo bits 25:20 of a link-down event, from NVIDIA's Xid workbook.
_COMMANDED = frozenset({0b100110, 0b101000})
_PEER = frozenset({0b010101, *range(0b100000, 0b100110)})
_BLAME = {
    **dict.fromkeys((0b000010, 0b000100, 0b001010), "signal integrity at this end"),
    **dict.fromkeys(_PEER, "the device at the other end"),
    **dict.fromkeys((0b001111, *range(0b010000, 0b010101), 0b010110), "software or an operator"),
    **dict.fromkeys((0b101010, 0b101011), "signal integrity or cables"),
    0b100110: "a user's action",
    0b101000: "the host",
}
# The low status bits of these units mean: an application died, Xid 154 says whether more.
_APP_STATUS = {"RLW_REMAP": 0x3F, "RLW_SRC_TRACK": 0x0C}
# RLW_REMAP's error that needs a reset: its status bit, and IntrInfo before and from R575
# (NVIDIA's Xid workbook, as NVIDIA/NVSentinel decodes it).
_REMAP_STATUS = 0x40
_REMAP_RESET = (0x82, 0x04)
# RLW_RXPIPE with its action bit, as drivers before and from R575 lay IntrInfo out.
_RXPIPE_RESET = ((0x7FF, 0b10011000010), (0xFF, 0b10000110))


class NvLink5ErrorFields(Struct, frozen=True):
    """An Xid 144-150 line. None means that the line does not say.

    `reason` is the six-bit link-down reason, `blame` what it points at (empty if it names none).
    """

    unit: str
    fatal: bool | None
    link: int | None
    intr_info: int | None
    error_status: int | None
    reason: int | None
    blame: str


def strip_process_name_from_log_line(text: str) -> str:
    """Return a driver's line without the name of the process that it names."""
    return _NAME.sub(r"\1", text, count=1)


def parse_sxid_severity(text: str) -> bool | None:
    """True where the text says Fatal, False where it says only Non-fatal, None if neither."""
    found = [m["no"] is None for m in _SEVERITY.finditer(text)]
    return any(found) if found else None


def parse_nvlink_number(text: str) -> int | None:
    """Return the NVLink number that the text names first."""
    found = _LINK.search(text)
    return parse_count(found[1]) if found else None


def parse_gpu_component(code: str, text: str) -> str:
    """Return the part of the GPU that an Xid names: the link of an Xid 74, nothing for others.

    Xid 13 names a GPC and a TPC, but the place says nothing: on a healthy H200 every exception of
    different programs stood at GPC 1, TPC 4, where the driver puts small kernels.
    """
    if code == "74":
        number = parse_nvlink_number(text)
        return "" if number is None else f"link {number}"
    return ""


def is_harmless_xid74(detail: str) -> bool:
    """Return whether an Xid 74's registers, as the agent decoded them, say that nothing was lost.

    `link=6 corrected`: a count of corrected errors passed its threshold; `harmless`: bits that can
    be ignored. NVIDIA's workflow for both: go on.
    """
    return detail.startswith("link=") and detail.endswith((" corrected", " harmless"))


def decode_nvlink5_error(text: str) -> NvLink5ErrorFields:
    """Take an NVLink5 line apart. Link-down reasons are read for NETIR link events only."""
    unit = _UNIT.search(text)
    name = unit[0] if unit else ""
    values = _REGISTERS.search(text)
    registers = [int(v, 16) for v in re.findall(r"0x[0-9a-fA-F]+", values[1])] if values else []
    intr = registers[0] if registers else None
    reason = None
    if intr is not None and name.startswith("NETIR_LINK"):
        reason = (intr >> 20) & 0x3F
    return NvLink5ErrorFields(
        unit=name,
        fatal=parse_sxid_severity(text),
        link=parse_nvlink_number(text),
        intr_info=intr,
        error_status=registers[1] if len(registers) > 1 else None,
        reason=reason,
        blame="" if reason is None else _BLAME.get(reason, ""),
    )


def find_nvlink5_rule(code: str, text: str) -> RuleId:
    """Return the catalogue rule for an Xid 144-150 line: the words first, registers where they
    differ.

    `text` is the agent's detail, or the line where that is empty. What says neither fatal nor a
    known unit stays with the undecoded row of its code.
    """
    line = decode_nvlink5_error(strip_process_name_from_log_line(text))
    if code == "149":
        return RuleId(_find_netir_rule(line))
    if code == "145" and not line.fatal:
        return RuleId(_find_rlw_rule(line))
    if code in ("144", "145", "146", "147") and line.fatal:
        return RuleId(f"xid-{code}-fatal")
    return RuleId(f"xid-{code}")


def _find_netir_rule(line: NvLink5ErrorFields) -> str:
    if line.unit.startswith("NETIR_BER"):
        return "xid-149-ber"
    if line.reason in _COMMANDED:
        return "xid-149-commanded"
    if line.reason in _PEER:
        return "xid-149-peer"
    if line.unit.startswith("NETIR_LINK") or line.unit in ("NETIR", "NETIR_INT"):
        return "xid-149-link-down"
    return "xid-149-fatal" if line.fatal else "xid-149"


def _find_rlw_rule(line: NvLink5ErrorFields) -> str:
    status, intr = line.error_status or 0, line.intr_info or 0
    if status & _APP_STATUS.get(line.unit, 0):
        return "xid-145-app"
    if line.unit == "RLW_REMAP" and status & _REMAP_STATUS and intr & 0xFF in _REMAP_RESET:
        return "xid-145-remap"
    if line.unit == "RLW_RXPIPE" and any(intr & mask == bits for mask, bits in _RXPIPE_RESET):
        return "xid-145-rxpipe"
    return "xid-145"


def find_xid154_rule(detail: str, evidence: str = "") -> RuleId:
    """Return the rule for an Xid 154: by the phrase after `to`, never by the number beside it.

    `detail` may be the bare phrase; where it is empty the raw line is read. Drivers differ in
    wording (`Node Reboot Required`, `OS Reboot`; `GPU Reset Required`, `PF FLR`).
    """
    text = (detail or evidence).lower()
    old, to, new = text.rpartition(" to ")
    phrase = new if to and "changed from" in old else text.partition("changed from")[0]
    for sign, rule in (
        ("reboot", "xid-154-node-reboot-required"),
        ("drain and reset", "xid-154-drain-and-reset"),
        ("drain p2p", "xid-154-drain-p2p"),
        ("reset", "xid-154-gpu-reset-required"),
        ("flr", "xid-154-gpu-reset-required"),
        ("none", "xid-154-none"),
    ):
        if sign in phrase:
            return RuleId(rule)
    return RuleId("xid-154")


def find_xid_rule(code: str, detail: str, evidence: str = "") -> RuleId:
    """Return the catalogue rule for one Xid line, without companion lines and repeats."""
    if code == "154":
        return find_xid154_rule(detail, evidence)
    if code in NVLINK5_CODES:
        return find_nvlink5_rule(code, detail or evidence)
    if code == "74" and is_harmless_xid74(detail):
        return RuleId("xid-74-corrected")
    rule = RuleId(f"xid-{code}")
    return rule if rule in ROWS else RuleId("xid-unknown")


def find_sxid_rule(code: str, text: str, acts: bool | None) -> RuleId:
    """Return the catalogue rule for one SXid line: the text's own severity goes before the number.

    `acts` is whether the row of the number treats the node; None where the table has no such row.
    Where the text says non-fatal and the table treats the node, a person has to look, unless the
    guide itself lists the number as non-fatal (`FaultRow.nonfatal`).
    """
    rule = RuleId(f"sxid-{code}")
    fatal = parse_sxid_severity(text)
    if fatal is True:
        return rule if acts else RuleId("sxid-fatal")
    if fatal is False:
        if acts is None:
            return RuleId("sxid-nonfatal")
        return RuleId("sxid-disputed") if acts and not ROWS[rule].nonfatal else rule
    return RuleId("sxid-unknown") if acts is None else rule


def find_driver_line_fault_row(check: str, code: str, detail: str, evidence: str) -> FaultRow:
    """Return the shipped row for one line of NVIDIA's driver, `kernel.xid` or `kernel.sxid`."""
    if check != "kernel.sxid":
        return ROWS[find_xid_rule(code, detail, evidence)]
    known = ROWS.get(RuleId(f"sxid-{code}"))
    return ROWS[find_sxid_rule(code, f"{detail} {evidence}", None if known is None else known.acts)]
