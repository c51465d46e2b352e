"""A head node as agents and jobs reach it: where its intake listens, how it says no."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hpctl import munge, wire
from hpctl.ports import HpctlError

DEFAULT_PORT = 8470
_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """Where a head node's intake listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Head:
        """From `http://host:port`. Raises HpctlError."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise HpctlError(f"not a head node's URL: {url!r}: {error}") from error
        if parts.scheme != "http" or not host or parts.path not in ("", "/"):
            hint = f"Write it as http://HOST:{DEFAULT_PORT}; MUNGE protects what is sent."
            raise HpctlError(f"not a head node's URL: {url!r}", hint)
        return cls(host, port or DEFAULT_PORT)

    def post(
        self, path: str, body: bytes, until: float, munge_socket: str | Path | None
    ) -> tuple[int, bytes]:
        """Send a body in the caller's own name, once; answers status and body.

        `until`: when to give up, by the monotonic clock. Raises OSError and
        http.client.HTTPException where the head node is not reached, MungeUnavailable.
        """
        credential = munge.encode(wire.payload(body), munge_socket)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left to ask")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=left)
        headers = {
            "Authorization": f"{wire.AUTH_SCHEME} {credential}",
            "Content-Type": "application/json",
        }
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(_ANSWER_BYTES)
        finally:
            connection.close()


def explained(text: bytes) -> str:
    """What the body of a refusal says: its code, message and hint; as it is where it has none."""
    try:
        answer = json.loads(text)
        return f"{answer['error']}: {answer['message']} {answer.get('hint', '')}".strip()
    except (ValueError, TypeError, KeyError, AttributeError):
        return text[:200].decode(errors="replace")
