"""Keep this node's evidence when the daemon orders it: in the agent, as root.

The agent writes who is about to destroy what into the node's own log first, starts `gather`, and
answers with one finding. It holds nothing of the archive in its memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import syslog
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from hpctl.detection.settings import AgentSettings
from hpctl.nodes.evidence.gather import GatherRequest, GatherResult, decode_result, encode_request
from hpctl.toolkit.compat import SAFE_PATH, UTC
from hpctl.vocabulary.evidence import (
    EVIDENCE_CHECK,
    GATHER_S,
    KEPT,
    NOT_KEPT,
    EvidenceOrder,
    describe_archive,
)
from hpctl.vocabulary.model import Finding, Verdict

log = logging.getLogger(__name__)

MODULE: Final = "hpctl.nodes.evidence.gather"
_MOST_DETAIL: Final = 240
_REAP_S: Final = 2.0


class EvidenceKeeper:
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

    def begin(self, order: EvidenceOrder) -> None:
        """Keep the evidence on a thread; nothing for a recovery whose order was taken before."""
        if order.recovery in self._taken:
            return
        self._taken.add(order.recovery)
        _announce(order)
        threading.Thread(target=self._keep, args=(order,), name="evidence", daemon=True).start()

    def _keep(self, order: EvidenceOrder) -> None:
        with self._one:
            result = self._gather(order)
        now = datetime.now(UTC)
        kept = not result.why
        detail = ", ".join(result.names) if kept else result.why
        log.warning("evidence for %s: %s", order.recovery, detail)
        answer = Finding(
            EVIDENCE_CHECK,
            Verdict.OK if kept else Verdict.WARN,
            now,
            now,
            device=order.recovery,
            code=KEPT if kept else NOT_KEPT,
            detail=detail[:_MOST_DETAIL],
            evidence=describe_archive(result.size, result.sha256) if kept else "",
        )
        self._report([answer])

    def _gather(self, order: EvidenceOrder) -> GatherResult:
        settings, wanted = self._settings, self._settings.config.evidence
        if not wanted.directory:
            return GatherResult(why="the agent's file names no evidence.directory")
        request = GatherRequest(
            order=order,
            directory=wanted.directory,
            root=str(settings.root),
            spool=str(settings.spool),
            commands=dict(wanted.commands),
        )
        try:
            process = subprocess.Popen(
                [sys.executable, *SAFE_PATH, MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return GatherResult(why=f"it cannot be gathered: {error.strerror}")
        return _read_result(process, request)


def _read_result(process: subprocess.Popen[bytes], request: GatherRequest) -> GatherResult:
    """Return what the process answers, and end what it has started."""
    try:
        out, _ = process.communicate(encode_request(request), timeout=GATHER_S)
        return decode_result(out)
    except subprocess.TimeoutExpired:
        return GatherResult(why=f"it took more than {GATHER_S:.0f} s")
    except (msgspec.MsgspecError, OSError):
        return GatherResult(why=f"gathering it ended with {process.poll()}")
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # One that sleeps in the kernel, on a file system that is gone, is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            process.communicate(timeout=_REAP_S)


def _announce(order: EvidenceOrder) -> None:
    """Write into the system's log who destroys what this node shows, and why."""
    acts = {"reset_gpu": "reset GPUs of this node", "reboot": "reboot this node"}
    act = acts.get(order.remedy, "replace this node")
    text = f"hpctl is about to {act}: recovery {order.recovery}, {order.why}"
    syslog.openlog("hpctl-agent", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, text)
