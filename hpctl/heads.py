"""A head node as agents and jobs reach it: where its intake listens, how it says no."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from hpctl.ports import HpctlError

DEFAULT_PORT = 8470


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


def explained(text: bytes) -> str:
    """What the body of a refusal says: its code, message and hint; as it is where it has none."""
    try:
        answer = json.loads(text)
        return f"{answer['error']}: {answer['message']} {answer.get('hint', '')}".strip()
    except (ValueError, TypeError, KeyError, AttributeError):
        return text[:200].decode(errors="replace")
