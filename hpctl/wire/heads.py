"""A head node as agents and jobs reach it: where its intake listens, how it says no."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import math
import os
import pwd
import re
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.jitter import pick_random_pause_seconds
from hpctl.wire import munge
from hpctl.wire import reports as wire

DEFAULT_PORT = 8470
AGENT_METRICS_PORT = 8471
SLURM_USER = "slurm"
_CONFS = (
    "/etc/slurm/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)
_ANSWER_BYTES = 64 * 1024
NOT_LEADER = http.client.MISDIRECTED_REQUEST
"""What a standby answers to every POST, with the leader's address where it knows one."""
REACH_S, TRY_S = 1.0, 2.0
"""How long one of several head nodes may take to accept a connection, and to answer."""
ROUND_S = (0.1, 0.5)
"""The pause before head nodes that did not take it are asked again, drawn at random: clients that
wait for a new leader do not come all at once."""


class HeadNodeAddress(Struct, frozen=True):
    """Where a head node's intake listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> HeadNodeAddress:
        """From `http://host:port`. Raises HpctlError."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise HpctlError(f"{url!r} is not a valid URL of a head node: {error}") from error
        if parts.scheme != "http" or not host or parts.path not in ("", "/"):
            hint = (
                f"Write it as http://HOST:{DEFAULT_PORT}; https is not needed, because MUNGE "
                "authenticates the messages."
            )
            raise HpctlError(f"{url!r} is not a valid URL of a head node", hint)
        return cls(host, port or DEFAULT_PORT)

    @classmethod
    def here(cls, listen: str) -> HeadNodeAddress:
        """Return the daemon of this host, from its `intake.listen`."""
        host, _, port = listen.rpartition(":")
        return cls("127.0.0.1" if host in ("", "0.0.0.0") else host, int(port))  # noqa: S104

    def post(
        self,
        path: str,
        body: bytes,
        until: float,
        munge_socket: str | Path | None,
        reach_s: float = math.inf,
    ) -> tuple[int, bytes]:
        """Send a body in the caller's own name, once; answers status and body.

        A daemon has proved the answer to be its own, unless it asks to be asked again. `until`:
        when to give up, by the monotonic clock; a connection is waited for `reach_s` seconds at
        most. Raises HeadUnreachableError where nothing was sent, OSError and
        http.client.HTTPException where no answer came, Unproved, MungeUnavailable.
        """
        credential = munge.encode_munge_credential(
            wire.make_request_credential_payload(body), munge_socket
        )
        left = until - time.monotonic()
        if left <= 0:
            raise HeadUnreachableError("no time left to ask")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=min(left, reach_s))
        authorization = f"{wire.AUTH_SCHEME} {credential}"
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        try:
            try:
                connection.connect()
            except OSError as error:
                raise HeadUnreachableError(error) from error
            connection.sock.settimeout(max(until - time.monotonic(), 0.01))
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            text = response.read(_ANSWER_BYTES)
            if not is_retriable_status(response.status):
                signed = wire.make_answer_proof_payload(authorization, response.status, text)
                verify_head_node_answer_proof(
                    response.getheader(wire.PROOF_HEADER, ""), signed, munge_socket
                )
            return response.status, text
        finally:
            connection.close()


class HeadUnreachableError(OSError):
    """No connection to the head node: nothing was sent."""


def post_request_to_leader(  # noqa: PLR0913 -- one request: to whom, what, until when, as whom
    heads: Sequence[HeadNodeAddress],
    path: str,
    body: bytes,
    until: float,
    munge_socket: str | Path | None,
    *,
    once: bool = False,
) -> tuple[int, bytes]:
    """Post a body to the head node that leads; answers its status and body.

    A standby's answer leads to the leader that it names, or to the next head node. Several are
    asked until one takes it or `until` is over; `once`: what one of them has got is not sent again,
    though no answer came. NOT_LEADER is answered where none led in that time. Raises what
    `Head.post` does.
    """
    several = len(heads) > 1
    reach_s, try_s = (REACH_S, math.inf if once else TRY_S) if several else (math.inf, math.inf)
    head, silent, asked, standby = heads[0], None, set[HeadNodeAddress](), b""
    while True:
        status, text, error = NOT_LEADER, b"", None
        try:
            end = min(until, time.monotonic() + try_s)
            status, text = head.post(path, body, end, munge_socket, reach_s)
        except (OSError, http.client.HTTPException, UnauthenticatedAnswerError) as trouble:
            if not several or (once and not isinstance(trouble, HeadUnreachableError)):
                raise
            error = trouble
            silent = head if isinstance(trouble.__cause__ or trouble, TimeoutError) else silent
        if status != NOT_LEADER:
            return status, text
        asked.add(head)
        standby = text or standby
        named = parse_leader_address(text, heads)
        following = heads[(heads.index(head) + 1) % len(heads)]
        goal = following if named in (None, head) else named
        # A standby names a leader that is frozen until the lease is over.
        head = goal if goal != silent else head
        if head in asked:
            asked.clear()
            pause = pick_random_pause_seconds(*ROUND_S)
            if time.monotonic() + pause >= until:
                if error is not None and not standby:
                    raise error
                return NOT_LEADER, standby
            time.sleep(pause)


