"""The metadata services of spot instances, where EC2 says that it wants one back.

Each listens on its instance's own address, as only the link-local address of the real one is the
same everywhere. IMDSv2 only: a token first, and 404 for `spot/instance-action` until there is a
notice.
"""

from __future__ import annotations

import json
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hpctl.core.compat import UTC

TOKEN = "sandbox"  # noqa: S105 -- it protects nothing
ACTION = "/latest/meta-data/spot/instance-action"


class Imds:
    """Serves on one port of many addresses, in threads of this process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def url(self, address: str) -> str:
        """Where the service of the instance with this address is."""
        return f"http://{address}:{self._port}"

    def serve(self, address: str) -> None:
        """Serve a new instance, which has no notice yet."""
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = _Server((address, self._port), _Handler)
                threading.Thread(
                    target=server.serve_forever, args=(0.1,), name=f"imds-{address}", daemon=True
                ).start()
            server.notice = ""

    def give_notice(self, address: str, at: datetime) -> None:
        """Say that the instance will be terminated at a time, aware."""
        with self._lock:
            if server := self._servers.get(address):
                when = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                server.notice = json.dumps({"action": "terminate", "time": when})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    notice = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Quietly: agents ask every few seconds."""

    def do_PUT(self) -> None:
        """The token of IMDSv2."""
        self._say(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_GET(self) -> None:
        """The notice, or 404."""
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._say(401, "")
        elif self.path != ACTION or not self.server.notice:
            self._say(404, "")
        else:
            self._say(200, self.server.notice)

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
