"""Turn the log of HyperPod's health monitoring agent into findings."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta

from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.findings import merge_repeated_findings
from hpctl.detection.outside.hma_log import HealthAgentLogLine, Source, UntrustedHealthLogError
from hpctl.detection.outside.hma_records import (
    HealthAgentDetection,
    MalformedHealthAgentDetectionError,
    parse_health_agent_detection,
)
from hpctl.faults.health import Key, make_finding_identity_key
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

#
# The findings of HyperPod's health monitoring agent, followed on a separate thread.

CHECK_LOG = "hma.log"


MAX_KEPT = 64
"""Limit of the distinct findings of one boot. They only inform: further ones are counted."""


WAIT_S = 1.0


TROUBLE_S = 3600.0
"""How long a problem with the log is reported after it was last seen."""


AGAIN_S = 60.0
"""How long after a problem the log is opened again."""


class HealthAgentLogWatcher(threading.Thread):
    """A watch that follows a source until stopped. `listener` is called for each new finding.

    Records from before `booted` are another boot's and no longer count. A missing source is not a
    finding: most machines have none. An untrusted one is.
    """

    def __init__(self, source: Source, booted: datetime, listener: FindingChangeListener) -> None:
        super().__init__(name="hma", daemon=True)
        # The kernel's time of the boot and the wall clock differ by the adjustments since.
        self._source, self._booted = source, booted - timedelta(seconds=5)
        self._listener = listener
        self._found: dict[Key, Finding] = {}
        self._trouble: Finding | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._cut = 0

    def run(self) -> None:
        """Read and judge until stopped."""
        try:
            while not self._stopping.is_set():
                pause = 0.0 if self.turn(WAIT_S) else AGAIN_S
                self._stopping.wait(pause)
        finally:
            self._source.close()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop; a read under way may take `timeout_s`."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout_s)

    def turn(self, wait_s: float) -> bool:
        """Read once. Return False where there is no source."""
        try:
            lines = self._source.read(wait_s)
        except UntrustedHealthLogError as error:
            self._record_log_problem("untrusted", str(error))
            return False
        except ServiceUnavailable:
            return False
        heard = datetime.now(UTC)
        for line in lines:
            self._process_log_line(line, heard)
        if self._source.cut > self._cut:
            self._record_log_problem("too_long", "a line is too long to be a detection")
            self._cut = self._source.cut
        return True

    def findings(self) -> tuple[Finding, ...]:
        """Return all findings of this boot, earliest first. From any thread."""
        with self._lock:
            trouble = () if self._trouble is None else (self._trouble,)
            if trouble and datetime.now(UTC) - trouble[0].last > timedelta(seconds=TROUBLE_S):
                self._trouble, trouble = None, ()
            return (
                *sorted(
                    self._found.values(), key=lambda f: (f.first, make_finding_identity_key(f))
                ),
                *trouble,
            )

    def _process_log_line(self, line: HealthAgentLogLine, heard: datetime) -> None:
        try:
            detection = parse_health_agent_detection(line.text)
        except (
            MalformedHealthAgentDetectionError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            self._record_log_problem("malformed", str(error) or type(error).__name__, line.text)
            return
        if detection is not None:
            self._add_detection_finding(detection, line, heard)

    def _add_detection_finding(
        self, detection: HealthAgentDetection, line: HealthAgentLogLine, heard: datetime
    ) -> None:
        at = detection.at or line.at
        if at is not None and at < self._booted:
            return
        finding = detection.finding(line.at or heard)
        name = make_finding_identity_key(finding)
        with self._lock:
            old = self._found.get(name)
            if old is not None and at is not None and at <= old.last:
                return  # The log was opened again and repeats the line.
            full = old is None and len(self._found) >= MAX_KEPT
            if not full:
                self._found[name] = (
                    finding if old is None else merge_repeated_findings(old, finding)
                )
        if full:
            self._record_log_problem(
                "too_many", f"more than {MAX_KEPT} distinct detections in one boot"
            )
        elif old is None:
            self._listener.handle_finding_change()

    def _record_log_problem(self, code: str, detail: str, evidence: str = "") -> None:
        """Record one UNKNOWN finding for all problems with the log: the first message, counted."""
        now = datetime.now(UTC)
        new = Finding(
            CHECK_LOG,
            DeviceVerdict.UNKNOWN,
            now,
            now,
            code=code,
            detail=detail[:256],
            evidence=evidence[:512],
            clears=ClearCondition.GONE,
        )
        with self._lock:
            old = self._trouble
            self._trouble = new if old is None else merge_repeated_findings(old, new)
        if old is None:
            self._listener.handle_finding_change()


def compute_machine_boot_time() -> datetime:
    """Return when this machine booted, by its own clocks."""
    return datetime.fromtimestamp(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), UTC)
