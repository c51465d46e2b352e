"""Disks, file systems and file servers, as the kernel's lines tell of them.

A code is one thing however often it was printed.
"""

from __future__ import annotations

from hpctl.core.faults.row import CheckSpec, FaultRow
from hpctl.core.model import Clears

DISK_CHECKS = (
    CheckSpec(
        "kernel.nvme",
        "an NVMe controller that is gone, went down, or let a command time out",
        "drivers/nvme/host",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.block",
        "a block device that fails I/O, a disk array that lost a disk",
        "block/blk-core.c, fs/buffer.c, drivers/md",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.fs",
        "ext4, XFS or Btrfs that went read-only, or found itself damaged",
        "fs/ext4, fs/xfs, fs/btrfs",
        clears=Clears.BOOT,
    ),
)
SERVER_CHECKS = (
    CheckSpec(
        "kernel.nfs",
        "an NFS server that does not answer, locks and state that were lost",
        "net/sunrpc/clnt.c, fs/nfs",
        clears=Clears.BOOT,
    ),
    CheckSpec(
        "kernel.lustre",
        "the Lustre client: an assertion that failed, an eviction, damaged data, a "
        "connection that was lost",
        "Lustre client",
        clears=Clears.BOOT,
    ),
)

DISKS = (
    FaultRow(
        "kernel.fs", "readonly", "B", "a local file system takes no more writes after an error"
    ),
    FaultRow("kernel.nvme", "dead", "B", "an NVMe controller is gone, with its data"),
    FaultRow("kernel.block", "raid-lost", "B", "a disk array has failed"),
    FaultRow("kernel.nvme", "down", "A", "an NVMe controller went down and was reset", own=True),
    FaultRow("kernel.block", "raid-degraded", "W", "a disk array lost a disk and goes on"),
    FaultRow("kernel.nvme", "timeout", "W", "an NVMe command timed out and was helped along"),
    FaultRow("kernel.nvme", "error", "W", "an NVMe controller or disk reports errors"),
    FaultRow("kernel.block", "raid-error", "W", "a disk array or mapped device reports errors"),
    FaultRow("kernel.block", "medium-error", "W", "a sector cannot be read"),
    FaultRow("kernel.block", "io-error", "W", "a block device failed requests"),
    FaultRow("kernel.block", "buffer-error", "W", "a buffer could not be written"),
    FaultRow("kernel.fs", "error", "W", "a file system found itself damaged"),
)

SERVERS = (
    FaultRow("kernel.lustre", "bug", "B", "the Lustre client stopped at an assertion of its own"),
    FaultRow(
        "kernel.lustre", "evicted", "W", "a Lustre server evicted this client: open files were lost"
    ),
    FaultRow(
        "kernel.lustre",
        "connection-lost",
        "W",
        "a Lustre server does not answer",
        clears=Clears.GONE,
    ),
    FaultRow("kernel.lustre", "checksum", "W", "data of a Lustre server was damaged on its way"),
    FaultRow("kernel.nfs", "state-lost", "W", "the state of files of an NFS server was lost"),
    FaultRow(
        "kernel.nfs", "not-responding", "W", "an NFS server does not answer", clears=Clears.GONE
    ),
    FaultRow("kernel.nfs", "locks-lost", "W", "locks on files of an NFS server were lost"),
)
