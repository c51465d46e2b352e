"""Kernel lines. File servers: Lustre, NFS and others that do not answer."""

import re

from hpctl.detection.kernel.block_devices import BLOCK_HEADS, gather_block
from hpctl.detection.kernel.filesystems import FS_HEADS, gather_fs
from hpctl.detection.kernel.line import ENDED, Family, Line, line
from hpctl.detection.kernel.nvme import NVME_HEADS, gather_nvme
from hpctl.detection.kmsg import Record

# File servers that do not answer, as the NFS and Lustre clients say.
#
#     nfs: server 10.0.0.5 not responding, still trying
#     nfs: server 10.0.0.5 OK
#     lockd: server 10.0.0.5 not responding, still trying
#     NFS: __nfs4_reclaim_open_state: Lock reclaim failed!
#     NFSv4: state recovery failed for open file ckpt/step_100.pt, error = -5
#     Lustre: fsx-OST0000-osc-ffff8a: Connection to fsx-OST0000 (at 10.0.1.5@tcp) was lost; in ...
#     Lustre: fsx-OST0000-osc-ffff8a: Connection restored to 10.0.1.5@tcp (at 10.0.1.5@tcp)
#     LustreError: 167-0: fsx-MDT0000-mdc-ffff8a: This client was evicted by fsx-MDT0000; in ...
#     LustreError: 4242:0:(osc_cache.c:1290:osc_completion()) LBUG
#     LustreError: 4242:0:(osc_object.c:411:osc_req_attr_set()) ASSERTION( ... ) failed:
#     LustreError: 132-0: fsx-OST0007-osc-ffff8a: BAD READ CHECKSUM: from 10.0.7.12@tcp inode ...
#
# A lost connection ends with the line that says so: its finding goes with it. Whether one node or
# the storage is to blame can only be seen from all nodes together: nothing here is for one node
# to be closed, but an assertion that failed inside the client (LBUG), which stops it for good.

NFS = "kernel.nfs"


LUSTRE = "kernel.lustre"


REMOTE_HEADS = ("nfs:", "NFS:", "nfs4", "__nf", "NFSv", "lock", "Lust")


_NFS = re.compile(
    r"(?:nfs|lockd): server (?P<server>\S+) "
    r"(?:(?P<lost>not responding, (?:still trying|timed out))|OK\b)"
)


_RECLAIM = re.compile(r"(?:NFS: )?\w{1,60}: Lock reclaim failed\b")


_STATE = re.compile(
    r"NFSv4: state recovery failed |NFS: (?:state manager: .{1,60} failed"
    r"|migration recovery failed|\w{1,60}: (?:unhandled error|lost \d+ locks))"
)


_TARGET = r"(?P<target>[\w.@:-]+?)(?:-(?:osc|mdc|lwp)-\w+)?"


_LUSTRE = re.compile(
    rf"Lustre(?:Error)?: (?:[\dx]+-\d+: )?{_TARGET}: (?:"
    r"(?P<lost>Connection to .{0,160} was lost; in progress operations)"
    r"|(?P<restored>Connection restored to )"
    r"|(?P<evicted>This client was evicted by )"
    r"|(?P<checksum>BAD (?:READ|WRITE) CHECKSUM: ))"
)


_LBUG = re.compile(r"LustreError: \d+:\d+:\([\w.-]+:\d+:\w+\(\)\) (?:LBUG\b|ASSERTION\(.* failed:)")


_CODES = {
    "lost": "connection-lost",
    "restored": f"{ENDED}connection-lost",
    "evicted": "evicted",
    "checksum": "checksum",
}


def gather_remote(record: Record) -> Line | None:
    """Which server or target, and whether it went or came back."""
    text = record.text
    if (match := _NFS.match(text)) is not None:
        code = "not-responding" if match["lost"] else f"{ENDED}not-responding"
        return line(NFS, code, record, match["server"])
    if _RECLAIM.match(text) is not None:
        return line(NFS, "locks-lost", record)
    if _STATE.match(text) is not None:
        return line(NFS, "state-lost", record)
    if (match := _LUSTRE.match(text)) is not None:
        return line(LUSTRE, _CODES[str(match.lastgroup)], record, match["target"])
    if _LBUG.match(text) is not None:
        return line(LUSTRE, "bug", record)
    return None


BLOCK = Family(gather_block, BLOCK_HEADS)


FS = Family(gather_fs, FS_HEADS)


NVME = Family(gather_nvme, NVME_HEADS)


REMOTE = Family(gather_remote, REMOTE_HEADS)
