"""What drivers and file systems report in words that no other family knows.

    mlx5_core 0000:ab:00.0: mlx5_crdump_collect:50:(pid 99): failed to collect crdump err -16
    bond0: (slave ens1f0np0): link status definitely down, disabling slave
    LNetError: 2210:0:(o2iblnd_cb.c:3454:kiblnd_check_txs_locked()) Timed out tx: ...

Kernels and drivers find new words with each release. Whoever reads a log, or asks why a node is
suspect, should see that its driver complains; nothing is done about it, for nobody knows what it
means. Only lines are looked at that begin with the name of what a node lives by, and hold a word of
failure; what other lines explain (registers of an AER error) and what an application asked for in
vain (a queue pair that EFA refuses) is left out.
"""

from __future__ import annotations

import re

from hpctl.agent.checks.kernel_line import Line, line, watched
from hpctl.agent.kmsg import Record
from hpctl.core.model import Finding

CHECK = "kernel.driver"
_CARDS = ("NVRM", "nvid", "nvme", "mlx5", "infi", "efa ", "ena ", "neur", "pcie", "pci ", "pci_")
_DISKS = ("EXT4", "XFS ", "BTRF", "JBD2", "md: ", "md/r", "devi", "bloc", "NFS:", "NFSv", "nfs:")
_OTHERS = ("lock", "Lust", "LNet", "ceph", "libc", "CIFS", "RPC:", "DMAR", "AMD-", "EDAC", "mce:")
_NUMBERED = tuple(f"{name}{n}" for name in ("sd ", "ata", "bon") for n in (*range(10), "d"))
HEADS = (*_CARDS, *_DISKS, *_OTHERS, *_NUMBERED)
_FAILS = re.compile(
    # These call a line an error themselves, or print little else.
    r"NVRM: |L(?:ustre|Net)Error: |\w+-fs warning "
    r"|.*?\b(?:[Ff]ail(?:ed|ure|ing|s)?|FAILED|[Ee]rrors?|ERROR|[Ff]atal|FATAL|[Tt]imed[ -]?out"
    r"|[Tt]ime-?out|TIMEOUT|[Ll]ost|[Cc]orrupt\w{0,4}|stuck|hung|dead|broken|faulty|[Uu]nable to"
    r"|[Cc]an ?not|[Cc]ould not|(?:[Cc]a|[Cc]ould|[Dd]id|[Ii]s|[Dd]oes)n't|not respond\w{0,4}"
    r"|non-responsive|is not ready|not found|[Aa]bort(?:ed|ing)|[Uu]nrecover\w{0,6}"
    r"|[Uu]ncorrect\w{0,6}|overflow|definitely down|went down|link (?:is )?down|offline|degraded"
    r"|[Bb]ad|[Ii]nvalid|exceed(?:s|ed)|refused|reject(?:ed|ing)|denied|[Uu]nexpected|[Mm]ismatch"
    r"|[Mm]issing|[Cc]onflicts?|no (?:usable|space|room|memory)|zero bytes|giving up)\b"
)
_ORDINARY = re.compile(
    # Registers and statements of the line before, what a driver says of itself when it starts.
    r"[\w-]+ [0-9a-f:.]{7,16}: {2,}|NVRM: {2,}|mce: \[Hardware Error\]"
    r"|NVRM: (?:loading |GPU at |GPU Board |A GPU crash dump|Persistence mode)"
    r"|.{0,40}\b(?:loop|ram|zram|nbd|rbd|fd|sr)\d"
    r"|.{0,200}(?:xfs_fs_goingdown|Request sent has |error containment|found no error details"
    r"|missing or invalid SUBNQN|failed to set APST|Possible bad register read)"
    r"|(?:efa|infiniband) .{0,60}(?:Failed to (?:process command|register mr|create|submit)"
    r"|Couldn't open port)"
    r"|EXT4-fs \(\S{1,40}\): (?:couldn't mount|VFS: Can't find|error: )"
)


def gather(record: Record) -> Line | None:
    """Whether a driver complains."""
    if _FAILS.match(record.text) is None or _ORDINARY.match(record.text) is not None:
        return None
    return line(CHECK, "unknown", record)


def judge(said: Line) -> Finding:
    """WARN: told, never acted on."""
    return watched(said, frozenset())
