"""HTTP: SageMaker's JSON 1.1 protocol for clients, and a loopback-only admin route for tests."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from hpctl.errors import HpctlError
from hpctl.sandbox.emulator.errors import ApiError
from hpctl.sandbox.emulator.shapes import SERVICES, Body

log = logging.getLogger(__name__)

MAX_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back over the wire. `body` None: the connection is closed without a reply."""

    request_id: str
    status: int
    body: Body | None


class Api(Protocol):
    """What answers the calls."""

    def handle(self, operation: str, request: Body, service: str) -> Answer:
        """Answer one call of a service."""
        ...

    def administer(self, route: str, rest: str, given: Any) -> dict[str, Any] | None:
        """Answer the admin route; None where there is no such route."""
        ...


class Server:
    """The listening socket and its threads."""

    def __init__(self, api: Api, host: str, port: int) -> None:
        self._http = _Http((host, port), _Handler)
        self._http.api = api
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def access_key(self) -> str:
        """The only access key that is taken; any is where it is empty."""
        return self._http.access_key

    @access_key.setter
    def access_key(self, key: str) -> None:
        self._http.access_key = key

    @property
    def url(self) -> str:
        """`http://host:port`, with the port that was found where 0 was asked for."""
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Serve from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and cut every open connection."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join(5)
        self._http.server_close()
        self._http.cut_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    api: Api
    access_key = ""
    """The only one that is taken; any is where it is empty."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is worth its traceback."""
        log.debug("connection from %s ended", client_address, exc_info=True)

    def cut_all(self) -> None:
        """End idle keep-alive connections, so that their threads end."""
        with self._open_lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http
    timeout = 60
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.client_address[0], format % args)

    # --- the API ------------------------------------------------------------------------------

    def do_POST(self) -> None:
        """A call of the API, or a fault for the admin route."""
        raw = self._body()
        if raw is None:
            return
        if self.path.startswith("/_emulator/"):
            self._admin("POST", raw)
            return
        try:
            service, operation, request = self._parse(raw)
        except ApiError as error:
            self._send(error.status, {"__type": error.code, "message": error.message}, "")
            return
        self._answer(self.server.api.handle(operation, request, service))

    def _parse(self, raw: bytes) -> tuple[str, str, dict[str, Any]]:
        """The service, the operation and the request. Raises ApiError."""
        target = self.headers.get("X-Amz-Target", "")
        prefix, _, operation = target.partition(".")
        if prefix not in SERVICES:
            raise ApiError(
                "UnknownOperationException", f"X-Amz-Target {target!r} is not SageMaker's."
            )
        if not self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 "):
            raise ApiError(
                "MissingAuthenticationTokenException",
                "Request is missing Authentication Token: give the client any credentials.",
                403,
            )
        if not self._known():
            raise ApiError(
                "UnrecognizedClientException",
                "The security token included in the request is invalid: hpctl sandbox env prints"
                " the keys of this sandbox.",
                403,
            )
        try:
            request = json.loads(raw or b"{}")
        except ValueError as error:
            raise ApiError("SerializationException", f"The body is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise ApiError("SerializationException", "The body is not a JSON object.")
        return SERVICES[prefix], operation, request

    def _known(self) -> bool:
        """Whether the request carries the sandbox's own access key, where it has one."""
        key = self.server.access_key
        return not key or f"Credential={key}/" in self.headers.get("Authorization", "")

    def _answer(self, answer: Answer) -> None:
        if answer.body is None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(answer.status, answer.body, answer.request_id)

    # --- admin --------------------------------------------------------------------------------

    def do_GET(self) -> None:
        """`/_emulator/calls`, `/_emulator/faults`, `/_emulator/health`."""
        self._admin("GET", b"")

    def do_DELETE(self) -> None:
        """`/_emulator/faults`, or `/_emulator/faults/KIND`."""
        self._admin("DELETE", b"")

    def _admin(self, method: str, raw: bytes) -> None:
        if not ipaddress.ip_address(self.client_address[0]).is_loopback:
            self._send(403, {"error": "the admin route is for loopback only"}, "")
            return
        if method != "GET" and not self._known():
            self._send(403, {"error": "the sandbox's access key is needed to change it"}, "")
            return
        name, _, rest = self.path.removeprefix("/_emulator/").partition("/")
        try:
            body = self.server.api.administer(f"{method} {name}", rest, json.loads(raw or b"{}"))
        except (HpctlError, KeyError, TypeError, ValueError) as error:
            hint = error.hint if isinstance(error, HpctlError) else ""
            self._send(400, {"error": f"{type(error).__name__}: {error}", "hint": hint}, "")
            return
        if body is None:
            self._send(404, {"error": f"no route {method} {self.path}"}, "")
        else:
            self._send(200, body, "")

    # --- bytes --------------------------------------------------------------------------------

    def _body(self) -> bytes | None:
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True
            self._send(413, {"__type": "RequestEntityTooLarge", "message": "body too large"}, "")
            return None
        return self.rfile.read(length)

    def _send(self, status: int, body: dict[str, Any], request_id: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        if request_id:
            self.send_header("x-amzn-RequestId", request_id)
        self.end_headers()
        self.wfile.write(data)
