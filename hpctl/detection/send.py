"""Send reports to the head node: one thread, one connection, one session.

Every report carries all findings, so a lost one is contained in the next, and only the newest
snapshot waits while the head node is away. Findings that the head node has acknowledged are not
sent again: a heartbeat names them by their digest, and where the head node does not have them (it
was restarted) it answers so and is sent all immediately. Every attempt has its own seq: a lost
answer is no reason to refuse a report.

The digest leaves out counts and times. A finding that was merely seen again therefore goes out with
the next heartbeat only after a few heartbeats without a report: a storm costs the head node an
occasional report, and the effect of a rule on a repeat (the same error minutes later) is late by
seconds. The count decides nothing.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.settings import AgentSettings
from hpctl.detection.spool import FindingsSpool
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.jitter import pick_random_pause_seconds
from hpctl.vocabulary.model import AgentReport, Finding
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.heads import (
    NOT_LEADER,
    HeadNodeAddress,
    UnauthenticatedAnswerError,
    format_refusal_response,
    parse_leader_address,
    verify_head_node_answer_proof,
)
from hpctl.wire.stack_request import RankStackTraceRequest

log = logging.getLogger(__name__)


FIRST_RETRY_S = 0.2


LAST_RETRY_S = 5.0


REPEATS_EVERY = 3
"""Heartbeats between two reports in which only counts and times differ."""


NEWS_RETRY_S, NEWS_TRIES = 0.5, 80
"""While something new is not acknowledged, so many attempts follow each other at most so far apart,
so that a standby gets it as soon as it leads."""


CONNECT_TIMEOUT_S = 2.0


ANSWER_TIMEOUT_S = 5.0


STANDBY_TIMEOUT_S = 2.0
"""The same for an answer where another head node may lead by now."""


DISTRUST_S = 10.0
"""For how long a standby's answer does not redirect to a head node that did not answer: it names
the former leader until the lease is over."""


RENEW_AT = 0.8
"""The part of a session's time after which a new one is requested."""


_ANSWER_BYTES = 64 * 1024


# Clock, key, Slurm's node address: these may be corrected, so the same report may succeed later.
_MENDABLE = frozenset({401, 403, 408, 429})


_NOT_FROM_THERE = {errno.EADDRNOTAVAIL, errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH}


_TOO_EARLY = "403 future_start"


_SESSION_OVER = frozenset({"unknown_session", "expired_session", "bad_mac", "moved_session"})


BURST = 10
"""So many wakes are sent immediately before any has to wait."""


EVERY_S = 0.5
"""After that, one in this time; what comes meanwhile is sent together."""


class AgentSnapshotSource(Protocol):
    """The present findings and numbers of an agent."""

    def snapshot(self) -> tuple[int, tuple[Finding, ...]]:
        """Return the findings, with a version that grows whenever something new is among them."""

    def gauges(self) -> Mapping[str, float]:
        """Return the numbers that both reports and heartbeats contain."""


class HeadNodeOrderHandler(Protocol):
    """The handler of what the head node requests in its answers."""

    def read_stacks(self, ask: RankStackTraceRequest) -> None:
        """Read the stacks of a job's ranks."""

    def obey(self, order: str) -> None:
        """Carry out an order, a credential of the daemon's."""


