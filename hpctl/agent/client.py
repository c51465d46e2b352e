"""The agent's end of the wire: one connection to one head node, and a session on it.

What is sent without a session carries a MUNGE credential and asks for one; the answer brings a
key, wrapped in a credential that only this uid can decode. munged is asked twice in five minutes
instead of twice in ten seconds, on this node and on the head node. A session that the head node
does not know any more costs one more round trip. What an answer says is believed where the daemon
proves that it gave it, with the session's key or a credential of its own: while no daemon listens,
any user of the head node may.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import logging
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpctl.core.model import Report
from hpctl.errors import HpctlError
from hpctl.protocol import munge
from hpctl.protocol import reports as wire
from hpctl.protocol.heads import Head, Unproved, check_proof, explained

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
RENEW_AT = 0.8
"""The part of a session's time after which another is asked for."""
_ANSWER_BYTES = 64 * 1024
# Clock, key, Slurm's node address: others may mend these, so the same report may succeed later.
_MENDABLE = frozenset({401, 403, 408, 429})
_NOT_FROM_THERE = {errno.EADDRNOTAVAIL, errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH}
_SESSION_OVER = frozenset({"unknown_session", "expired_session", "bad_mac", "moved_session"})


class _NotFromThere(Exception):
    """A connection from that address is none."""


class Answer(Enum):
    """What came of one attempt."""

    ACKED = "acked"
    RETRY = "retry"
    REFUSED = "refused"
    """The head node will never take it."""
    NEED_FULL = "need_full"
    """A heartbeat's digest names findings that the head node does not hold: send them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer and the head node's own words for it."""

    answer: Answer
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Session:
    head: Head
    id: str
    secret: bytes
    renew_at: float


class HeadClient:
    """Posts to the first head node that answers. For one thread."""

    def __init__(self, heads: tuple[Head, ...], munge_socket: Path | None) -> None:
        if not heads:
            raise HpctlError("no head node is named", "Name it with --head http://HOST:PORT.")
        self._heads, self._munge_socket = heads, munge_socket
        self._current = 0
        self._connection: http.client.HTTPConnection | None = None
        self._session: _Session | None = None

    def post(self, said: Report | wire.Heartbeat) -> Reply:
        """One attempt, one more where a kept connection turns out to be closed. Never raises."""
        if self._connection is not None:
            try:
                return self._attempt(self._connection, said)
            except (OSError, http.client.HTTPException):
                self.close()
            except (munge.MungeUnavailable, Unproved) as error:
                return Reply(Answer.RETRY, str(error))
        head = self._heads[self._current]
        connection = None
        try:
            connection = self._connected(head)
            reply = self._attempt(connection, said)
        except (OSError, http.client.HTTPException, munge.MungeUnavailable, Unproved) as error:
            if connection is not None:
                connection.close()
            self._current = (self._current + 1) % len(self._heads)
            return Reply(Answer.RETRY, f"{head.host}:{head.port}: {error or type(error).__name__}")
        self._connection = connection if connection.sock is not None else None
        return reply

    def close(self) -> None:
        """Drop the connection. The session outlives it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(
        self, connection: http.client.HTTPConnection, said: Report | wire.Heartbeat
    ) -> Reply:
        """Within the session while there is one; where that is over, once more without."""
        session, head = self._session, self._heads[self._current]
        if session and session.head == head and time.monotonic() < session.renew_at:
            body = _encoded(said, open_session=False)
            proof = wire.session_authorization(session.id, session.secret, body)
            status, text, given = _exchange(connection, body, proof)
            if status != 401 or _code(text) not in _SESSION_OVER:
                answer = wire.answered(proof, status, text)
                return self._proved(_reply(status, text), given, answer, session.secret)
            if connection.sock is None:  # the head node closed it with its answer
                connection.connect()
        self._session = None
        body = _encoded(said, open_session=True)
        credential = munge.encode(wire.payload(body), self._munge_socket)
        asked_at = time.monotonic()
        authorization = f"{wire.AUTH_SCHEME} {credential}"
        status, text, given = _exchange(connection, body, authorization)
        answer = wire.answered(authorization, status, text)
        reply = self._proved(_reply(status, text), given, answer)
        if status == 200:
            self._session = self._opened(text, head, asked_at)
        return reply

    def _proved(self, reply: Reply, proof: str, said: bytes, secret: bytes | None = None) -> Reply:
        """A reply that counts; to be asked to try again costs nothing, whoever does. Raises
        Unproved, MungeUnavailable."""
        if reply.answer is not Answer.RETRY:
            check_proof(proof, said, self._munge_socket, secret)
        return reply

    def _connected(self, head: Head) -> http.client.HTTPConnection:
        """From the address that our munged vouches for, where that is one of this host's: the
        head node compares both with the one that Slurm has. Raises OSError, MungeUnavailable."""
        with contextlib.suppress(munge.CredentialError, _NotFromThere):
            own = munge.decode(munge.encode(b"", self._munge_socket), self._munge_socket).address
            return _connection(head, (str(own), 0))
        return _connection(head, None)

    def _opened(self, text: bytes, head: Head, asked_at: float) -> _Session | None:
        """The session that an answer grants; None is no trouble, credentials do as well."""
        try:
            granted = wire.decode_ack(text).session
            if granted is None:
                return None
            secret = munge.decode(granted.key, self._munge_socket).payload
        except (wire.MalformedReportError, munge.CredentialError, munge.MungeUnavailable) as error:
            log.info("no session with the head node: %s", error)
            return None
        return _Session(head, granted.id, secret, asked_at + RENEW_AT * granted.lasts_s)


def _connection(head: Head, source: tuple[str, int] | None) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(
        head.host, head.port, timeout=CONNECT_TIMEOUT_S, source_address=source
    )
    try:
        connection.connect()
    except OSError as error:
        # munged's origin may be no address of ours, or one that leads nowhere (127.0.1.1).
        if source is not None and error.errno in _NOT_FROM_THERE:
            raise _NotFromThere from error
        raise
    connection.sock.settimeout(ANSWER_TIMEOUT_S)
    return connection


def _encoded(said: Report | wire.Heartbeat, *, open_session: bool) -> bytes:
    if isinstance(said, Report):
        return wire.encode(said, open_session=open_session)
    return wire.encode_heartbeat(said, open_session=open_session)


def _exchange(
    connection: http.client.HTTPConnection, body: bytes, authorization: str
) -> tuple[int, bytes, str]:
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    connection.request("POST", wire.PATH, body, headers)
    response = connection.getresponse()
    proof = response.getheader(wire.PROOF_HEADER, "")
    return response.status, response.read(_ANSWER_BYTES), proof


def _reply(status: int, text: bytes) -> Reply:
    if status == 200:
        return Reply(Answer.ACKED)
    if status == 409 and _code(text) == "unknown_digest":
        return Reply(Answer.NEED_FULL)
    later = status >= 500 or status in _MENDABLE
    return Reply(Answer.RETRY if later else Answer.REFUSED, f"{status} {explained(text)}")


def _code(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
