"""Keep this node's evidence when the daemon orders it: in the agent, as root.

The agent writes who is about to destroy what into the node's own log first, starts `gather`, and
answers with one finding. It holds nothing of the archive in its memory.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import syslog
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from hpctl.detection.settings import AgentSettings
from hpctl.nodes.evidence.gather import (
    EvidenceGatherRequest,
    EvidenceGatherResult,
    decode_gather_result,
    encode_gather_request,
)
from hpctl.toolkit.bounded_child import BoundedSubprocess, ChildOutputLimitError, ChildTimeoutError
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import SAFE_PATH, UTC
from hpctl.vocabulary.evidence import (
    EVIDENCE_CHECK,
    GATHER_S,
    KEPT,
    NOT_KEPT,
    EvidenceCollectionOrder,
    describe_archive_size_and_digest,
)
from hpctl.vocabulary.model import DeviceVerdict, Finding

log = logging.getLogger(__name__)

MODULE: Final = "hpctl.nodes.evidence.gather"
_MOST_DETAIL: Final = 240
_REAP_S: Final = 2.0
MOST_ANSWER: Final = 256 * 1024
"""Bytes of the answer of the process that gathers."""


class NodeEvidenceRunner:
    """Keeps the evidence of this boot, once for each recovery. For the sender's thread."""

    def __init__(
        self,
        settings: AgentSettings,
        report: Callable[[list[Finding]], None],
        earlier: Iterable[Finding],
    ) -> None:
        """`earlier`: what this boot's former agents found; what they kept is not kept again."""
        self._settings, self._report = settings, report
        self._taken = {f.device for f in earlier if f.check == EVIDENCE_CHECK}
        self._one = threading.Lock()

    def begin(self, order: EvidenceCollectionOrder) -> None:
        """Keep the evidence on a thread; nothing for a recovery whose order was taken before."""
        if order.recovery in self._taken:
            return
        self._taken.add(order.recovery)
        log_upcoming_remedy(order)
        threading.Thread(
            target=self._collect_and_report_evidence, args=(order,), name="evidence", daemon=True
        ).start()

    def _collect_and_report_evidence(self, order: EvidenceCollectionOrder) -> None:
        with self._one:
            result = self._collect_evidence_archive(order)
        now = datetime.now(UTC)
        kept = not result.why
        detail = ", ".join(result.names) if kept else result.why
        log.warning("evidence for %s: %s", order.recovery, detail)
        answer = Finding(
            EVIDENCE_CHECK,
            DeviceVerdict.OK if kept else DeviceVerdict.WARN,
            now,
            now,
            device=order.recovery,
            code=KEPT if kept else NOT_KEPT,
            detail=detail[:_MOST_DETAIL],
            evidence=describe_archive_size_and_digest(result.size, result.sha256) if kept else "",
        )
        self._report([answer])

    def _collect_evidence_archive(self, order: EvidenceCollectionOrder) -> EvidenceGatherResult:
        settings, wanted = self._settings, self._settings.config.evidence
        if not wanted.directory:
            return EvidenceGatherResult(why="the agent's file names no evidence.directory")
        request = EvidenceGatherRequest(
            order=order,
            directory=wanted.directory,
            root=str(settings.root),
            spool=str(settings.spool),
            commands=dict(wanted.commands),
        )
        return _run_gather_process(request)


def _run_gather_process(request: EvidenceGatherRequest) -> EvidenceGatherResult:
    """Return what the gathering process answers, and end it with all that it has started."""
    try:
        with tempfile.TemporaryFile() as question:
            question.write(encode_gather_request(request))
            question.seek(0)
            child = BoundedSubprocess(
                [sys.executable, *SAFE_PATH, MODULE], stdin=question, stderr=subprocess.DEVNULL
            )
    except OSError as error:
        return EvidenceGatherResult(why=f"it cannot be gathered: {error.strerror}")
    said = bytearray()
    try:
        for _, chunk in child.read(time.monotonic() + GATHER_S, MOST_ANSWER):
            said += chunk
    except ChildTimeoutError:
        return EvidenceGatherResult(why=f"it took more than {GATHER_S:.0f} s")
    except ChildOutputLimitError:
        return EvidenceGatherResult(why="the process that gathers it says too much")
    finally:
        # One that sleeps in the kernel, on a file system that is gone, is left behind.
        code = child.end(_REAP_S)
    try:
        return decode_gather_result(bytes(said))
    except msgspec.MsgspecError:
        return EvidenceGatherResult(why=f"gathering it ended with {code}")


def log_upcoming_remedy(order: EvidenceCollectionOrder) -> None:
    """Write into the system's log who destroys what this node shows, and why."""
    acts = {"reset_gpu": "reset GPUs of this node", "reboot": "reboot this node"}
    act = acts.get(order.remedy, "replace this node")
    text = make_printable(f"hpctl is about to {act}: recovery {order.recovery}, {order.why}")
    syslog.openlog("hpctl-agent", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, text)
