"""Who may look: who can open the socket's file, or shows what was signed with the token.

A one-time link and a session are signed and dated words: the page stores neither, and another token
ends all of them. The token itself is good in an Authorization header.
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable
from datetime import datetime
from urllib.parse import urlsplit

from itsdangerous import BadSignature, TimestampSigner

from hpctl.engine.config import WebPageSection
from hpctl.service.alerts import read_secret_file
from hpctl.toolkit.compat import UTC

LINK_S, SESSION_S = 300, 12 * 3600
"""How long a link may wait for its one use, and how long a browser stays signed in."""


class StatusPageAccess:
    """The token's holders, and the names by which browsers may call this server."""

    def __init__(self, token: Callable[[], bytes] | None, hosts: Iterable[str] = ()) -> None:
        """`token` None: anyone who reaches the socket may look."""
        self._token = token
        # Links of before this process began may be spent: there is no record of them.
        self._began = datetime.now(UTC).replace(microsecond=0)
        self._spent: set[str] = set()
        self._hosts = {"localhost", socket.gethostname().lower(), *map(str.lower, hosts)}

    @classmethod
    def of(cls, page: WebPageSection) -> "StatusPageAccess":
        """Return as configured. The token's file is read each time: it may change. Raises Refusal
        where it is unusable from the start."""
        file = page.token_file
        if page.unix or file is None:
            return cls(None, page.hosts)
        read_secret_file(file, "page.token_file")
        return cls(lambda: read_secret_file(file, "page.token_file"), page.hosts)

    def is_allowed_host(self, host: str) -> bool:
        """Return whether a Host header is this server's. A name that other DNS leads here, as in
        DNS rebinding, is not; an address cannot be led elsewhere."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def link(self) -> str:
        """Return the code of a link that lets one browser in, once. Raises Refusal."""
        return self._make_timestamp_signer("link").sign(secrets.token_hex(8)).decode()

    def enter(self, code: str) -> str | None:
        """Return a session for a link's code; None for a code that is spent, old or forged. Raises
        Refusal."""
        signed = self._read_signed_time("link", code, LINK_S)
        if signed is None or signed < self._began or code in self._spent:
            return None
        self._spent.add(code)
        return self._make_timestamp_signer("session").sign(secrets.token_hex(8)).decode()

    def allows(self, authorization: str, session: str) -> bool:
        """Return whether a request may be answered. Raises Refusal where the token is unusable."""
        scheme, _, given = authorization.partition(" ")
        if self._token is None:
            return True
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token())
        return self._read_signed_time("session", session, SESSION_S) is not None

    def _make_timestamp_signer(self, what: str) -> TimestampSigner:
        return TimestampSigner(self._token() if self._token else secrets.token_bytes(32), what)

    def _read_signed_time(self, what: str, word: str, within_s: int) -> datetime | None:
        """Return when a word was signed here; None where it was not, or too long ago."""
        try:
            return self._make_timestamp_signer(what).unsign(word, within_s, return_timestamp=True)[
                1
            ]
        except BadSignature:
            return None
