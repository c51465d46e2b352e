"""Authentication: bytes and an Authorization header in, an authenticated report or a Refusal out.

| status | code | meaning |
|---|---|---|
| 421 | not_leader | this daemon is the standby; `leader` is the other's HOST:PORT, if known |
| 413, 408 | too_large, slow_body | more than wire.MAX_BODY bytes, or not here within 10 s |
| 401 | missing_credential, bad_digest | no credential and no session; credential of other bytes |
| 401 | invalid_, expired_, rewound_, unauthorized_credential | munged vouches for nothing |
| 409 | replayed_credential | used before |
| 403 | forbidden_uid | encoded by a user who may not report |
| 401 | unknown_session, expired_session | no longer open: after 5 min, or a daemon's restart |
| 401 | bad_mac | signed with another key than the session's |
| 401 | moved_session | from another address than it was opened from, or Slurm has another now |
| 400, 422 | malformed, unsupported_version, invalid_report | not a report, or outside the limits |
| 403 | unknown_node, forged_node | Slurm has no such node; the origin or TCP peer is another |
| 403 | future_start | an agent that started more than five minutes from now |
| 429 | too_many | more than REPORTS of one node at once, or REPORTS_A_SECOND in the long run |
| 409 | stale_report | not newer than what was accepted of that node |
| 409 | unknown_digest | a heartbeat about findings that are not held here: send them |
| 503 | munge_unavailable, slurm_unavailable, journal_unavailable | not the sender's fault: retry |

Of the senders that a credential has proved, a session proves the next requests by a shared key.
"""

import asyncio
import hmac
import json
import logging
import math
import secrets
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from starlette.types import Receive

from hpctl.toolkit.addresses import resolve_ipv4
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.rate_limiter import RateLimiter
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import AgentReport
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.stack_request import RankStackTraceRequest

_T = TypeVar("_T")


class RequestRefusal(HpctlError):
    """A request that is not authenticated or not taken whole, with its HTTP status and code.

    `more` are further keys of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", **more: object
    ) -> None:
        super().__init__(message, hint)
        self.status, self.code, self.more = status, code, more

    @property
    def body(self) -> dict[str, object]:
        """Return the answer's JSON."""
        return {"error": self.code, "message": str(self), "hint": self.hint, **self.more}

    @property
    def as_json(self) -> bytes:
        """`body`, as it goes over the wire."""
        return json.dumps(self.body).encode()


class RequestBodyLimits(Struct, frozen=True):
    """How large a body may be, in bytes, how long it may take, and the answer to a larger one."""

    most: int
    within_s: float
    too_large: str
    hint: str = ""


async def read_request_body(announced: str, receive: Receive, bounds: RequestBodyLimits) -> bytes:
    """Read the body; refuse it as soon as it is too large, announced so, or too slow.

    `announced` is its Content-Length. Raises Refusal: too_large, slow_body or disconnected.
    """
    over = RequestRefusal(413, "too_large", bounds.too_large, bounds.hint)
    if parse_count(announced) > bounds.most:
        raise over
    try:
        return await asyncio.wait_for(
            _receive_body_chunks(receive, bounds.most, over), bounds.within_s
        )
    except asyncio.TimeoutError as error:
        text = f"the body did not arrive within {bounds.within_s:.0f} s"
        raise RequestRefusal(408, "slow_body", text) from error


async def _receive_body_chunks(receive: Receive, most: int, over: RequestRefusal) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.detach_channel":
            raise RequestRefusal(
                400, "disconnected", "the client disconnected before the body ended"
            )
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise over
    return bytes(body)


LASTS_S = 300.0
"""As long as a MUNGE credential by default: what a stolen key could be used for is the same."""


class AgentSession(Struct, frozen=True):
    """What was proved when it was opened. `address` is Slurm's for the node, `peer` TCP's."""

    node: NodeName
    address: str
    peer: str
    secret: bytes
    until: float

    def proof(self, answer: bytes) -> str:
        """Return the head node's own proof of an answer within the session."""
        return f"{wire.SESSION_SCHEME} {wire.sign_message_body(self.secret, answer)}"


