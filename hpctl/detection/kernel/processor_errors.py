"""Read the numbers of main memory and processors that report errors: EDAC and machine checks.

Not patterns of rows: an EDAC line carries a count and a module's name to cut out, and the meaning
of a machine check is in the bits of its status word.

    EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 ...)
    mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000010090
    [Hardware Error]: CPU:22 (19:1:1) MC0_STATUS[Over|UE|MiscV|AddrV|PCC|...]: 0xfea0... ... (AMD)
"""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kmsg import KernelRecord

MEMORY_CHECK = "kernel.memory"


_EDAC = re.compile(
    # The text after `on` is the DIMM's own name; the text in brackets is its place.
    # Linux 3.5 to 3.7 print no count, and older ones the page first.
    r"EDAC (?P<device>MC\d+): (?:(?P<count>\d+) )?(?P<kind>CE|UE)"
    r"(?: (?P<where>.{0,80}?on .{1,80}?) \( ?\w|(?: -)? (?:page 0x|no information available))"
)


_BANK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?: Exception)?: "
    r"[0-9a-f]+ Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b"
    r"|\[Hardware Error\]: CPU:(?P<cpu2>\d+) \([0-9a-f:]+\) MC\d+_STATUS\[[^\]]{0,80}\]: "
    r"0x(?P<amd>[0-9a-f]{1,16})\b"
)


_UNCORRECTED_BIT = 1 << 61


_ENABLED_BIT = 1 << 60


_CONTEXT_CORRUPT_BIT = 1 << 57


_SIGNALLED_BIT = 1 << 56


_TASK_CORRUPT_BIT = 1 << 55


_DEFERRED_BIT = 1 << 44


def parse_processor_error_line(record: KernelRecord) -> KernelFaultLine | None:
    """Return which DIMM or processor, and whether the error was corrected."""
    text = record.text
    match = _EDAC.match(text)
    if match is not None:
        code = "uncorrected" if match["kind"] == "UE" else "corrected"
        found = make_kernel_fault_line(MEMORY_CHECK, code, record, _format_dimm_name(match))
        return replace(found, count=max(1, int((match["count"] or "1")[:9])))
    match = _BANK.match(text)
    if match is not None:
        # What Intel calls signalled, AMD calls a context that is corrupt (TCC), one bit lower.
        mask = _TASK_CORRUPT_BIT if match["amd"] else _SIGNALLED_BIT
        code = _classify_mce_bank_status(int(match["amd"] or match["status"], 16), mask)
        return make_kernel_fault_line(
            MEMORY_CHECK, code, record, f"cpu{match['cpu'] or match['cpu2']}"
        )
    return None


def _format_dimm_name(match: re.Match[str]) -> str:
    """Return `MC0 CPU_SrcID#0_MC#0_Chan#0_DIMM#0`."""
    where = match["where"] or ""
    name = where.rpartition(" on ")[2] if " on " in where else ""
    return f"{match['device']} {name}".strip()


def _classify_mce_bank_status(status: int, signalled: int) -> str:
    """Return the meaning of a bank's status word (Intel SDM 3B, 17.3.2.2; AMD APM 2, 9.3.2.3).

    An uncorrected error that no processor has consumed and that needs no action (UCNA) is not one
    yet: the page is retired. One whose reporting was not enabled raises no machine check: the
    kernel finds it in a register at boot, where firmware left it (mce/severity.c: not enabled).
    """
    if status & _DEFERRED_BIT and not status & _UNCORRECTED_BIT:
        return "deferred"
    if not status & _UNCORRECTED_BIT:
        return "corrected"
    if not status & _ENABLED_BIT:
        return "logged"
    return "uncorrected" if status & (_CONTEXT_CORRUPT_BIT | signalled) else "deferred"
