"""The launchers' connections: messages as lines of JSON in TLS, each at most 64 KiB.

Both sides prove by their TLS identities that they know the step's secret (`job_identity`): a stray
connection, or a port on which another program listens, is turned away before anything it says is
looked at, and a relay neither reads nor changes what passes. `send_controller_request` asks for a
restart from outside the group.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.wire.admission import HandshakeLimiter, create_signed_peer_name
from hpctl.wire.job_identity import create_client_tls_context, create_server_tls_context
from hpctl.wire.job_ports import PORTS, choose_rendezvous_port

LIMIT = 64 * 1024


HANDSHAKE_S = 5.0


STAGGER_S = 0.1
"""Seconds without an answer after which the next port is tried as well."""


ACCEPT_PAUSE_S = 0.05
"""Where a connection cannot be taken, for lack of descriptors or memory, the next try waits."""


SECOND_S = 1.0


Message = dict[str, Any]


_T = TypeVar("_T")


class LauncherProtocolError(Exception):
    """The other side did not prove itself, or broke the rules. The connection is of no use."""


async def await_with_timeout(awaited: Awaitable[_T], seconds: float) -> _T:
    """Call `asyncio.wait_for` and raise the builtin TimeoutError, which 3.10's is not."""
    try:
        return await asyncio.wait_for(awaited, seconds)
    except asyncio.TimeoutError as error:
        raise TimeoutError from error


class LauncherConnection:
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
        """Return the next message. Raises LauncherProtocolError at the end, for a long line or no
        object."""
        try:
            text = await self._reader.readuntil(b"\n")
            message = json.loads(text)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise LauncherProtocolError(f"connection lost ({type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise LauncherProtocolError("not a message") from error
        if not isinstance(message, dict):
            raise LauncherProtocolError("not a message")
        return message

    async def receive_with_timeout(self, seconds: float) -> Message:
        """Return the next message. Raises TimeoutError after so many seconds without one,
        LauncherProtocolError.

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
            await await_with_timeout(self._writer.wait_closed(), 1.0)
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def connect_to_controller(
    host: str, run_id: str, secret: str, hello: Message
) -> LauncherConnection:
    """Connect to the step's controller and prove each other.

    The step's ports are tried in order, the next as soon as one is closed or has said nothing for
    STAGGER_S. Takes HANDSHAKE_S and the staggers at most. Raises LauncherProtocolError where no
    port answers as the controller.
    """
    first = choose_rendezvous_port(secret, run_id)
    context = create_launcher_tls_context(secret, run_id)
    running: set[asyncio.Task[LauncherConnection]] = set()
    why: BaseException | None = None
    try:
        for port in range(first, first + PORTS):
            greeting = _open_launcher_connection(
                host, port, context, create_signed_peer_name(secret), hello
            )
            running.add(asyncio.ensure_future(await_with_timeout(greeting, HANDSHAKE_S)))
            line, running, why = await _await_first_launcher_connection(running, STAGGER_S, why)
            if line is not None:
                return line
        while running:
            line, running, why = await _await_first_launcher_connection(running, None, why)
            if line is not None:
                return line
    finally:
        for task in running:
            cancel_connect_attempt(task)
    raise LauncherProtocolError(f"no launcher answers on {host}: {why}") from why


def cancel_connect_attempt(task: asyncio.Task[LauncherConnection]) -> None:
    """End an attempt that is not needed, also where it comes to a connection or fails meanwhile."""
    task.add_done_callback(_abort_late_launcher_connection)
    task.cancel()


def _abort_late_launcher_connection(task: asyncio.Task[LauncherConnection]) -> None:
    # Before Python 3.12, `asyncio.wait_for` drops a cancellation that comes with the result.
    if not task.cancelled() and task.exception() is None:
        task.result().abort()


async def _await_first_launcher_connection(
    running: set[asyncio.Task[LauncherConnection]], seconds: float | None, why: BaseException | None
) -> tuple[LauncherConnection | None, set[asyncio.Task[LauncherConnection]], BaseException | None]:
    """Return the first connection, None where none is there within `seconds`; what still runs;
    and why the last one failed that did."""
    done, running = await asyncio.wait(
        running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    line = None
    for task in done:
        failed = task.exception()
        if failed is not None:
            why = failed
        elif line is None:
            line = task.result()
        else:
            task.result().abort()
    return line, running, why


async def _open_launcher_connection(
    host: str, port: int, context: ssl.SSLContext, name: str, hello: Message
) -> LauncherConnection:
    """Open a connection. Raise LauncherProtocolError, OSError."""
    reader, writer = await asyncio.open_connection(
        host,
        port,
        limit=LIMIT,
        ssl=context,
        server_hostname=name,
        ssl_handshake_timeout=HANDSHAKE_S,
    )
    line = LauncherConnection(reader, writer)
    try:
        line.send({"hello": hello})
        # In TLS 1.3 a client is done before the server has judged its certificate.
        if "welcome" not in await line.receive():
            raise LauncherProtocolError("not a welcome")
    except BaseException:
        line.abort()
        raise
    return line


Serve = Callable[[LauncherConnection, Message], Awaitable[None]]
"""Takes a proven connection and its hello, and closes it."""


class LauncherListener:
    """The listener for a step's launchers on the first of its ports that is free."""

    def __init__(self, run_id: str, secret: str, nodes: int, serve: Serve) -> None:
        """Raise OSError where no port is free. `nodes`: how many launchers the step has."""
        self._serve, self._unproven = serve, HandshakeLimiter(secret, nodes)
        self._context = create_server_tls_context(
            secret, _make_controller_tls_name(run_id), _make_launcher_tls_name(run_id)
        )
        self._socket = _bind_first_free_port(choose_rendezvous_port(secret, run_id))
        self._taking: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.ensure_future(self._accept_connections())

    def close(self) -> None:
        """Accept no further connections; those that are proven continue."""
        self._accepting.cancel()

    async def _accept_connections(self) -> None:
        with self._socket:
            while True:
                await self._accept_connection()

    async def _accept_connection(self) -> None:
        try:
            connection, address = await asyncio.get_running_loop().sock_accept(self._socket)
        except OSError:
            # Out of descriptors or memory, or the peer is gone already: the next one may do.
            self._unproven.drop_oldest_connection()
            await asyncio.sleep(ACCEPT_PAUSE_S)
            return
        try:
            self._unproven.admit(connection, str(address[0]))
        except OSError:  # gone already
            connection.close()
            return
        taking = asyncio.ensure_future(self._serve_launcher_connection(connection))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)

    async def _serve_launcher_connection(self, connection: socket.socket) -> None:
        """Prove a peer and serve it. A stranger costs only its connection."""
        line = None
        try:
            line, hello = await await_with_timeout(
                self._authenticate_launcher_connection(connection), HANDSHAKE_S
            )
        except (LauncherProtocolError, OSError, TimeoutError):
            return
        finally:
            self._unproven.release(connection)
            if line is None:
                connection.close()
        await self._serve(line, hello)

    async def _authenticate_launcher_connection(
        self, connection: socket.socket
    ) -> tuple[LauncherConnection, Message]:
        await _wait_for_first_message(connection)
        self._unproven.hear(connection)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
        )
        line = LauncherConnection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        try:
            hello = (await line.receive()).get("hello")
            if not isinstance(hello, dict):
                raise LauncherProtocolError("not a hello")
            self._unproven.release(connection)
            line.send({"welcome": 1})
        except BaseException:
            line.abort()
            raise
        return line, hello


