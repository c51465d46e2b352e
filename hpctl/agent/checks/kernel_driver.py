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
_NUMBERED = tuple(f"{name}{n}" for name in ("sd ", "ata") for n in range(10))
HEADS = (*_CARDS, *_DISKS, *_OTHERS, *_NUMBERED, "cloc", "bond")
_ALWAYS = ("NVRM: ", "XFS (", "LustreError: ", "LNetError: ", "EXT4-fs warning ")
"""These call a line an error themselves, or print little else."""
_WORD = re.compile(r"[a-z][\w'-]+")
_WORDS = (
    "fail failed failure failures failing fails err error errors fatal timeout timedout lost "
    "corrupt corrupted corruption stuck hung dead down broken faulty cannot can't couldn't didn't "
    "doesn't isn't wasn't won't non-responsive insufficient aborted aborting unrecoverable "
    "unrecovered uncorrectable uncorrected overflow offline degraded bad invalid exceeds exceeded "
    "refused reject rejected rejecting denied unexpected mismatch missing conflict conflicts"
)
_FAILS = frozenset(_WORDS.split())
_PHRASES = (
    *("timed out", "time out", "unable to", "could not", "not respond", "not found", "not ready"),
    *("not set", "not cleared", "not complete", "read-back delay", "giving up", "no usable"),
    *("no space", "no memory", "zero bytes"),
)
_ORDINARY = re.compile(
    # Registers and statements of the line before, what a driver says of itself when it starts.
    r"[\w-]+ [0-9a-f:.]{7,16}: {2,}|NVRM: {2,}|mce: \[Hardware Error\]"
    r"|NVRM: (?:loading |GPU at |GPU Board |A GPU crash dump|Persistence mode)"
    r"|\{\d+\}\[Hardware Error\]: +\w|audit: |traps: |---\[ end "
    r"|XFS \([\w.!-]{1,40}\): (?:(?:Unm|M)ounting|Ending|Starting|Deprecated|EXPERIMENTAL|Quota"
    r"|Using |DAX|User initiated|Torn write|Delaying|[Rr]esetting|Please )"
    r"|.{0,40}\b(?:loop|ram|zram|nbd|rbd|fd|sr)\d"
    r"|.{0,200}(?:xfs_fs_goingdown|Request sent has |error containment|found no error details"
    r"|missing or invalid SUBNQN|failed to set APST|Possible bad register read"
    r"|Shutdown timeout set to|recovered by DPC)"
    r"|(?:efa|infiniband) .{0,60}(?:Failed to (?:process command|register mr|create|submit)"
    r"|Couldn't open port)"
    r"|EXT4-fs \(\S{1,40}\): (?:couldn't mount|VFS: Can't find|error: )"
)


def gather(record: Record) -> Line | None:
    """Whether a driver complains."""
    text = record.text
    if not (text.startswith(_ALWAYS) or _complains(text.lower())):
        return None
    return None if _ORDINARY.match(text) is not None else line(CHECK, "unknown", record)


def _complains(text: str) -> bool:
    words = _WORD.findall(text)
    return not _FAILS.isdisjoint(words) or any(phrase in text for phrase in _PHRASES)


def judge(said: Line) -> Finding:
    """WARN: told, never acted on."""
    return watched(said, frozenset())
