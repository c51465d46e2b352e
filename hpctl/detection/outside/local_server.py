"""The agent's own socket, on which scripts of this node send reports and requests."""

import contextlib
import errno
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, field

from hpctl.detection.outside.node_verdict import NodeVerdict, format_node_verdict_line
from hpctl.detection.outside.report_request import (
    MAX_REQUEST,
    MalformedAgentRequestError,
    VerdictLineRequest,
    VerdictRequest,
    decode_agent_request,
)
from hpctl.detection.outside.reported import MAX_REPORTED, ReportedFindingTable, TooManyReportsError
from hpctl.detection.outside.trust import list_trusted_owner_uids
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.token_bucket import TokenBucket

log = logging.getLogger(__name__)


MAX_PEERS = 32


PEER_S = 1.0
"""How long one peer may take to send its request and to read its answer."""


REPORTS_A_SECOND = 10.0


REPORT_BURST = 100.0
"""Limit of reports in a burst: a script in a loop must not load the agent."""


_UCRED = struct.Struct("3i")


class _AgentSocketClient(Struct):
    link: socket.socket
    deadline: float
    heard: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class AgentSocketServer:
    """A server of the socket, on a separate thread, from `start` to `stop`.

    `verdict` is called from that thread, for each peer that asks.
    """

    def __init__(
        self, path: Path, reported: ReportedFindingTable, verdict: Callable[[], NodeVerdict]
    ) -> None:
        self._path, self._reported, self._verdict = path, reported, verdict
        self._reports = TokenBucket(REPORT_BURST, REPORTS_A_SECOND)
        self._peers: dict[socket.socket, _AgentSocketClient] = {}
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run_client_loop, name="local", daemon=True)

    def start(self) -> None:
        """Listen. Raises Unavailable where the socket cannot be created."""
        self._listener = _open_listening_socket(self._path)
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and remove the socket; takes at most two seconds."""
        if self._listener is None:
            return
        self._waker.send(b"\0")
        self._thread.join(2.0)
        self._waker.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _run_client_loop(self) -> None:
        assert self._listener is not None
        try:
            while True:
                wait = 10.0 if not self._peers else PEER_S / 4
                for key, _ in self._selector.select(wait):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept_client(self._listener)
                    else:
                        self._serve_client(self._peers[key.fileobj])  # type: ignore[index]
                self._disconnect_slow_clients()
        finally:
            for peer in list(self._peers.values()):
                self._disconnect_client(peer)
            self._listener.close()
            self._woken.close()
            self._selector.close()

    def _accept_client(self, listener: socket.socket) -> None:
        try:
            link, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                log.warning("no peer can be accepted: %s", error.strerror)
                time.sleep(0.1)
            return
        link.setblocking(False)
        peer = _AgentSocketClient(link, time.monotonic() + PEER_S)
        self._peers[link] = peer
        self._selector.register(link, selectors.EVENT_READ)
        uid = _UCRED.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in list_trusted_owner_uids():
            self._send_answer(
                peer, _encode_error_answer("forbidden", f"uid {uid} may not speak to the agent")
            )
        elif len(self._peers) > MAX_PEERS:
            self._send_answer(
                peer, _encode_error_answer("busy", f"{MAX_PEERS} others are being served")
            )

    def _serve_client(self, peer: _AgentSocketClient) -> None:
        if peer.answer:
            self._send_pending_answers(peer)
            return
        try:
            chunk = peer.link.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            self._disconnect_client(peer)
            return
        peer.heard += chunk
        line, newline, _ = bytes(peer.heard).partition(b"\n")
        if len(line) > MAX_REQUEST:
            self._send_answer(
                peer,
                _encode_error_answer("too_large", f"a request has at most {MAX_REQUEST} bytes"),
            )
        elif newline:
            self._send_answer(peer, self._answer_request(line))
        elif not chunk:
            self._disconnect_client(peer)

    def _answer_request(self, line: bytes) -> bytes:
        try:
            request = decode_agent_request(line)
            if isinstance(request, VerdictLineRequest):
                return format_node_verdict_line(self._verdict())
            if isinstance(request, VerdictRequest):
                return msgspec.json.encode({"verdict": self._verdict()})
            if not self._reports.take(time.monotonic()):
                return _encode_error_answer(
                    "too_many", f"more than {REPORTS_A_SECOND:g} reports a second"
                )
            return msgspec.json.encode(self._reported.take(request))
        except MalformedAgentRequestError as error:
            return _encode_error_answer("malformed", str(error))
        except TooManyReportsError:
            return _encode_error_answer(
                "full",
                f"{MAX_REPORTED} failures are reported already, this one is not kept",
                "Clear what is repaired with --verdict ok.",
            )
        except Exception as error:
            # After any error the thread must continue to answer: prologs wait for it.
            log.exception("a request could not be answered")
            return _encode_error_answer(
                "internal", f"{type(error).__name__}: {error}", "See the agent's log."
            )

    def _send_answer(self, peer: _AgentSocketClient, answer: bytes) -> None:
        peer.answer = answer + b"\n"
        self._selector.modify(peer.link, selectors.EVENT_WRITE)
        self._send_pending_answers(peer)

    def _send_pending_answers(self, peer: _AgentSocketClient) -> None:
        try:
            peer.answer = peer.answer[peer.link.send(peer.answer) :]
        except BlockingIOError:
            return
        except OSError:
            peer.answer = b""
        if not peer.answer:
            self._disconnect_client(peer)

    def _disconnect_slow_clients(self) -> None:
        now = time.monotonic()
        for peer in [p for p in self._peers.values() if p.deadline < now]:
            self._disconnect_client(peer)

    def _disconnect_client(self, peer: _AgentSocketClient) -> None:
        self._peers.pop(peer.link, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.link)
        peer.link.close()


def _encode_error_answer(code: str, message: str, hint: str = "") -> bytes:
    return msgspec.json.encode({"error": code, "message": message, "hint": hint})


def _open_listening_socket(path: Path) -> socket.socket:
    """Open a listening socket at `path`, mode 0600 from its first moment. Raises Unavailable."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale_socket_file(path)
        # Before bind: Linux gives the socket's file the mode that the socket has at that time.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(os.fspath(path))
        listener.listen(MAX_PEERS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ServiceUnavailable(
            f"cannot create the agent's socket {path}: {error.strerror or error}",
            "Give another path with --socket, of at most 107 characters.",
        ) from error
    return listener


def _remove_stale_socket_file(path: Path) -> None:
    """Remove a dead agent's socket. Raises OSError where another process listens there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        if probe.connect_ex(os.fspath(path)) == 0:
            raise OSError(errno.EADDRINUSE, "another agent serves it")
    path.unlink(missing_ok=True)