class ReportSender(threading.Thread):
    """A sender of a snapshot: immediately when `wake` is called, else once a heartbeat, and then in
    brief.

    `knowledge` and `orders` are called from this thread.
    """

    def __init__(
        self,
        settings: AgentSettings,
        spool: FindingsSpool,
        agent_start: datetime,
        knowledge: AgentSnapshotSource,
        orders: HeadNodeOrderHandler,
    ) -> None:
        super().__init__(name="sender", daemon=True)
        self.progress = time.monotonic()
        self._settings, self._spool = settings, spool
        self._agent_start = agent_start
        self._knowledge, self._orders = knowledge, orders
        self._client = HeadNodeClient(settings.heads, settings.munge_socket)
        self._wanted = threading.Condition()
        self._woken, self._stopping = False, False
        self._seq = 0
        self._saved: tuple[int, bool] = (0, True)
        self._held: tuple[Finding, ...] | None = None
        self._held_since = 0.0
        self._last_complaint = ""

    def wake(self) -> None:
        """Send what is new without waiting for the heartbeat."""
        with self._wanted:
            self._woken = True
            self._wanted.notify()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Save what is known and stop. A request in flight may take `timeout_s`."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify()
        self.join(timeout_s)

    def run(self) -> None:
        """Wait for a reason and send, until stopped."""
        failures = 0
        while True:
            self.progress = time.monotonic()
            with self._wanted:
                self._woken = False
            reply = self.deliver()
            self._log_delivery_failure(reply)
            if reply.stacks is not None:
                self._orders.read_stacks(reply.stacks)
            if reply.order:
                self._orders.obey(reply.order)
            failures = failures + 1 if reply.answer is ReportDeliveryResult.RETRY else 0
            with self._wanted:
                if failures:
                    pause = _compute_send_backoff_s(failures, news=not self._saved[1])
                    self._wanted.wait_for(lambda: self._stopping, pause)
                else:
                    period_s = self._settings.heartbeat_s
                    pause = pick_random_pause_seconds(0.9 * period_s, period_s)
                    self._wanted.wait_for(lambda: self._woken or self._stopping, pause)
                if self._stopping:
                    break
        version, report = self._make_next_agent_report()
        if version > self._saved[0]:
            self._save_report_to_spool(version, report, acked=False)
        self._client.close()

    def deliver(self) -> HeadNodeReply:
        """Send the present snapshot, in brief where that is complete; update the spool."""
        reply = self._send_findings_snapshot()
        self._correct_agent_start_time(reply)
        return reply

    def _send_findings_snapshot(self) -> HeadNodeReply:
        version, report = self._make_next_agent_report()
        if self._is_head_node_up_to_date(report.findings):
            reply = self._client.post(_make_heartbeat_from_report(report))
            if reply.answer is not ReportDeliveryResult.NEED_FULL:
                self._save_report_to_spool(version, report, acked=True)
                return reply
            self._seq += 1
            report = replace(report, seq=self._seq)
        reply = self._client.post(report)
        acked = reply.answer is ReportDeliveryResult.ACKED
        if acked:
            self._held, self._held_since = report.findings, time.monotonic()
        self._save_report_to_spool(version, report, acked=acked)
        return reply

    def _is_head_node_up_to_date(self, findings: tuple[Finding, ...]) -> bool:
        """Return whether the head node has all this, except for repeats that can wait."""
        if self._held is None or findings == self._held:
            return self._held is not None
        peace = self._settings.heartbeat_s * REPEATS_EVERY
        recent = time.monotonic() - self._held_since < peace
        return recent and wire.compute_findings_digest(findings) == wire.compute_findings_digest(
            self._held
        )

    def _make_next_agent_report(self) -> tuple[int, AgentReport]:
        self._seq += 1
        version, findings = self._knowledge.snapshot()
        settings = self._settings
        return version, AgentReport(
            node=settings.node,
            instance=settings.instance,
            boot=settings.boot,
            seq=self._seq,
            sent_at=datetime.now(UTC),
            agent_start=self._agent_start,
            findings=findings,
            gauges=self._knowledge.gauges(),
        )

    def _save_report_to_spool(self, version: int, report: AgentReport, *, acked: bool) -> None:
        """Save when something is new or newly acknowledged: after the attempt, so that it delays
        none."""
        if (version, acked) != self._saved:
            self._saved = (version, acked)
            self._spool.save(report, acked=acked)

    def _correct_agent_start_time(self, reply: HeadNodeReply) -> None:
        """Correct the start time of an agent that began with a clock that was ahead and has been
        set back since: no report would be accepted before that time."""
        if reply.text.startswith(_TOO_EARLY):
            self._agent_start = min(self._agent_start, datetime.now(UTC))

    def _log_delivery_failure(self, reply: HeadNodeReply) -> None:
        """Log a problem once, and its end."""
        if reply.answer is ReportDeliveryResult.ACKED:
            if self._last_complaint:
                log.warning("the head node takes reports again")
            self._last_complaint = ""
        elif reply.text != self._last_complaint:
            self._last_complaint = reply.text
            log.warning("a report was not taken (%s): %s", reply.answer.value, reply.text)