async def _wait_for_first_message(connection: socket.socket) -> None:
    """Wait until something can be read, and read nothing."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


def _bind_first_free_port(first: int) -> socket.socket:
    """Bind one of the ports. Raise OSError where none is free."""
    last: OSError | None = None
    for port in range(first, first + PORTS):
        # All addresses: by which of them the other nodes know this one is their matter.
        try:
            listener = socket.create_server(("0.0.0.0", port), backlog=1024)  # noqa: S104 (see above)
        except OSError as error:
            last = error
        else:
            listener.setblocking(False)
            return listener
    raise OSError(f"none of the ports {first} to {first + PORTS - 1} is free") from last


def create_launcher_tls_context(secret: str, run_id: str) -> ssl.SSLContext:
    """Return the TLS context with which a launcher of a step connects to the step's controller."""
    return create_client_tls_context(
        secret, _make_launcher_tls_name(run_id), _make_controller_tls_name(run_id)
    )


def _make_controller_tls_name(run_id: str) -> str:
    return f"elastic launchers: controller of step {run_id}"


def _make_launcher_tls_name(run_id: str) -> str:
    return f"elastic launchers: member of step {run_id}"


def send_controller_request(host: str, run_id: str, secret: str, line: str) -> str:
    """Say it to the controller on the step's first node, and return its answer.

    `run_id` is `JOBID.STEPID`. Takes some seconds where a host does not answer. Raises Unavailable.
    """
    return asyncio.run(_exchange_controller_request(host, run_id, secret, line))


async def _exchange_controller_request(host: str, run_id: str, secret: str, line: str) -> str:
    try:
        proven = await connect_to_controller(host, run_id, secret, {"tell": line})
        answer = await await_with_timeout(proven.receive(), HANDSHAKE_S)
    except (OSError, LauncherProtocolError, TimeoutError) as error:
        first = choose_rendezvous_port(secret, run_id)
        raise ServiceUnavailable(
            f"no launcher of job step {run_id} answers on node {host}",
            f"hpctl tried ports {first} to {first + PORTS - 1}. Check that the step still runs "
            "there: squeue --steps",
        ) from error
    await proven.close()
    return str(answer.get("answer", ""))
