"""What scripts on this node report: the agent's own socket, and the table of what it was told.

A unix socket of mode 0600, and SO_PEERCRED beside it: the head node acts on what root says of its
node, so nobody else may speak here. A script may also read the agent's verdict. Answers come from
memory; a peer that is slow, silent or too talkative costs itself only.

The table is small and forgets by the reports' own times. It outlives a restart of the agent, in one
small file; not a boot, which clears it: a script that still sees the trouble says so again, and
what only an operator clears the head node remembers. Who reports the same check, code, device and
job again renews it; the first detail is kept, for it is part of what makes two findings the same
one (`hpctl.core.health.key`).
"""

import contextlib
import errno
import logging
import os
import re
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from hpctl.agent.outside.trust import owners
from hpctl.core.assess import assess
from hpctl.core.catalogue import Rules
from hpctl.core.compat import UTC
from hpctl.core.model import (
    BootId,
    Clears,
    Condition,
    Finding,
    Generation,
    Health,
    NodeName,
    Verdict,
)
from hpctl.errors import HpctlError, Unavailable
from hpctl.protocol import reports as wire

log = logging.getLogger(__name__)

# --- request ---
#
# What scripts say to the agent over its socket: one line of JSON, one line back.
#
#     {"op": "report", "check": "report.nhc", "code": "check_fs", "verdict": "fail", ...}
#     {"op": "verdict"}
#
# What a script computes at run time (code, device, detail, evidence, job) is made to fit and never
# refused: a report with a strange character in it is worth more than none. What its author wrote
# (names and enums) is checked strictly.

MAX_REQUEST = 16 * 1024
"""Bytes of one request's line."""
MAX_WORD = 256
DEFAULT_FOR_S = 600.0
MAX_FOR_S = 7 * 86400.0

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_NO_CODE = re.compile(r"[^A-Za-z0-9_.:+-]+")
_NO_JOB = re.compile(r"[^0-9_+]+")


class BadRequest(HpctlError):
    """A line that is no request. The message names the place."""


class Report(Struct, frozen=True, forbid_unknown_fields=True, tag="report", tag_field="op"):
    """One report. `for_s` counts from now, with clears `gone` alone; None is DEFAULT_FOR_S.

    With verdict OK it clears: an empty `code`, `device` or `job` then means every one.
    """

    check: Annotated[str, Meta(pattern=r"^report\.[a-z][a-z0-9_.]{0,55}\Z")]
    verdict: Verdict
    code: str = ""
    device: str = ""
    detail: str = ""
    evidence: str = ""
    job: str = ""
    clears: Clears = Clears.GONE
    for_s: Annotated[float, Meta(ge=1, le=MAX_FOR_S)] | None = None

    @property
    def lasts(self) -> timedelta | None:
        """For how long it counts unless it is reported again; None: until something clears it."""
        if self.clears is not Clears.GONE:
            return None
        return timedelta(seconds=DEFAULT_FOR_S if self.for_s is None else self.for_s)


class AskVerdict(Struct, frozen=True, forbid_unknown_fields=True, tag="verdict", tag_field="op"):
    """What does the agent think of this node?"""


_decoder = msgspec.json.Decoder(Report | AskVerdict)


def decode(line: bytes) -> Report | AskVerdict:
    """The request in a line. Raises BadRequest."""
    try:
        request: Report | AskVerdict = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"not a request: {error}") from error
    if isinstance(request, AskVerdict):
        return request
    if request.verdict in (Verdict.UNKNOWN, Verdict.NOTE):
        raise BadRequest("verdict is ok, warn or fail: who knows nothing reports nothing")
    if request.for_s is not None and request.clears is not Clears.GONE:
        raise BadRequest(f"for_s goes with clears gone, not with {request.clears.value}")
    return msgspec.structs.replace(
        request,
        code=_NO_CODE.sub("_", request.code.strip())[:64],
        device=_plain(request.device, MAX_WORD),
        detail=_plain(request.detail, MAX_WORD),
        evidence=_plain(request.evidence, wire.MAX_EVIDENCE),
        job=_NO_JOB.sub("", request.job)[:32],
    )


