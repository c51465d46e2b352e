"""File servers that do not answer, as the NFS and Lustre clients say.

    nfs: server 10.0.0.5 not responding, still trying
    nfs: server 10.0.0.5 OK
    lockd: server 10.0.0.5 not responding, still trying
    NFS: __nfs4_reclaim_open_state: Lock reclaim failed!
    NFSv4: state recovery failed for open file ckpt/step_100.pt, error = -5
    Lustre: fsx-OST0000-osc-ffff8a: Connection to fsx-OST0000 (at 10.0.1.5@tcp) was lost; in ...
    Lustre: fsx-OST0000-osc-ffff8a: Connection restored to 10.0.1.5@tcp (at 10.0.1.5@tcp)
    LustreError: 167-0: fsx-MDT0000-mdc-ffff8a: This client was evicted by fsx-MDT0000; in ...
    LustreError: 4242:0:(osc_cache.c:1290:osc_completion()) LBUG
    LustreError: 4242:0:(osc_object.c:411:osc_req_attr_set()) ASSERTION( ... ) failed:
    LustreError: 132-0: fsx-OST0007-osc-ffff8a: BAD READ CHECKSUM: from 10.0.7.12@tcp inode ...

A lost connection ends with the line that says so: its finding goes with it. Whether one node or
the storage is to blame can only be seen from all nodes together: nothing here is for one node
to be closed, but an assertion that failed inside the client (LBUG), which stops it for good.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hpctl.agent.checks.kernel_line import Line, finding, line
from hpctl.agent.kmsg import Record
from hpctl.core.model import Clears, Finding, Verdict

NFS = "kernel.nfs"
LUSTRE = "kernel.lustre"
HEADS = ("nfs:", "NFS:", "nfs4", "__nf", "NFSv", "lock", "Lust")
ENDED = "ok:"
"""Before a code: the line that ends what the code began."""
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
_GOING = frozenset({"not-responding", "connection-lost"})


_CODES = {
    "lost": "connection-lost",
    "restored": f"{ENDED}connection-lost",
    "evicted": "evicted",
    "checksum": "checksum",
}


def gather(record: Record) -> Line | None:
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


def judge(said: Line) -> Finding:
    """WARN, and gone when the server is back; OK for the line that says so. FAIL for an LBUG."""
    if said.code.startswith(ENDED):
        ended = replace(said, code=said.code.removeprefix(ENDED))
        return finding(ended, Verdict.OK, Clears.GONE)
    if said.code in _GOING:
        return finding(said, Verdict.WARN, Clears.GONE)
    return finding(said, Verdict.FAIL if said.code == "bug" else Verdict.WARN)
