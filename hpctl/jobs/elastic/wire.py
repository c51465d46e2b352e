"""The launchers' own lines: JSON on TCP, each at most 64 KiB, after a handshake both sides pass.

Who connects proves that it knows the step's secret, by an HMAC over both sides' nonces and its own
hello, and so does who answers: a stray connection, or a port that now belongs to somebody else's
program, is turned away before anything it says is looked at. The lines after it are neither
encrypted nor signed; nothing in them is secret, and the worst that they can ask for is a restart.
`tell` asks for one from outside the group.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable
from typing import Any, TypeVar

from hpctl.toolkit.errors import Unavailable
from hpctl.wire.job_ports import PORTS, first_port

LIMIT = 64 * 1024


HANDSHAKE_S = 5.0


SECOND_S = 1.0


Message = dict[str, Any]


_T = TypeVar("_T")


class ProtocolError(Exception):
    """The other side did not prove itself, or broke the rules. The connection is of no use."""


async def wait_for(awaited: Awaitable[_T], seconds: float) -> _T:
    """`asyncio.wait_for` with the builtin TimeoutError, which 3.10's is not."""
    try:
        return await asyncio.wait_for(awaited, seconds)
    except asyncio.TimeoutError as error:
        raise TimeoutError from error


class Connection:
    """One proven connection: whole messages in and out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        peer = writer.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Queue one message. What is queued to a peer that reads nothing is bounded: over 1 MiB
        the connection is dropped, and `receive` says so."""
        if self._writer.transport.get_write_buffer_size() > 1 << 20:
            self._writer.transport.abort()
            return
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message:
        """The next message. Raises Refused at the end, for a line that is too long or no object."""
        try:
            text = await self._reader.readuntil(b"\n")
            message = json.loads(text)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise ProtocolError(f"connection lost ({type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise ProtocolError("not a message") from error
        if not isinstance(message, dict):
            raise ProtocolError("not a message")
        return message

    async def receive_within(self, seconds: float) -> Message:
        """The next message. Raises TimeoutError after so many seconds without one, Refused.

        They are counted one by one: a stop of our own (`scontrol suspend`), in which the other side
        could not be heard and was most likely stopped itself, is one second of silence.
        """
        waiting = asyncio.ensure_future(self.receive())
        try:
            while seconds > 0:
                if (await asyncio.wait({waiting}, timeout=min(seconds, SECOND_S)))[0]:
                    return waiting.result()
                seconds -= SECOND_S
        finally:
            waiting.cancel()
        raise TimeoutError

    async def close(self) -> None:
        """Send what is queued, then close. Waits at most a second."""
        self._writer.close()
        try:
            await wait_for(self._writer.wait_closed(), 1.0)
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def connect(host: str, port: int, secret: str, hello: Message) -> Connection:
    """Connect and prove each other. Raises Refused, OSError, TimeoutError."""
    return await wait_for(_connect(host, port, secret, hello), HANDSHAKE_S)


async def _connect(host: str, port: int, secret: str, hello: Message) -> Connection:
    reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
    line = Connection(reader, writer)
    try:
        nonce = secrets.token_hex(16)
        theirs = _text(await line.receive(), "nonce")
        hello_text = json.dumps(hello)
        proof = _proof(secret, "client", theirs, nonce, hello_text)
        line.send({"nonce": nonce, "hello": hello_text, "proof": proof})
        answer = _text(await line.receive(), "proof")
        if not hmac.compare_digest(answer, _proof(secret, "server", theirs, nonce, hello_text)):
            raise ProtocolError("the other side does not know the secret")
    except BaseException:
        line.abort()
        raise
    return line


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str
) -> tuple[Connection, Message]:
    """The server's half: the proven line and the hello. Raises Refused, OSError, TimeoutError."""
    line = Connection(reader, writer)
    try:
        ours = secrets.token_hex(16)
        line.send({"nonce": ours})
        answer = await wait_for(line.receive(), HANDSHAKE_S)
        nonce, hello_text = _text(answer, "nonce"), _text(answer, "hello")
        wanted = _proof(secret, "client", ours, nonce, hello_text)
        if not hmac.compare_digest(_text(answer, "proof"), wanted):
            raise ProtocolError("a stranger")
        hello = json.loads(hello_text)
        if not isinstance(hello, dict):
            raise ProtocolError("not a hello")
        line.send({"proof": _proof(secret, "server", ours, nonce, hello_text)})
    except (ValueError, RecursionError) as error:
        line.abort()
        raise ProtocolError("not a hello") from error
    except BaseException:
        line.abort()
        raise
    return line, hello


def _text(message: Message, name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str) or not value.isascii():
        raise ProtocolError(f"no {name}")
    return value


def _proof(secret: str, side: str, theirs: str, nonce: str, hello_text: str) -> str:
    message = json.dumps(["hpctl-elastic-1", side, theirs, nonce, hello_text])
    return hmac.new(secret.encode(), message.encode(), hashlib.sha256).hexdigest()


def tell(host: str, run_id: str, secret: str, line: str) -> str:
    """Say it to the controller on the step's first node, and return its answer.

    `run_id` is `JOBID.STEPID`. Takes some seconds where a host does not answer. Raises Unavailable.
    """
    return asyncio.run(_tell(host, run_id, secret, line))


async def _tell(host: str, run_id: str, secret: str, line: str) -> str:
    first = first_port(secret, run_id)
    for port in range(first, first + PORTS):
        with contextlib.suppress(OSError, ProtocolError, TimeoutError):
            proven = await connect(host, port, secret, {"tell": line})
            answer = await wait_for(proven.receive(), HANDSHAKE_S)
            await proven.close()
            return str(answer.get("answer", ""))
    raise Unavailable(
        f"no launcher of step {run_id} answers on {host}",
        f"Ports {first} to {first + PORTS - 1} were tried.",
    )