def _plain(text: str, limit: int) -> str:
    """One line without control characters: terminals obey those."""
    return _CONTROL.sub(" ", text).strip()[:limit]


MAX_REPORTED = 64
"""Distinct findings at once: an eighth of what a report to the head node holds."""

_Key = tuple[str, str, str, str]


class Full(Exception):
    """No room for one more, and everything that is kept is a failure."""


class Taken(Struct, frozen=True):
    """What came of one report: `kept`, or how many were cleared and how many stay.

    Those stay that only an operator clears.
    """

    kept: bool = False
    cleared: int = 0
    stays: int = 0


class _Kept(msgspec.Struct, frozen=True):
    finding: Finding
    until: datetime | None


class _State(msgspec.Struct, frozen=True):
    boot: str
    kept: tuple[_Kept, ...]


class Reported:
    """The table. All methods from any thread.

    `changed` is called after each change, from the thread that made it. `state` is the file that
    it is kept in; a file that cannot be read or written costs only the memory of a restart.
    """

    def __init__(
        self,
        boot: BootId,
        state: Path | None = None,
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._boot, self._state = boot, state
        self._changed, self._now = changed, now
        self._lock = threading.Lock()
        self._complained = False
        self._kept = {_key(kept.finding): kept for kept in self._recall()}

    def take(self, report: Report) -> Taken:
        """Keep, renew or clear. Raises Full."""
        with self._lock:
            taken = self._clear(report) if report.verdict is Verdict.OK else self._keep(report)
            if taken.kept or taken.cleared:
                self._save()
        if taken.kept or taken.cleared:
            self._changed()
        return taken

    def findings(self) -> tuple[Finding, ...]:
        """What counts now, earliest first. Those whose time is over are dropped."""
        with self._lock:
            self._forget()
            found = [kept.finding for kept in self._kept.values()]
        return tuple(sorted(found, key=lambda f: (f.first, _key(f))))

    def _keep(self, report: Report) -> Taken:
        now = self._now()
        self._forget()
        finding = Finding(
            report.check,
            report.verdict,
            now,
            now,
            device=report.device,
            code=report.code,
            detail=report.detail,
            evidence=report.evidence,
            clears=report.clears,
            job=report.job,
        )
        known = self._kept.get(_key(finding))
        if known is None:
            self._make_room()
        elif known.finding.verdict is Verdict.OK:
            finding = replace(finding, detail=known.finding.detail)
        else:
            before = known.finding
            finding = replace(
                finding,
                detail=before.detail,
                first=min(before.first, now),  # the clock may have been set back
                count=before.count + 1,
            )
        lasts = report.lasts
        self._kept[_key(finding)] = _Kept(finding, None if lasts is None else now + lasts)
        return Taken(kept=True)

    def _clear(self, report: Report) -> Taken:
        now, cleared, stays = self._now(), 0, 0
        for name, kept in list(self._kept.items()):
            finding = kept.finding
            if not _meant(report, finding) or finding.verdict is Verdict.OK:
                continue
            if finding.clears is Clears.OPERATOR:
                stays += 1
                continue
            cleared += 1
            if finding.clears is Clears.GONE:
                del self._kept[name]
            else:
                # The head node remembers it until the boot, unless it hears that all is well.
                first = min(finding.first, now)
                well = replace(finding, verdict=Verdict.OK, first=first, last=now, evidence="")
                self._kept[name] = _Kept(well, None)
        return Taken(cleared=cleared, stays=stays)

    def _forget(self) -> None:
        now = self._now()
        for name, kept in list(self._kept.items()):
            if kept.until is not None and kept.until <= now:
                del self._kept[name]

    def _make_room(self) -> None:
        """Drop what matters least where the table is full: what is well again, then a warning."""
        if len(self._kept) < MAX_REPORTED:
            return
        for verdict in (Verdict.OK, Verdict.WARN):
            found = [n for n, kept in self._kept.items() if kept.finding.verdict is verdict]
            if found:
                del self._kept[min(found, key=lambda n: self._kept[n].finding.last)]
                return
        raise Full

    def _recall(self) -> tuple[_Kept, ...]:
        if self._state is None:
            return ()
        try:
            state = msgspec.json.decode(self._state.read_bytes(), type=_State)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, its reports are missed: %s", self._state, error)
            return ()
        return state.kept[:MAX_REPORTED] if state.boot == self._boot else ()

    def _save(self) -> None:
        """Not flushed to the disk: what a crash of the machine can damage, a boot clears anyway."""
        if self._state is None:
            return
        temporary = self._state.with_suffix(".tmp")
        try:
            self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(
                msgspec.json.encode(_State(self._boot, tuple(self._kept.values())))
            )
            temporary.replace(self._state)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if not self._complained:
                self._complained = True
                log.warning("%s cannot be written: %s", self._state, error.strerror)


def _key(finding: Finding) -> _Key:
    return (finding.check, finding.code, finding.device, finding.job)


def _meant(report: Report, finding: Finding) -> bool:
    """Whether an OK speaks of a finding: what it leaves empty stands for every one."""
    return report.check == finding.check and all(
        given in ("", had)
        for given, had in (
            (report.code, finding.code),
            (report.device, finding.device),
            (report.job, finding.job),
        )
    )


# --- verdict ---
#
# What the agent thinks of its own node, for prologs and epilogs: by hpctl's own rules.
#
# Nothing is probed: a prolog that waits for hardware hangs jobs (docs/adr/0009). It is judged by
# the same function as on the head node, so an application's Xid 13 keeps no job off the node. What
# a site overrides on the head node, nodes do not know: there the head node's word counts, this one
# only keeps a job from a node that is about to be drained.

MAX_SHOWN = 16
_EVIDENCE_CHARS = 256


class ShownFinding(Struct, frozen=True):
    """One finding, in short."""

    check: str
    code: str
    device: str
    verdict: Verdict
    detail: str
    evidence: str
    count: int
    first: datetime
    last: datetime


class NodeVerdict(Struct, frozen=True):
    """The answer. `as_of` is when the agent last looked; `rule` is empty unless FAULTY."""

    node: NodeName
    condition: Condition
    as_of: datetime
    since: datetime
    rule: str
    why: str
    findings: tuple[ShownFinding, ...]


def judge(
    generation: Generation,
    findings: Sequence[Finding],
    as_of: datetime,
    rules: Rules,
    now: datetime,
) -> NodeVerdict:
    """What the findings that the agent has at `as_of` amount to at `now`.

    An agent that has not looked for longer than `rules.silent_after` knows nothing: UNKNOWN, save
    for a fault that is proven.
    """
    found = assess(Health(generation, as_of, tuple(findings)), rules, now)
    return NodeVerdict(
        node=generation.node,
        condition=found.condition,
        as_of=as_of,
        since=found.since,
        rule=found.fault.rule if found.fault else "",
        why=found.why,
        findings=tuple(_shown(finding) for finding in found.findings[:MAX_SHOWN]),
    )


def _shown(f: Finding) -> ShownFinding:
    evidence = f.evidence[:_EVIDENCE_CHARS]
    return ShownFinding(
        f.check, f.code, f.device, f.verdict, f.detail, evidence, f.count, f.first, f.last
    )


MAX_PEERS = 32
PEER_S = 1.0
"""How long one peer may take over its request and over reading its answer."""
REPORTS_A_SECOND = 10.0
REPORT_BURST = 100.0
_UCRED = struct.Struct("3i")


class _Rate:
    """A token bucket: a script in a loop must not become the agent's load."""

    def __init__(self) -> None:
        self._left, self._at = REPORT_BURST, time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(REPORT_BURST, self._left + (now - self._at) * REPORTS_A_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Peer(Struct):
    link: socket.socket
    deadline: float
    heard: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class LocalServer:
    """Serves the socket in a thread of its own from `start` to `stop`.

    `verdict` is called from that thread, for each peer that asks.
    """

    def __init__(self, path: Path, reported: Reported, verdict: Callable[[], NodeVerdict]) -> None:
        self._path, self._reported, self._verdict = path, reported, verdict
        self._rate = _Rate()
        self._peers: dict[socket.socket, _Peer] = {}
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="local", daemon=True)

    def start(self) -> None:
        """Listen. Raises Unavailable where the socket cannot be had."""
        self._listener = _listen(self._path)
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and take the socket away; bounded to two seconds."""
        if self._listener is None:
            return
        self._waker.send(b"\0")
        self._thread.join(2.0)
        self._waker.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _serve(self) -> None:
        assert self._listener is not None
        try:
            while True:
                wait = 10.0 if not self._peers else PEER_S / 4
                for key, _ in self._selector.select(wait):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept(self._listener)
                    else:
                        self._turn(self._peers[key.fileobj])  # type: ignore[index]
                self._drop_slow()
        finally:
            for peer in list(self._peers.values()):
                self._drop(peer)
            self._listener.close()
            self._woken.close()
            self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            link, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                log.warning("no peer can be accepted: %s", error.strerror)
                time.sleep(0.1)
            return
        link.setblocking(False)
        peer = _Peer(link, time.monotonic() + PEER_S)
        self._peers[link] = peer
        self._selector.register(link, selectors.EVENT_READ)
        uid = _UCRED.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in owners():
            self._reply(peer, _error("forbidden", f"uid {uid} may not speak to the agent"))
        elif len(self._peers) > MAX_PEERS:
            self._reply(peer, _error("busy", f"{MAX_PEERS} others are being served"))

    def _turn(self, peer: _Peer) -> None:
        if peer.answer:
            self._write(peer)
            return
        try:
            chunk = peer.link.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        peer.heard += chunk
        line, newline, _ = bytes(peer.heard).partition(b"\n")
        if len(line) > MAX_REQUEST:
            self._reply(peer, _error("too_large", f"a request has at most {MAX_REQUEST} bytes"))
        elif newline:
            self._reply(peer, self._answer(line))
        elif not chunk:
            self._drop(peer)

    def _answer(self, line: bytes) -> bytes:
        try:
            request = decode(line)
            if isinstance(request, AskVerdict):
                return msgspec.json.encode({"verdict": self._verdict()})
            if not self._rate.take():
                return _error("too_many", f"more than {REPORTS_A_SECOND:g} reports a second")
            return msgspec.json.encode(self._reported.take(request))
        except BadRequest as error:
            return _error("malformed", str(error))
        except Full:
            return _error(
                "full",
                f"{MAX_REPORTED} failures are reported already, this one is not kept",
                "Clear what is repaired with --verdict ok.",
            )
        except Exception as error:
            # Whatever broke, the thread must go on answering: prologs wait for it.
            log.exception("a request could not be answered")
            return _error("internal", f"{type(error).__name__}: {error}", "See the agent's log.")

    def _reply(self, peer: _Peer, answer: bytes) -> None:
        peer.answer = answer + b"\n"
        self._selector.modify(peer.link, selectors.EVENT_WRITE)
        self._write(peer)

    def _write(self, peer: _Peer) -> None:
        try:
            peer.answer = peer.answer[peer.link.send(peer.answer) :]
        except BlockingIOError:
            return
        except OSError:
            peer.answer = b""
        if not peer.answer:
            self._drop(peer)

    def _drop_slow(self) -> None:
        now = time.monotonic()
        for peer in [p for p in self._peers.values() if p.deadline < now]:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.link, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.link)
        peer.link.close()


def _error(code: str, message: str, hint: str = "") -> bytes:
    return msgspec.json.encode({"error": code, "message": message, "hint": hint})


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0600 from its first moment. Raises Unavailable."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _clear_away(path)
        # Before bind: Linux gives the socket's file the mode that the socket has then.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(os.fspath(path))
        listener.listen(MAX_PEERS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"the agent's socket {path} cannot be had: {error.strerror or error}",
            "Name another path with --socket; it may have at most 107 characters.",
        ) from error
    return listener


def _clear_away(path: Path) -> None:
    """Remove a dead agent's socket. Raises OSError where something lives there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        if probe.connect_ex(os.fspath(path)) == 0:
            raise OSError(errno.EADDRINUSE, "another agent serves it")
    path.unlink(missing_ok=True)