def _make_heartbeat_from_report(report: AgentReport) -> wire.Heartbeat:
    return wire.Heartbeat(
        node=report.node,
        instance=report.instance,
        boot=report.boot,
        seq=report.seq,
        sent_at=report.sent_at,
        agent_start=report.agent_start,
        digest=wire.compute_findings_digest(report.findings),
        gauges=dict(report.gauges),
    )


def _compute_send_backoff_s(failures: int, *, news: bool = False) -> float:
    longest = NEWS_RETRY_S if news and failures <= NEWS_TRIES else LAST_RETRY_S
    ceiling = min(longest, FIRST_RETRY_S * float(1 << min(failures - 1, 10)))
    return pick_random_pause_seconds(0.5 * ceiling, ceiling)


#
# The agent's end of the wire: one connection to one head node, and a session on it.
#
# A message without a session carries a MUNGE credential and requests one; the answer brings a key,
# wrapped in a credential that only this uid can decode. munged is asked twice in five minutes
# instead of twice in ten seconds, on this node and on the head node. A session that the head node
# no longer knows costs one more round trip. An answer is trusted where the daemon authenticates it,
# with the session's key or its own credential: while no daemon listens, any user of the head node
# may listen.


class _SourceAddressError(Exception):
    """The error of a source address from which no connection is possible."""


class ReportDeliveryResult(Enum):
    """The result of one attempt."""

    ACKED = "acked"
    RETRY = "retry"
    NOT_LEADER = "not_leader"
    """The answer of a standby: the next attempt goes to the leader that it named, or to another
    head node."""
    REFUSED = "refused"
    """The head node will never accept it."""
    NEED_FULL = "need_full"
    """A heartbeat's digest names findings that the head node does not have: send them."""


class HeadNodeReply(Struct, frozen=True):
    """The answer and the head node's reason for it; the order that came with it."""

    answer: ReportDeliveryResult
    text: str = ""
    stacks: RankStackTraceRequest | None = None
    """What the head node requests with it."""
    order: str = ""


class _HeadNodeSession(Struct, frozen=True):
    head: HeadNodeAddress
    id: str
    secret: bytes
    renew_at: float


