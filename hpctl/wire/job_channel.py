"""A connection between two parts of one job: messages over TLS, and the bytes of files sealed.

A message is a line of JSON in TLS 1.3 (`job_identity`). The bytes of a file are sealed by
AES-256-GCM in pieces of 1 MiB instead, with a key that was sent in a message and is used for that
one file: TLS from Python seals 16 KiB at a time, and takes 2.5 times the processor time of a plain
copy where this takes 1.2 times (ADR 0105). A piece that was changed, left out or put elsewhere does
not open, and how many there are is known from the message before them.
"""

from __future__ import annotations

import json
import mmap
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE = 1 << 20
"""Bytes that are sealed at once."""
_TAG = 16
_HEAD = 5
"""Bytes of a TLS record before its content: kind, version, length (RFC 8446, 5.1)."""
_RECORD = (1 << 14) + 256
_CHUNK = 1 << 16
_WELCOME = 4096

Message = dict[str, Any]


class JobChannelError(OSError):
    """The other side is gone, did not prove itself, or broke the rules. The connection is not
    usable."""


class JobChannel:
    """One proven connection. For one thread at a time."""

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        *,
        seconds: float,
        peer_name: str | None = None,
        on_proven: Callable[[], None] | None = None,
    ) -> None:
        """Prove each other. Takes `seconds` at most in all; raises JobChannelError, OSError. The
        caller closes the connection where this raises.

        `peer_name` makes this a client, which names itself so (`admission`); `on_proven` makes it a
        server, which calls it when it knows the client, and before the client knows that.
        """
        self._socket = connection
        self._deadline: float | None = time.monotonic() + seconds
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=on_proven is not None,
            server_hostname=peer_name,
        )
        self._lines = bytearray()
        self._run_tls_handshake()
        if on_proven is not None:
            on_proven()
            self.send({"welcome": 1})
        else:
            # In TLS 1.3 a client is done before the server has judged its certificate.
            self.receive(_WELCOME)
        self._deadline = None
        self.set_timeout(None)

    def set_timeout(self, seconds: float | None) -> None:
        """Bound each wait for the other side, by JobChannelError; None lifts the bound."""
        self._socket.settimeout(seconds)

    def send(self, message: Message) -> None:
        """Send one message. Raises JobChannelError."""
        content = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while content:
                content = content[self._tls.write(content) :]
                self._flush_output()
        except OSError as error:
            raise JobChannelError(f"connection lost: {error}") from error

    def receive(self, most: int) -> Message:
        """Return the next message, of `most` bytes at most. Raises JobChannelError."""
        looked = 0
        while (end := self._lines.find(b"\n", looked)) < 0:
            looked = len(self._lines)
            if looked > most:
                raise JobChannelError("a message is too long")
            self._lines += self._read_decrypted_bytes()
        line = bytes(self._lines[:end])
        del self._lines[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise JobChannelError("not a message") from error
        if not isinstance(message, dict):
            raise JobChannelError("not a message")
        return message

    def create_encrypted_body_sender(self, key: bytes) -> Callable[[memoryview], None]:
        """Return what seals the pieces of one body, one call each, and sends them.

        All pieces but the last have PIECE bytes. `key` is of this body alone.
        """
        cipher, number = AESGCM(key), 0
        sealed = memoryview(bytearray(PIECE + _TAG))

        def send_encrypted_piece(piece: memoryview) -> None:
            nonlocal number
            end = len(piece) + _TAG
            cipher.encrypt_into(_make_aes_gcm_nonce(number), piece, None, sealed[:end])
            number += 1
            self._socket.sendall(sealed[:end])

        return send_encrypted_piece

    def receive_encrypted_body(self, key: bytes, size: int) -> Iterator[memoryview]:
        """Yield so many bytes, in one page-aligned buffer that is filled again and again.

        Raises JobChannelError where the connection is lost or a piece is not what was sent.
        """
        cipher, number = AESGCM(key), 0
        most = min(size, PIECE)
        sealed = memoryview(bytearray(most + _TAG))
        opened = memoryview(mmap.mmap(-1, most or 1))
        while size:
            count = min(size, PIECE)
            self._receive_into_buffer(sealed[: count + _TAG])
            try:
                cipher.decrypt_into(
                    _make_aes_gcm_nonce(number), sealed[: count + _TAG], None, opened[:count]
                )
            except InvalidTag as error:
                raise JobChannelError("a file was changed on its way") from error
            number += 1
            yield opened[:count]
            size -= count

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _run_tls_handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush_output()
                self._receive_tls_record()
            except ssl.SSLError as error:
                self._send_tls_alert()
                raise JobChannelError("the other side does not know the secret") from error
            else:
                self._flush_output()
                return

    def _send_tls_alert(self) -> None:
        """Say why, to a peer that may have stopped listening."""
        with suppress(OSError):
            self._flush_output()

    def _read_decrypted_bytes(self) -> bytes:
        while True:
            try:
                content = self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                self._receive_tls_record()
                continue
            except ssl.SSLError as error:
                raise JobChannelError(f"connection lost: {error.reason}") from error
            if not content:
                raise JobChannelError("connection lost")
            return content

    def _receive_tls_record(self) -> None:
        """Read one TLS record, and not a byte of what comes after it. Raises JobChannelError."""
        head = bytearray(_HEAD)
        self._receive_into_buffer(memoryview(head))
        length = int.from_bytes(head[3:], "big")
        if length > _RECORD:
            raise JobChannelError("not TLS")
        record = bytearray(length)
        self._receive_into_buffer(memoryview(record))
        self._incoming.write(head + record)

    def _receive_into_buffer(self, buffer: memoryview) -> None:
        while buffer:
            self._set_handshake_timeout()
            try:
                count = self._socket.recv_into(buffer)
            except OSError as error:
                raise JobChannelError(f"connection lost: {error}") from error
            if not count:
                raise JobChannelError("connection lost")
            buffer = buffer[count:]

    def _flush_output(self) -> None:
        while content := self._outgoing.read():
            self._set_handshake_timeout()
            self._socket.sendall(content)

    def _set_handshake_timeout(self) -> None:
        """Let the next call end at the deadline of the handshake: a limit for each of them would
        let a peer that sends a byte at a time go on for hours."""
        if self._deadline is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise JobChannelError("the other side does not prove itself")
        self._socket.settimeout(left)


def _make_aes_gcm_nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
