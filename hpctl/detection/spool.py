"""The agent's spool: what it found, kept over a restart."""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import AgentReport, ClearCondition, Finding
from hpctl.wire import reports as wire

log = logging.getLogger(__name__)


# The state that an agent needs after it was killed: the findings of this boot.
#
# One small file, `state.json`, holds the last snapshot of this boot and whether the head node
# acknowledged it. It is written atomically. A boot clears the findings of the boot before: sending
# them late would make the head node treat a machine that is gone, so they are only logged. A
# finding that only an operator clears is different: where it was not acknowledged, it is reported
# after the boot. A file that cannot be read is renamed and its content lost: the kernel's ring
# shows most of it again. A disk that cannot be written affects only the spool, never the agent.


class RestoredFindings(Struct, frozen=True):
    """The state of a former run: the findings that still count, and when that run started."""

    findings: tuple[Finding, ...] = ()
    agent_start: datetime | None = None


class _SpooledAgentReport(msgspec.Struct, frozen=True):
    acked: bool
    body: str


class FindingsSpool:
    """The files under one directory. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._state = directory / "state.json"
        self._complained = False

    def recall(self, generation: NodeGeneration) -> RestoredFindings:
        """Read the state. Of another boot only findings count that were not acknowledged and that
        no boot clears, of another instance none; the agent's start always counts."""
        found = self._read()
        if found is None:
            return RestoredFindings()
        state, report = found
        if report.generation == generation:
            return RestoredFindings(report.findings, report.agent_start)
        unheard = () if state.acked else report.findings
        kept = []
        for finding in unheard:
            if report.instance == generation.instance and finding.clears is ClearCondition.OPERATOR:
                kept.append(finding)
            else:
                log.warning("not heard before this boot: %s %s", finding.check, finding.evidence)
        return RestoredFindings(tuple(kept), report.agent_start)

    def save(self, report: AgentReport, *, acked: bool) -> None:
        """Replace the state; it is on stable storage on return."""
        temporary = self._state.with_suffix(".tmp")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            body = wire.encode_agent_report(report).decode()
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(_SpooledAgentReport(acked, body)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._state)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("the spool %s cannot be written: %s", self._directory, error.strerror)

    def _read(self) -> tuple[_SpooledAgentReport, AgentReport] | None:
        try:
            state = msgspec.json.decode(self._state.read_bytes(), type=_SpooledAgentReport)
            return state, wire.decode_agent_report(state.body.encode())
        except FileNotFoundError:
            return None
        except (
            OSError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
            wire.MalformedReportError,
        ) as error:
            log.warning("%s cannot be read and is renamed to *.bad: %s", self._state, error)
            with contextlib.suppress(OSError):
                self._state.replace(self._state.with_suffix(".bad"))
            return None