class HeadNodeClient:
    """A client that posts to the leading head node: the last one that accepted a message, the one
    that a standby names, or the next. For one thread."""

    def __init__(self, heads: tuple[HeadNodeAddress, ...], munge_socket: Path | None) -> None:
        if not heads:
            raise HpctlError(
                "the agent has no head node to send reports to",
                "Give the head node's address with --head http://HOST:PORT.",
            )
        self._heads, self._munge_socket = heads, munge_socket
        self._current = 0
        self._connection: http.client.HTTPConnection | None = None
        self._session: _HeadNodeSession | None = None
        self._silent: tuple[HeadNodeAddress | None, float] = (None, 0.0)
        self._answer_s = STANDBY_TIMEOUT_S if len(heads) > 1 else ANSWER_TIMEOUT_S

    def post(self, message: AgentReport | wire.Heartbeat) -> HeadNodeReply:
        """Make one attempt, one more where a kept connection is closed, and one where a standby
        redirects. Never raises."""
        here = self._heads[self._current]
        reply = self._post_message_once(message)
        if reply.answer is ReportDeliveryResult.NOT_LEADER and self._heads[self._current] != here:
            reply = self._post_message_once(message)
        return (
            HeadNodeReply(ReportDeliveryResult.RETRY, reply.text)
            if reply.answer is ReportDeliveryResult.NOT_LEADER
            else reply
        )

    def _post_message_once(self, message: AgentReport | wire.Heartbeat) -> HeadNodeReply:
        head = self._heads[self._current]
        if self._connection is not None:
            try:
                return self._post_message_in_session(self._connection, message)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if isinstance(error, TimeoutError):
                    return self._record_connection_failure(head, error)
            except (munge.MungeUnavailable, UnauthenticatedAnswerError) as error:
                return HeadNodeReply(ReportDeliveryResult.RETRY, str(error))
        try:
            self._connection = self._open_head_node_connection(head)
            reply = self._post_message_in_session(self._connection, message)
        except (
            OSError,
            http.client.HTTPException,
            munge.MungeUnavailable,
            UnauthenticatedAnswerError,
        ) as error:
            self.close()
            return self._record_connection_failure(head, error)
        if self._connection is not None and self._connection.sock is None:
            self._connection = None
        return reply

    def _record_connection_failure(self, head: HeadNodeAddress, error: Exception) -> HeadNodeReply:
        if isinstance(error, TimeoutError):
            self._silent = head, time.monotonic() + DISTRUST_S
        self._current = (self._current + 1) % len(self._heads)
        return HeadNodeReply(
            ReportDeliveryResult.RETRY, f"{head.host}:{head.port}: {error or type(error).__name__}"
        )

    def _switch_head_node(self, text: bytes) -> HeadNodeReply:
        """Turn to the leader that a standby names, or to the next head node."""
        self.close()
        here, named = self._heads[self._current], parse_leader_address(text, self._heads)
        following = self._heads[(self._current + 1) % len(self._heads)]
        goal, (silent, until) = following if named in (None, here) else named, self._silent
        if goal != silent or time.monotonic() > until:
            self._current = self._heads.index(goal)
        return HeadNodeReply(ReportDeliveryResult.NOT_LEADER, format_refusal_response(text))

    def close(self) -> None:
        """Close the connection. The session outlives it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post_message_in_session(
        self, connection: http.client.HTTPConnection, message: AgentReport | wire.Heartbeat
    ) -> HeadNodeReply:
        """Try within the session while there is one; where that is over, once more without."""
        session, head = self._session, self._heads[self._current]
        if session and session.head == head and time.monotonic() < session.renew_at:
            body = _encode_report_or_heartbeat(message, open_session=False)
            proof = wire.make_session_authorization(session.id, session.secret, body)
            status, text, given = _post_http_request(connection, body, proof)
            if status == NOT_LEADER:
                return self._switch_head_node(text)
            if status != 401 or _parse_reply_error_code(text) not in _SESSION_OVER:
                answer = wire.make_answer_proof_payload(proof, status, text)
                return self._verify_reply_authenticity(
                    parse_head_node_reply(status, text), given, answer, session.secret
                )
            if connection.sock is None:  # the head node closed it with its answer
                connection.connect()
        self._session = None
        body = _encode_report_or_heartbeat(message, open_session=True)
        credential = munge.encode_munge_credential(
            wire.make_request_credential_payload(body), self._munge_socket
        )
        asked_at = time.monotonic()
        authorization = f"{wire.AUTH_SCHEME} {credential}"
        status, text, given = _post_http_request(connection, body, authorization)
        if status == NOT_LEADER:
            return self._switch_head_node(text)
        answer = wire.make_answer_proof_payload(authorization, status, text)
        reply = self._verify_reply_authenticity(parse_head_node_reply(status, text), given, answer)
        if status == 200:
            self._session = self._open_head_node_session(text, head, asked_at)
        return reply

    def _verify_reply_authenticity(
        self, reply: HeadNodeReply, proof: str, body: bytes, secret: bytes | None = None
    ) -> HeadNodeReply:
        """Return an authentic reply; a request to try again is accepted from any sender. Raises
        Unproved, MungeUnavailable."""
        if reply.answer is not ReportDeliveryResult.RETRY:
            verify_head_node_answer_proof(proof, body, self._munge_socket, secret)
        return reply

    def _open_head_node_connection(self, head: HeadNodeAddress) -> http.client.HTTPConnection:
        """Connect from the address in munged's credentials, where that is one of this host's: the
        head node compares both with the address in Slurm. Raises OSError, MungeUnavailable."""
        with contextlib.suppress(munge.MungeCredentialError, _SourceAddressError):
            own = munge.decode_munge_credential(
                munge.encode_munge_credential(b"", self._munge_socket), self._munge_socket
            ).address
            return _connect_to_head_node(head, (str(own), 0), self._answer_s)
        return _connect_to_head_node(head, None, self._answer_s)

    def _open_head_node_session(
        self, text: bytes, head: HeadNodeAddress, asked_at: float
    ) -> _HeadNodeSession | None:
        """Return the session that an answer grants; without one (None), credentials still work."""
        try:
            granted = wire.decode_report_ack(text).session
            if granted is None:
                return None
            secret = munge.decode_munge_credential(granted.key, self._munge_socket).payload
        except (
            wire.MalformedReportError,
            munge.MungeCredentialError,
            munge.MungeUnavailable,
        ) as error:
            log.info("no session with the head node: %s", error)
            return None
        return _HeadNodeSession(head, granted.id, secret, asked_at + RENEW_AT * granted.lasts_s)


def _connect_to_head_node(
    head: HeadNodeAddress, source: tuple[str, int] | None, answer_s: float
) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(
        head.host, head.port, timeout=CONNECT_TIMEOUT_S, source_address=source
    )
    try:
        connection.connect()
    except OSError as error:
        # munged's origin may not be an address of this host, or one without a route (127.0.1.1).
        if source is not None and error.errno in _NOT_FROM_THERE:
            raise _SourceAddressError from error
        raise
    connection.sock.settimeout(answer_s)
    return connection


def _encode_report_or_heartbeat(
    message: AgentReport | wire.Heartbeat, *, open_session: bool
) -> bytes:
    if isinstance(message, AgentReport):
        return wire.encode_agent_report(message, open_session=open_session)
    return wire.encode_heartbeat(message, open_session=open_session)


def _post_http_request(
    connection: http.client.HTTPConnection, body: bytes, authorization: str
) -> tuple[int, bytes, str]:
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    connection.request("POST", wire.PATH, body, headers)
    response = connection.getresponse()
    proof = response.getheader(wire.PROOF_HEADER, "")
    return response.status, response.read(_ANSWER_BYTES), proof


def parse_head_node_reply(status: int, text: bytes) -> HeadNodeReply:
    """Return what an answer with an HTTP status and a body means for the sender."""
    if status == 200:
        ack = _parse_report_ack(text)
        return HeadNodeReply(ReportDeliveryResult.ACKED, stacks=ack.stacks, order=ack.order)
    if status == 409 and _parse_reply_error_code(text) == "unknown_digest":
        return HeadNodeReply(ReportDeliveryResult.NEED_FULL)
    later = status >= 500 or status in _MENDABLE
    return HeadNodeReply(
        ReportDeliveryResult.RETRY if later else ReportDeliveryResult.REFUSED,
        f"{status} {format_refusal_response(text)}",
    )


def _parse_report_ack(text: bytes) -> wire.ReportAck:
    """Return what an answer requests, which is usually nothing."""
    if b'"stacks"' in text or b'"order"' in text:
        with contextlib.suppress(wire.MalformedReportError):
            return wire.decode_report_ack(text)
    return wire.ReportAck(0)


def _parse_reply_error_code(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
