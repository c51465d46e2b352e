"""What scripts on this node have reported: a small table that forgets by the reports' own times.

It outlives a restart of the agent, in one small file; not a boot, which clears it: a script that
still sees the trouble says so again, and what only an operator clears the head node remembers.
Who reports the same check, code, device and job again renews it; the first detail is kept, for it
is part of what makes two findings the same one (`hpctl.core.health.key`).
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.core.compat import UTC
from hpctl.core.model import BootId, Clears, Finding, Verdict
from hpctl.errors import HpctlError
from hpctl.protocol import reports as wire

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
    if request.verdict is Verdict.UNKNOWN:
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


log = logging.getLogger(__name__)

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
