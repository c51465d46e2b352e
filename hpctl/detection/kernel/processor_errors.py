"""Kernel lines. Errors that the processor and the memory controller report."""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# Main memory and processors that report errors: MCE, EDAC and firmware (APEI) lines.
#
#     EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 ...)
#     EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (...)
#     mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000010090
#     mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: 9c00004001010090
#     mce: Uncorrected hardware memory error in user-access at 3fc1d2a40
#     [Hardware Error]: Uncorrected, software restartable error.              (AMD, decoded)
#     [Hardware Error]: Corrected error, no action required.                  (AMD, decoded)
#     {1}[Hardware Error]: event severity: corrected                          (APEI)
#     {1}[Hardware Error]:   error_type: 3, multi-bit ECC                     (APEI, memory)
#     [Hardware Error]: CPU:22 (19:1:1) MC0_STATUS[Over|UE|MiscV|AddrV|PCC|...]: 0xfea0... ...
#     mce: CMCI storm detected: switching to poll mode
#     soft_offline: 0x77aa1: invalidated
#     Memory failure: 0x3fc1d2a: Sending SIGBUS to python:4321 due to hardware memory corruption
#     MCE: Killing python:4321 due to hardware memory corruption fault at 7f0012345678
#     Memory failure: 0x3fc1d2a: recovery action for clean LRU page: Recovered
#
# The severity of an APEI record alone says little: PCIe errors come the same way. Without its
# number in braces such a record was found at boot (BERT) and is about the boot before.

MEMORY_CHECK = "kernel.memory"


MEMORY_HEADS = ("EDAC", "mce:", "MCE:", "Memo", "[Har", "soft")


MEMORY_WORDS = ("}[Hardware Error]: ",)


_EDAC = re.compile(
    # What comes after `on` is the DIMM's own name; what follows in brackets is where it is.
    r"EDAC (?P<device>MC\d+): (?P<count>\d+) (?P<kind>CE|UE) "
    r"(?P<where>.{0,80}?on .{1,80}?) \(\w+[:#]"
)


_BANK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?: Exception)?: "
    r"[0-9a-f]+ Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b"
    r"|\[Hardware Error\]: CPU:(?P<cpu2>\d+) \([0-9a-f:]+\) MC\d+_STATUS\[[^\]]{0,80}\]: "
    r"0x(?P<amd>[0-9a-f]{1,16})\b"
)


_SAYS = re.compile(
    r"mce: (?P<uncorrected>Uncorrected hardware memory error in )"
    r"|mce: (?P<corrected3>(?:CPU\d+ BANK\d+ )?CMCI storm detected)"
    r"|mce: (?P<logged3>CPUs not responding to MCE broadcast)"
    r"|soft[_ ]offline: 0x[0-9a-f]+: (?P<corrected4>invalidated"
    r"|.{1,40} (?:migration|isolation) failed)"
    r"|(?:mce: )?\[Hardware Error\]: (?:"
    r"(?P<uncorrected2>Uncorrected, software (?:restartable|containable) error|System Fatal error)"
    r"|(?P<deferred>Deferred error, no action required)"
    r"|(?P<corrected>Corrected error, no action required)"
    r"|(?P<logged>Machine check events logged))"
    r"|\{\d+\}\[Hardware Error\]:\s+(?:"
    r"(?P<uncorrected3>error_type: 3, multi-bit ECC)"
    r"|(?P<corrected2>event severity: corrected|error_type: 2, single-bit ECC)"
    r"|(?P<logged2>event severity: (?:recoverable|fatal)))"
)


_POISON = re.compile(
    r"MCE: Killing .{0,80}:(?P<consumed>\d{1,10}) due to hardware memory corruption"
    r"|Memory failure: 0x[0-9a-f]+: (?:"
    r"Sending SIGBUS to .{0,80}:(?P<pid>\d{1,10}) due to hardware memory corruption"
    r"|Killing .{0,80}:(?P<killed>\d{1,10}) due to hardware memory corruption"
    r"|recovery action for "
    r"(?P<unhurt>(?:clean|free|already truncated) .{1,40}: (?:Recovered|Delayed))?)"
)


_UNCORRECTED_BIT = 1 << 61


_CONTEXT_CORRUPT_BIT = 1 << 57


_SIGNALLED_BIT = 1 << 56


_TASK_CORRUPT_BIT = 1 << 55


_DEFERRED_BIT = 1 << 44


def gather_errors(record: Record) -> Line | None:
    """Which DIMM or processor, and whether the error was corrected."""
    text = record.text
    if (match := _EDAC.match(text)) is not None:
        code = "uncorrected" if match["kind"] == "UE" else "corrected"
        found = line(MEMORY_CHECK, code, record, _dimm(match))
        return replace(found, count=max(1, int(match["count"][:9])))
    if (match := _BANK.match(text)) is not None:
        # What Intel calls signalled, AMD calls a context that is corrupt (TCC), one bit lower.
        mask = _TASK_CORRUPT_BIT if match["amd"] else _SIGNALLED_BIT
        code = _status(int(match["amd"] or match["status"], 16), mask)
        return line(MEMORY_CHECK, code, record, f"cpu{match['cpu'] or match['cpu2']}")
    if (match := _SAYS.match(text)) is not None:
        return line(MEMORY_CHECK, str(match.lastgroup).rstrip("234"), record)
    if (match := _POISON.match(text)) is not None:
        # A page that was free, or clean and so on its disk, is taken out of use: nothing is lost.
        code = "deferred" if match["unhurt"] else "uncorrected"
        return line(
            MEMORY_CHECK, code, record, pid=match["pid"] or match["killed"] or match["consumed"]
        )
    return None


def _dimm(match: re.Match[str]) -> str:
    """`MC0 CPU_SrcID#0_MC#0_Chan#0_DIMM#0`."""
    name = match["where"].rpartition(" on ")[2] if " on " in match["where"] else ""
    return f"{match['device']} {name}".strip()


def _status(status: int, signalled: int) -> str:
    """What a bank's status word says (Intel SDM 3B, 17.3.2.2; AMD APM 2, 9.3.2.3).

    An uncorrected error that no processor has consumed and that needs no action (UCNA) is not
    one yet: the page is taken out of use.
    """
    if status & _DEFERRED_BIT and not status & _UNCORRECTED_BIT:
        return "deferred"
    if not status & _UNCORRECTED_BIT:
        return "corrected"
    return "uncorrected" if status & (_CONTEXT_CORRUPT_BIT | signalled) else "deferred"
