"""The supervisor's control socket: one JSON object a line each way, one request a connection."""

import json
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpctl.errors import HpctlError, Unavailable

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Control:
    """Serves requests on a unix socket, each in a thread. HpctlErrors travel to the caller."""

    def __init__(self, path: Path, handler: Handler) -> None:
        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                if line := self.rfile.readline():
                    self.wfile.write(json.dumps(_answer(handler, line)).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Connection)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True, name="control").start()


def _answer(handler: Handler, line: bytes) -> dict[str, Any]:
    try:
        return {"ok": handler(json.loads(line))}
    except HpctlError as error:
        return {"error": str(error), "hint": error.hint}
    except (TypeError, KeyError, ValueError) as error:
        return {"error": f"bad request: {error}", "hint": ""}


def ask(path: Path, request: dict[str, Any], timeout: float = 60.0) -> dict[str, Any]:
    """Send one request. Raises Unavailable where nobody answers, HpctlError on a refusal."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise Unavailable(
            f"the sandbox at {path.parent} does not answer: {error}",
            "End what is left of it with `hpctl sandbox down`, then start it again with `up`.",
        ) from error
    if not line:
        raise Unavailable(f"the sandbox at {path.parent} ended while it was asked")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise HpctlError(answer["error"], answer["hint"])
    result: dict[str, Any] = answer["ok"]
    return result