class AgentSessions:
    """All open sessions. Safe in any thread; nothing here blocks.

    Asking munged takes a fifth of a millisecond of processor time, an HMAC a few microseconds. A
    session is good for one node, from one address, for a few minutes, and for one run of the
    daemon: nothing of it is stored. There is one for each node, so the nodes that Slurm knows bound
    them. What is old is not replayed: reports and heartbeats carry growing sequence numbers.
    """

    def __init__(
        self, lasts_s: float = LASTS_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.lasts_s = lasts_s
        self._monotonic = monotonic
        self._open: dict[str, AgentSession] = {}
        self._of_node: dict[NodeName, str] = {}

    def open(self, node: NodeName, address: str, peer: str) -> tuple[str, bytes]:
        """Return a new session's id and key; the node's former session ends."""
        name, secret = secrets.token_hex(16), secrets.token_bytes(wire.KEY_BYTES)
        self._open[name] = AgentSession(
            node, address, peer, secret, self._monotonic() + self.lasts_s
        )
        former = self._of_node.get(node)
        self._of_node[node] = name
        if former is not None:
            self._open.pop(former, None)
        return name, secret

    def verify(self, authorization: str, body: bytes, peer: str) -> AgentSession:
        """Return the session within which a body was sent. Raises Refusal.

        `authorization` is the whole header, of wire.SESSION_SCHEME.
        """
        name, _, proof = authorization[len(wire.SESSION_SCHEME) + 1 :].partition(":")
        session = self._open.get(name)
        if session is None:
            hint = "Open another with a MUNGE credential: agents do so by themselves."
            raise RequestRefusal(401, "unknown_session", "no such session is open", hint)
        if self._monotonic() >= session.until:
            message = f"the session of {session.node} is over after {self.lasts_s:.0f} s"
            raise RequestRefusal(401, "expired_session", message)
        if not hmac.compare_digest(
            wire.sign_message_body(session.secret, body).encode(), proof.encode()
        ):
            raise RequestRefusal(401, "bad_mac", "the body was not signed with the session's key")
        if peer != session.peer:
            message = f"the session of {session.node} was opened from {session.peer}, not {peer}"
            raise RequestRefusal(401, "moved_session", message)
        return session


log = logging.getLogger(__name__)

AHEAD_S = 300.0
"""How far an agent's clock may be ahead of ours: MUNGE itself takes no credential of more."""
REPORTS, REPORTS_A_SECOND = 600, 5.0
"""Reports of one node, each of which is a write to the disk."""

AddressOf = Callable[[NodeName], str | None]
"""Slurm's address of a node (IPv4 or host name), None for a node that Slurm does not know.
Raises Unavailable while Slurm has not answered yet: the agent then tries again."""


class LeadershipNotice(Struct):
    """Whether this host's daemon leads, as it said last: good until a monotonic time, for one that
    is frozen takes nothing back. `leader`: HOST:PORT of the one that does, where it is known."""

    until: float = math.inf
    leader: str = ""

    @property
    def now(self) -> bool:
        """Return whether it leads."""
        return time.monotonic() < self.until

    def renew(self, until: float, leader: str) -> None:
        """Take what the daemon said last."""
        self.until, self.leader = until, leader

    def check(self) -> None:
        """Raises Refusal where it does not."""
        if not self.now:
            # One that has fallen silent while it led named itself last.
            leader = "" if self.until else self.leader
            where = f"{leader} leads" if leader else "no leader is known"
            raise RequestRefusal(
                421,
                "not_leader",
                f"this head node's daemon is the standby: {where}",
                "Send it there, or to the next head node: agents, jobs and hpctl do so themselves.",
                leader=leader,
            )


class IntakeAuthenticationSettings(Struct, frozen=True):
    """Where the intake asks munged, whom it accepts, and for how long without asking again."""

    munge_socket: Path | None = None
    allowed_uids: frozenset[int] = frozenset({0})
    threads: int = 4
    """Credentials that munged is asked about at once."""
    session_s: float = LASTS_S
    leading: LeadershipNotice = field(default_factory=LeadershipNotice)
    asks: dict[NodeName, RankStackTraceRequest] = field(default_factory=dict)
    """What agents are asked with the answer to their reports and heartbeats; others change it."""

    def prove(self, uid: int, answer: bytes) -> str:
        """Our proof of an answer, for a uid alone; empty where munged is away."""
        try:
            credential = munge.encode_munge_credential(answer, self.munge_socket, only_uid=uid)
            return f"{wire.AUTH_SCHEME} {credential}"
        except munge.MungeUnavailable as error:
            log.warning("an answer goes without proof: %s", error)
            return ""


class AuthenticatedMessage(Struct, frozen=True):
    """What a MUNGE credential proves: who says what, and from which of Slurm's addresses."""

    message: wire.AgentMessage
    uid: int
    address: str

    @property
    def node(self) -> NodeName:
        """Return the node that it is about, and that says it."""
        return NodeName(self.message.content.node)


class Authenticator:
    """Checks everything but the order of reports. Safe in any thread.

    `session` and `decode_session_message` never block; the others wait for munged or the resolver.
    """

    def __init__(self, settings: IntakeAuthenticationSettings, address_of: AddressOf) -> None:
        self._settings, self._address_of = settings, address_of
        self._sessions = AgentSessions(settings.session_s)
        self._reports = RateLimiter(REPORTS, REPORTS_A_SECOND)

    def verify(self, authorization: str, body: bytes) -> munge.Credential:
        """Return the credential of a user who may report. Raises Refusal."""
        credential = verify_munge_body_credential(authorization, body, self._settings.munge_socket)
        if credential.uid not in self._settings.allowed_uids:
            hint = "The agent runs as root; other users may not report."
            raise RequestRefusal(403, "forbidden_uid", f"uid {credential.uid} may not report", hint)
        return credential

    def authenticate_report(
        self, credential: munge.Credential, body: bytes, peer: str
    ) -> AuthenticatedMessage:
        """Return what was sent from a TCP address with an authenticated credential. Raises
        Refusal."""
        message = self._decode_agent_message(body)
        node = NodeName(message.content.node)
        address = self._check_node_source_address(node, credential.address, peer)
        self._check_report_rate(message)
        return AuthenticatedMessage(message, credential.uid, address)

    def session(self, authorization: str, body: bytes, peer: str) -> AgentSession:
        """Return the session within which a body was sent from a TCP address. Raises Refusal."""
        return self._sessions.verify(authorization, body, peer)

    def decode_session_message(self, session: AgentSession, body: bytes) -> wire.AgentMessage:
        """Return what was sent within a session. Raises Refusal."""
        message = self._decode_agent_message(body)
        if message.content.node != session.node:
            text = f"the session is that of {session.node}, the body names {message.content.node}"
            raise RequestRefusal(403, "forged_node", text)
        if self._find_slurm_address(session.node) != session.address:
            text = f"Slurm has {session.node} at another address now than {session.address}"
            raise RequestRefusal(401, "moved_session", text)
        self._check_report_rate(message)
        return message

    def open_session(self, proved: AuthenticatedMessage, peer: str) -> wire.SessionGrant | None:
        """Return a session for who sent that, or None where munged cannot wrap its key: the agent
        continues with credentials then."""
        name, secret = self._sessions.open(proved.node, proved.address, peer)
        try:
            wrapped = munge.encode_munge_credential(
                secret, self._settings.munge_socket, only_uid=proved.uid
            )
        except munge.MungeUnavailable as error:
            log.warning("no session for %s: %s", proved.node, error)
            return None
        return wire.SessionGrant(name, wrapped, self._sessions.lasts_s)

    def _decode_agent_message(self, body: bytes) -> wire.AgentMessage:
        message = decode_request_body(wire.decode_agent_message, body)
        start = message.content.agent_start
        if start.timestamp() > time.time() + AHEAD_S:
            text = f"the agent says that it started at {start.isoformat()}, which is in the future"
            raise RequestRefusal(403, "future_start", text, "Compare the clocks of both hosts.")
        return message

    def _check_report_rate(self, message: wire.AgentMessage) -> None:
        """Heartbeats cost nothing, reports a write each."""
        node = message.content.node
        if isinstance(message.content, AgentReport) and not self._reports.take(node):
            raise RequestRefusal(
                429, "too_many", f"too many reports of {node}", "The next is taken soon."
            )

    def _check_node_source_address(self, node: NodeName, origin: IPv4Address, peer: str) -> str:
        """Slurm's address of the node, which munged's and TCP's must be.

        A user with the MUNGE key, as root of any node has, makes munged say any origin: by the
        TCP peer a node is distinguished from another that has the key as well.
        """
        address = self._find_slurm_address(node)
        known = _resolve_ipv4_addresses(address)
        for whence, what, hint in (
            (str(origin), "credential", "give its munged --origin with the address Slurm has."),
            (peer, "connection", "let Slurm have the address from which it reaches this host."),
        ):
            if whence not in map(str, known):
                raise RequestRefusal(
                    403,
                    "forged_node",
                    f"the {what} comes from {whence}, Slurm has {node} at {address}",
                    f"If it is that node, {hint}",
                )
        return address

    def _find_slurm_address(self, node: NodeName) -> str:
        try:
            address = self._address_of(node)
        except ServiceUnavailable as error:
            raise RequestRefusal(503, "slurm_unavailable", str(error), error.hint) from error
        if address is None:
            hint = "The agent asks Slurm for its name; --node must be a NodeName of slurm.conf."
            raise RequestRefusal(403, "unknown_node", f"Slurm knows no node {node}", hint)
        return address


def verify_munge_body_credential(
    authorization: str, body: bytes, munge_socket: Path | None
) -> munge.Credential:
    """Return the credential of a body from any sender, proved and used up. Raises Refusal."""
    scheme, _, text = authorization.partition(" ")
    if scheme != wire.AUTH_SCHEME or not text:
        hint = "Send `Authorization: MUNGE <credential>`."
        raise RequestRefusal(401, "missing_credential", "the request carries no credential", hint)
    try:
        credential = munge.decode_munge_credential(text, munge_socket)
    except munge.MungeCredentialError as error:
        status = 409 if error.code == "replayed_credential" else 401
        raise RequestRefusal(status, error.code, str(error), error.hint) from error
    except munge.MungeUnavailable as error:
        raise RequestRefusal(503, "munge_unavailable", str(error), error.hint) from error
    if credential.payload != wire.make_request_credential_payload(body):
        raise RequestRefusal(401, "bad_digest", "the credential was made for other bytes")
    return credential


def decode_request_body(
    read: Callable[[bytes], _T], body: bytes, invalid: str = wire.InvalidReportError.code
) -> _T:
    """Return what `read` makes of a body. Raises Refusal for one that is malformed or out of bounds
    (`invalid`: the code)."""
    try:
        return read(body)
    except wire.MalformedReportError as error:
        outside = isinstance(error, wire.InvalidReportError)
        status, code = (422, invalid) if outside else (400, error.code)
        raise RequestRefusal(status, code, str(error), error.hint) from error


def _resolve_ipv4_addresses(address: str) -> frozenset[IPv4Address]:
    """Return the IPv4 addresses that Slurm's NodeAddr stands for; MUNGE knows no others."""
    try:
        return resolve_ipv4(address)
    except OSError as error:
        hint = "Give the node a NodeAddr that resolves on the head node."
        message = f"NodeAddr {address!r} does not resolve: {error}"
        raise RequestRefusal(503, "slurm_unavailable", message, hint) from error
