"""Read lines of drivers without a row in the fault tables.

Not patterns of rows: a line is recognized by words anywhere in it, after all rows.
"""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import HEAD_CHARS, KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kmsg import KernelRecord
from hpctl.faults.table import BENIGN_LINES, DRIVERS

# Phrases of drivers and file systems that no other family recognizes.
#
#     mlx5_core 0000:ab:00.0: mlx5_crdump_collect:50:(pid 99): failed to collect crdump err -16
#     bond0: (slave ens1f0np0): link status definitely down, disabling slave
#     LNetError: 2210:0:(o2iblnd_cb.c:3454:kiblnd_check_txs_locked()) Timed out tx: ...
#
# Kernels and drivers add phrases with each release, and print some of them on healthy nodes. So
# such a line is a NOTE: counted by driver, shown, and no evidence against the node. It becomes a
# warning only with another sign against the same hardware (`hpctl.faults.assess`). A line counts if
# it begins with the name of a component that a node needs and contains a word of failure; of
# NVIDIA's driver every line counts. Left out are lines of healthy nodes (`BENIGN_LINES`), lines
# that others explain (registers of an AER error), and refused requests of an application (a queue
# pair that EFA refuses).

DRIVER_CHECK = "kernel.driver"


_DRIVER_OF: dict[str, str] = {}
for _row in DRIVERS:
    _DRIVER_OF |= dict.fromkeys(_row.heads, _row.driver)
DRIVER_HEADS = tuple(_DRIVER_OF)
_ALWAYS = ("NVRM: ", "XFS (", "LustreError: ", "LNetError: ", "EXT4-fs warning ")
"""These call a line an error themselves, or print little else."""


_WORD = re.compile(r"[a-z][\w'-]+")


_DRIVER_WORDS = (
    "fail failed failure failures failing fails err error errors fatal timeout timedout lost "
    "corrupt corrupted corruption stuck hung dead down broken faulty cannot can't couldn't didn't "
    "doesn't isn't wasn't won't non-responsive insufficient aborted aborting unrecoverable "
    "unrecovered uncorrectable uncorrected overflow offline degraded bad invalid exceeds exceeded "
    "refused reject rejected rejecting denied unexpected mismatch missing conflict conflicts "
    "unexpectedly died tx_timeout"
)


_FAILS = frozenset(_DRIVER_WORDS.split())


_PHRASES = (
    *("timed out", "time out", "unable to", "could not", "not respond", "not found", "not ready"),
    *("not set", "not cleared", "not complete", "read-back delay", "giving up", "no usable"),
    *("no space", "no memory", "zero bytes", "exception emask", "slow to respond", "socket closed"),
    *("killing request", "issue detected", "going to be reset", "readdir loop"),
)


_ORDINARY = re.compile(
    # Registers and details of the line before, and what a driver prints about itself when it
    # starts.
    r"[\w-]+ [0-9a-f:.]{7,16}: {2,}|NVRM: {2,}|mce: \[Hardware Error\]"
    r"|NVRM: (?:A GPU crash dump|nvidia-bug-report\.sh as root|the NVIDIA kernel module is )"
    r"|\{\d+\}\[Hardware Error\]: +\w|audit: |traps: |---\[ end |EDAC \w{1,20} MC\d{1,3}: "
    r"|(?:EXT4|LDISKFS)-fs \(\S{1,40}\): (?:re-)?mounted[ .]|BTRFS info "
    r"|ata\d{1,3}: SATA link down |nvidia: module verification failed|IPv6: ADDRCONF"
    r"|sd \S{1,20} \[\w{1,20}\] Write cache: "
    r"|XFS \([\w.!-]{1,40}\): (?:(?:Unm|M)ounting|Ending|Starting|Deprecated|EXPERIMENTAL|Quota"
    r"|Using |DAX|User initiated|Torn write|Delaying|[Rr]esetting|Please )"
    r"|.{0,40}\b(?:loop|ram|zram|nbd|rbd|fd|sr)\d"
    r"|.{0,200}(?:xfs_fs_goingdown|Request sent has timed out |error containment"
    r"|found no error details|missing or invalid SUBNQN|failed to set APST"
    r"|Possible bad register read|Shutdown timeout set to|recovered by DPC)"
    r"|(?:efa|infiniband) .{0,60}(?:Failed to (?:process command|register mr|create|submit)"
    r"|Couldn't open port)"
    r"|EXT4-fs \(\S{1,40}\): (?:couldn't mount|VFS: Can't find|error: )"
)


_GPU_NUMBER = re.compile(r"NVRM: GPU\d{1,3} ")


_GPU_ADDRESS = re.compile(
    r"(?:NVRM: GPU|nvidia) ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ", re.IGNORECASE
)


_BENIGN = tuple(row.begins for row in BENIGN_LINES)


def parse_unknown_driver_line(record: KernelRecord) -> KernelFaultLine | None:
    """Read a line that no other family recognizes: which driver prints it, and of which GPU."""
    text = record.text
    if not (text.startswith(_ALWAYS) or _is_driver_error_line(text.lower())):
        return None
    if _ORDINARY.match(text) is not None or _GPU_NUMBER.sub("NVRM: ", text, 1).startswith(_BENIGN):
        return None
    address = _GPU_ADDRESS.match(text)
    found = make_kernel_fault_line(
        DRIVER_CHECK, "unknown", record, address[1].lower() if address else ""
    )
    return replace(found, detail=_DRIVER_OF.get(text[:HEAD_CHARS], ""))


def _is_driver_error_line(text: str) -> bool:
    tokens = _WORD.findall(text)
    return not _FAILS.isdisjoint(tokens) or any(phrase in text for phrase in _PHRASES)