def parse_leader_address(text: bytes, heads: Sequence[HeadNodeAddress]) -> HeadNodeAddress | None:
    """Return the leader that a standby's answer names, where it is one of these: no answer, which
    may be old or a stranger's, has a credential sent anywhere else."""
    try:
        named = HeadNodeAddress.parse(json.loads(text)["leader"])
    except (ValueError, TypeError, KeyError, RecursionError, HpctlError):
        return None
    return named if named in heads else None


def is_retriable_status(status: int) -> bool:
    """Return whether the same body may be taken later: nothing rests on such an answer."""
    later = (http.client.REQUEST_TIMEOUT, http.client.CONFLICT, http.client.TOO_MANY_REQUESTS)
    return status >= http.client.INTERNAL_SERVER_ERROR or status in (*later, NOT_LEADER)


def format_refusal_response(text: bytes) -> str:
    """Return what the body of a refusal says: its code, message and hint; as it is where it has
    none."""
    try:
        answer = json.loads(text)
        return f"{answer['error']}: {answer['message']} {answer.get('hint', '')}".strip()
    except (ValueError, TypeError, KeyError, AttributeError):
        return text[:200].decode(errors="replace")


class UnauthenticatedAnswerError(ServiceUnavailable):
    """An answer that no daemon of this cluster has proved to be its own."""


def verify_head_node_answer_proof(
    proof: str, signed: bytes, munge_socket: Path | str | None, secret: bytes | None = None
) -> None:
    """Whether a daemon gave an answer, `signed` being wire.answered() of it.

    `secret` is the session's key, where one was used. Raises UnauthenticatedAnswerError,
    MungeUnavailable.
    """
    scheme, _, word = proof.partition(" ")
    if secret is not None:
        if scheme == wire.SESSION_SCHEME and hmac.compare_digest(
            wire.sign_message_body(secret, signed).encode(), word.encode("utf-8", "replace")
        ):
            return
        raise UnauthenticatedAnswerError(
            "the head node's answer cannot be trusted: it is not signed with the key of this "
            "connection",
            _HINT,
        )
    if scheme != wire.AUTH_SCHEME:
        raise UnauthenticatedAnswerError(
            "the head node's answer cannot be trusted: it has no MUNGE credential", _HINT
        )
    try:
        credential = munge.decode_munge_credential(word, munge_socket)
    except munge.MungeCredentialError as error:
        raise UnauthenticatedAnswerError(
            f"the head node's answer cannot be trusted: MUNGE cannot check its credential: {error}",
            _HINT,
        ) from error
    if credential.payload != signed or credential.uid not in list_trusted_head_node_uids():
        raise UnauthenticatedAnswerError(
            f"the head node's answer cannot be trusted: it came from uid {credential.uid}, which "
            "is not the user of hpctl's daemon",
            _HINT,
        )


_HINT = (
    "Check on the head node that hpctl's daemon, of the same release as this node's hpctl, "
    "listens on the port: ss -ltnp"
)


def list_trusted_head_node_uids() -> set[int]:
    """Return the users a daemon may run as: root, SlurmUser, and the calling user."""
    try:
        return {0, os.geteuid(), pwd.getpwnam(read_slurm_user()).pw_uid}
    except KeyError:
        return {0, os.geteuid()}


def read_slurm_user(root: Path = Path("/")) -> str:
    """SlurmUser of the machine below a root, as its slurm.conf has it; `slurm` where it has none.

    Source: slurm.conf(5), SlurmUser: "The default value is root".
    """
    for conf in list_slurm_conf_paths(root):
        with contextlib.suppress(OSError):
            text = conf.read_text(errors="replace")
            named = re.findall(r"(?im)^[ \t]*SlurmUser[ \t]*=[ \t]*([^\s#]+)", text)
            elsewhere = re.search(r"(?im)^[ \t]*Include[ \t]", text)
            return str(named[-1]) if named else SLURM_USER if elsewhere else "root"
    return SLURM_USER


def list_slurm_conf_paths(root: Path = Path("/")) -> list[Path]:
    """Return where a slurm.conf may be: the environment's, a controller's, a configless node's."""
    own = os.environ.get("SLURM_CONF", "")
    return [root / place.lstrip("/") for place in (own, *_CONFS) if place]


def find_slurm_conf() -> Path | None:
    """Return this machine's slurm.conf, on a configless node what slurmctld has sent; None where
    there is none."""
    # Of a folder that this user may not look into, os.path says no, where pathlib raises.
    return next((conf for conf in list_slurm_conf_paths() if os.path.isfile(conf)), None)
