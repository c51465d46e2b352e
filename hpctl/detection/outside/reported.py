"""The reports of scripts on this node: the agent's socket, and the table of reports.

The socket is a unix socket of mode 0600 with a check of SO_PEERCRED: the head node acts on root's
reports about its node, so no other user may report here. A script may also read the agent's
verdict. Answers come from memory; a peer that is slow, silent or sends too much affects only
itself.

The table is small, and its entries expire by the reports' own times. It outlives a restart of the
agent, in one small file, but not a boot, which clears it: a script that still sees the problem
reports it again, and the head node remembers what only an operator clears. A report of the same
check, code, device and job renews an entry; the first detail is kept, because it is part of the
identity of a finding (`hpctl.faults.health.make_finding_identity_key`).
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.changes import FindingChangeListener, NullFindingChangeListener
from hpctl.detection.outside.report_request import FindingReportRequest
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import BootId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

log = logging.getLogger(__name__)


MAX_REPORTED = 64
"""Limit of the distinct findings: an eighth of what a report to the head node holds."""


_Key = tuple[str, str, str, str]


class TooManyReportsError(Exception):
    """The error of a full table in which every entry is a failure."""


class ReportOutcome(Struct, frozen=True):
    """The result of one report: `kept`, or how many were cleared and how many stay.

    Those stay that only an operator clears.
    """

    kept: bool = False
    cleared: int = 0
    stays: int = 0


class _StoredReport(msgspec.Struct, frozen=True):
    finding: Finding
    until: datetime | None


class _StoredReportFile(msgspec.Struct, frozen=True):
    boot: str
    kept: tuple[_StoredReport, ...]


class ReportedFindingTable:
    """The table. All methods from any thread.

    `listener` is called for each change, from the thread that made it. `state` is the file that it
    is kept in; a file that cannot be read or written only loses the entries at a restart.
    """

    def __init__(
        self,
        boot: BootId,
        state: Path | None = None,
        listener: FindingChangeListener | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._boot, self._state = boot, state
        self._listener, self._now = listener or NullFindingChangeListener(), now
        self._lock = threading.Lock()
        self._complained = False
        self._kept = {_make_report_key(kept.finding): kept for kept in self._load_stored_reports()}

    def take(self, report: FindingReportRequest) -> ReportOutcome:
        """Keep, renew or clear an entry. Raises TooManyReportsError."""
        with self._lock:
            taken = (
                self._clear_matching_reports(report)
                if report.verdict is DeviceVerdict.OK
                else self._store_report(report)
            )
            if taken.kept or taken.cleared:
                self._save_stored_reports()
        if taken.kept or taken.cleared:
            self._listener.handle_finding_change()
        return taken

    def findings(self) -> tuple[Finding, ...]:
        """Return the current findings, earliest first. Expired ones are dropped."""
        with self._lock:
            self._drop_expired_reports()
            found = [kept.finding for kept in self._kept.values()]
        return tuple(sorted(found, key=lambda f: (f.first, _make_report_key(f))))

    def _store_report(self, report: FindingReportRequest) -> ReportOutcome:
        now = self._now()
        self._drop_expired_reports()
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
        known = self._kept.get(_make_report_key(finding))
        if known is None:
            self._drop_least_important_report()
        elif known.finding.verdict is DeviceVerdict.OK:
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
        self._kept[_make_report_key(finding)] = _StoredReport(
            finding, None if lasts is None else now + lasts
        )
        return ReportOutcome(kept=True)

    def _clear_matching_reports(self, report: FindingReportRequest) -> ReportOutcome:
        now, cleared, stays = self._now(), 0, 0
        for name, kept in list(self._kept.items()):
            finding = kept.finding
            if (
                not _is_finding_cleared_by_report(report, finding)
                or finding.verdict is DeviceVerdict.OK
            ):
                continue
            if finding.clears is ClearCondition.OPERATOR:
                stays += 1
                continue
            cleared += 1
            if finding.clears is ClearCondition.GONE:
                del self._kept[name]
            else:
                # The head node remembers it until the boot, unless it receives an OK.
                first = min(finding.first, now)
                well = replace(
                    finding, verdict=DeviceVerdict.OK, first=first, last=now, evidence=""
                )
                self._kept[name] = _StoredReport(well, None)
        return ReportOutcome(cleared=cleared, stays=stays)

    def _drop_expired_reports(self) -> None:
        now = self._now()
        for name, kept in list(self._kept.items()):
            if kept.until is not None and kept.until <= now:
                del self._kept[name]

    def _drop_least_important_report(self) -> None:
        """Drop the least important entry of a full table: a cleared one, then a warning."""
        if len(self._kept) < MAX_REPORTED:
            return
        for verdict in (DeviceVerdict.OK, DeviceVerdict.WARN):
            found = [n for n, kept in self._kept.items() if kept.finding.verdict is verdict]
            if found:
                del self._kept[min(found, key=lambda n: self._kept[n].finding.last)]
                return
        raise TooManyReportsError

    def _load_stored_reports(self) -> tuple[_StoredReport, ...]:
        if self._state is None:
            return ()
        try:
            state = msgspec.json.decode(self._state.read_bytes(), type=_StoredReportFile)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, its reports are missed: %s", self._state, error)
            return ()
        return state.kept[:MAX_REPORTED] if state.boot == self._boot else ()

    def _save_stored_reports(self) -> None:
        """Write the state, without a flush to the disk: a crash of the machine can damage only what
        the boot clears."""
        if self._state is None:
            return
        temporary = self._state.with_suffix(".tmp")
        try:
            self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(
                msgspec.json.encode(_StoredReportFile(self._boot, tuple(self._kept.values())))
            )
            temporary.replace(self._state)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if not self._complained:
                self._complained = True
                log.warning("%s cannot be written: %s", self._state, error.strerror)


def _make_report_key(finding: Finding) -> _Key:
    return (finding.check, finding.code, finding.device, finding.job)


def _is_finding_cleared_by_report(report: FindingReportRequest, finding: Finding) -> bool:
    """Return whether an OK clears a finding: a field that it leaves empty matches all."""
    return report.check == finding.check and all(
        given in ("", had)
        for given, had in (
            (report.code, finding.code),
            (report.device, finding.device),
            (report.job, finding.job),
        )
    )
