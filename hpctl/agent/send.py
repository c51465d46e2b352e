"""Getting reports to the head node: one thread, one connection, one session.

Every report carries all findings, so whatever was not heard is in the next one, and nothing but
the newest snapshot has to wait while the head node is away. Findings that the head node has
acknowledged are not sent again: a heartbeat names them by their digest, and where the head node
does not hold them (it was started again) it says so and is sent all at once. Every attempt has a
seq of its own: an answer that was lost is no reason for a report to be refused.

The digest leaves out counts and times. A finding that was merely seen again therefore goes out
with the next heartbeat only where the head node has had a few heartbeats of peace: a storm costs
it a report now and then, and what a rule makes of a repeat (the same error minutes later) is late
by seconds. How often a thing was seen decides nothing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from hpctl.agent.client import Answer, HeadClient, Reply
from hpctl.agent.settings import AgentSettings
from hpctl.agent.spool import Spool
from hpctl.core.compat import UTC
from hpctl.core.model import Finding, Report
from hpctl.protocol import reports as wire

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
REPEATS_EVERY = 3
"""Heartbeats between two reports in which only counts and times differ."""


class Sender(threading.Thread):
    """Sends a snapshot at once when `wake` is called, else once a heartbeat, and then in brief.

    `snapshot` is asked for the findings of the moment, with a version that grows whenever
    something new is among them, `gauges` for the numbers of the moment, which are in reports and
    heartbeats alike. Both are called from this thread.
    """

    def __init__(
        self,
        settings: AgentSettings,
        spool: Spool,
        snapshot: Callable[[], tuple[int, tuple[Finding, ...]]],
        agent_start: datetime,
        gauges: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        super().__init__(name="sender", daemon=True)
        self.progress = time.monotonic()
        self._settings, self._spool, self._snapshot = settings, spool, snapshot
        self._agent_start, self._gauges = agent_start, gauges
        self._client = HeadClient(settings.heads, settings.munge_socket)
        self._wanted = threading.Condition()
        self._woken, self._stopping = False, False
        self._seq = 0
        self._saved: tuple[int, bool] = (0, True)
        self._held: tuple[Finding, ...] | None = None
        self._held_since = 0.0
        self._last_complaint = ""

    def wake(self) -> None:
        """There is something new: do not wait for the heartbeat."""
        with self._wanted:
            self._woken = True
            self._wanted.notify()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Save what is known and end. What is in flight is given `timeout_s`."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify()
        self.join(timeout_s)

    def run(self) -> None:
        """Until stopped: wait for a reason, send, and again."""
        failures = 0
        while True:
            self.progress = time.monotonic()
            with self._wanted:
                self._woken = False
            reply = self._deliver()
            self._complain(reply)
            failures = failures + 1 if reply.answer is Answer.RETRY else 0
            with self._wanted:
                if failures:
                    self._wanted.wait_for(lambda: self._stopping, _backoff(failures))
                else:
                    pause = self._settings.heartbeat_s * random.uniform(0.9, 1.0)  # noqa: S311 - jitter
                    self._wanted.wait_for(lambda: self._woken or self._stopping, pause)
                if self._stopping:
                    break
        version, report = self._next_report()
        if version > self._saved[0]:
            self._keep(version, report, acked=False)
        self._client.close()

    def _deliver(self) -> Reply:
        """Send the snapshot of now, in brief where that says it all; keep the spool in step."""
        version, report = self._next_report()
        if self._is_held(report.findings):
            reply = self._client.post(_brief(report))
            if reply.answer is not Answer.NEED_FULL:
                self._keep(version, report, acked=True)
                return reply
            self._seq += 1
            report = replace(report, seq=self._seq)
        reply = self._client.post(report)
        acked = reply.answer is Answer.ACKED
        if acked:
            self._held, self._held_since = report.findings, time.monotonic()
        self._keep(version, report, acked=acked)
        return reply

    def _is_held(self, findings: tuple[Finding, ...]) -> bool:
        """Whether the head node knows all this, or all but some repeats that can wait."""
        if self._held is None or findings == self._held:
            return self._held is not None
        peace = self._settings.heartbeat_s * REPEATS_EVERY
        recent = time.monotonic() - self._held_since < peace
        return recent and wire.digest(findings) == wire.digest(self._held)

    def _next_report(self) -> tuple[int, Report]:
        self._seq += 1
        version, findings = self._snapshot()
        settings = self._settings
        return version, Report(
            node=settings.node,
            instance=settings.instance,
            boot=settings.boot,
            seq=self._seq,
            sent_at=datetime.now(UTC),
            agent_start=self._agent_start,
            findings=findings,
            gauges=self._gauges(),
        )

    def _keep(self, version: int, report: Report, *, acked: bool) -> None:
        """Save when something is new or newly heard: after the attempt, so it delays none."""
        if (version, acked) != self._saved:
            self._saved = (version, acked)
            self._spool.save(report, acked=acked)

    def _complain(self, reply: Reply) -> None:
        """Log a trouble once, and that it is over."""
        if reply.answer is Answer.ACKED:
            if self._last_complaint:
                log.warning("the head node takes reports again")
            self._last_complaint = ""
        elif reply.text != self._last_complaint:
            self._last_complaint = reply.text
            log.warning("a report was not taken (%s): %s", reply.answer.value, reply.text)


def _brief(report: Report) -> wire.Heartbeat:
    return wire.Heartbeat(
        node=report.node,
        instance=report.instance,
        boot=report.boot,
        seq=report.seq,
        sent_at=report.sent_at,
        agent_start=report.agent_start,
        digest=wire.digest(report.findings),
        gauges=dict(report.gauges),
    )


def _backoff(failures: int) -> float:
    ceiling = min(LAST_RETRY_S, FIRST_RETRY_S * float(1 << min(failures - 1, 10)))
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
