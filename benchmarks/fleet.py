"""A fleet of agents in one process: real credentials, real sessions, one connection an agent.

Leaner than real agents, which would need ten thousand machines; on the wire they are the same.
"""

import asyncio
import gc
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from hpctl.sandbox import packages
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import BootId, InstanceId, NodeName
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from hpctl.wire import munge
from hpctl.wire import reports as wire

START = datetime.now(UTC)
GAUGES = {f"gpu.gauge_{n}": 1980.0 + n for n in range(8)}
"""As many numbers as an agent of a GPU node sends for the comparison with its peers."""
ANSWER_S = 30.0


class Line(asyncio.Protocol):
    """One kept connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed by the intake"))

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, body = self._seen.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._seen = b""
            if b" 200 " in head[:16]:
                self._answer.set_result(body)
            else:
                self._answer.set_exception(RuntimeError(f"the intake answered {body.decode()}"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; the answer's body. Raises RuntimeError where it is not 200."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer


def name_of(number: int) -> NodeName:
    """A member's node, by its number."""
    return NodeName(f"ip-10-{number >> 16 & 255}-{number >> 8 & 255}-{number & 255}")


class Member:
    """One agent."""

    def __init__(self, number: int, port: int, munge_socket: Path) -> None:
        self.name = name_of(number)
        self._instance = InstanceId(f"i-{number:017x}")
        self._boot = BootId("7a58ec84-3776-4210-8a5c-212610e998ed")
        self._port, self._munge = port, munge_socket
        self._session, self._secret = "", b""
        self._findings: tuple[Finding, ...] = ()
        self._digest = wire.compute_findings_digest(())
        self._seq = 0
        self.line = Line()

    async def connect(self) -> None:
        """Open the connection that is kept."""
        loop = asyncio.get_running_loop()
        _, self.line = await loop.create_connection(Line, "127.0.0.1", self._port)

    async def join(self) -> None:
        """Connect, and send the first report with a credential, which opens the session."""
        await self.connect()
        body = wire.encode_agent_report(self._report(), open_session=True)
        ack = wire.decode_report_ack(await self.line.ask(self._with_credential(body)))
        assert ack.session is not None, "the intake opened no session"
        self._session = ack.session.id
        self._secret = munge.decode_munge_credential(ack.session.key, self._munge).payload

    async def heartbeat(self) -> None:
        """What an agent says every ten seconds."""
        await self.line.ask(self._signed(wire.encode_heartbeat(self._brief())))

    async def event(self) -> None:
        """A report with one more finding, which the head node must store before it answers."""
        await self.line.ask(self._signed(wire.encode_agent_report(self._worse())))

    async def hello(self) -> None:
        """The rival: as many bytes, of which nobody reads a word."""
        body = wire.encode_heartbeat(self._brief())
        await self.line.ask(_request(body, wire.make_session_authorization("0" * 32, b"", body)))

    async def heartbeat_by_credential(self) -> None:
        """The rival: the same heartbeat with a MUNGE credential of its own."""
        await self.line.ask(self._with_credential(wire.encode_heartbeat(self._brief())))

    async def event_by_credential(self) -> None:
        """The rival: the same report with a MUNGE credential of its own."""
        await self.line.ask(self._with_credential(wire.encode_agent_report(self._worse())))

    def _worse(self) -> AgentReport:
        now = datetime.now(UTC)
        code = str(len(self._findings) % 16)
        found = Finding(
            "bench.count", DeviceVerdict.WARN, now, now, f"gpu{self._seq}", code, count=1
        )
        self._findings = (*self._findings[-3:], found)
        self._digest = wire.compute_findings_digest(self._findings)
        return self._report()

    def _report(self) -> AgentReport:
        self._seq += 1
        now = datetime.now(UTC)
        return AgentReport(
            self.name, self._instance, self._boot, self._seq, now, START, self._findings
        )

    def _brief(self) -> wire.Heartbeat:
        self._seq += 1
        now = datetime.now(UTC)
        return wire.Heartbeat(
            self.name, self._instance, self._boot, self._seq, now, START, self._digest, GAUGES
        )

    def _signed(self, body: bytes) -> bytes:
        return _request(body, wire.make_session_authorization(self._session, self._secret, body))

    def _with_credential(self, body: bytes) -> bytes:
        credential = munge.encode_munge_credential(
            wire.make_request_credential_payload(body), self._munge
        )
        return _request(body, f"{wire.AUTH_SCHEME} {credential}")


def _request(body: bytes, authorization: str) -> bytes:
    """The bytes that http.client sends for an agent."""
    return (
        f"POST {wire.PATH} HTTP/1.1\r\nHost: 127.0.0.1:8470\r\nAccept-Encoding: identity\r\n"
        f"Content-Length: {len(body)}\r\nAuthorization: {authorization}\r\n"
        "Content-Type: application/json\r\n\r\n"
    ).encode() + body


Deed = Callable[[Member], Awaitable[None]]


async def join_all(members: Sequence[Member], at_once: int = 32) -> None:
    """Have every member join, so many at a time."""
    turn = asyncio.Semaphore(at_once)

    async def one(member: Member) -> None:
        async with turn:
            await asyncio.wait_for(member.join(), ANSWER_S)

    await asyncio.gather(*(one(m) for m in members))


async def rush(members: Sequence[Member], deed: Deed, seconds: float) -> tuple[int, float]:
    """Each member does it again as soon as it is answered; how often in all, and in what time."""
    begun = time.perf_counter()
    count = 0

    async def one(member: Member) -> None:
        nonlocal count
        while time.perf_counter() - begun < seconds:
            await deed(member)
            count += 1

    await asyncio.gather(*(one(m) for m in members))
    return count, time.perf_counter() - begun


async def beat(
    members: Sequence[Member], deed: Deed, every_s: float, seconds: float
) -> list[float]:
    """Each member does it every so often, evenly spread; how long each answer took."""
    loop = asyncio.get_running_loop()
    taken: list[float] = []

    async def one(number: int, member: Member) -> None:
        due = begun + every_s * number / len(members)
        while due < begun + seconds:
            await asyncio.sleep(due - loop.time())
            sent = time.perf_counter()
            await asyncio.wait_for(deed(member), ANSWER_S)
            taken.append(time.perf_counter() - sent)
            due += every_s

    # This process's own pauses would count as the intake's: its start, and its full collections.
    gc.collect()
    gc.disable()
    begun = loop.time() + 2.0
    try:
        await asyncio.gather(*(one(n, m) for n, m in enumerate(members)))
    finally:
        gc.enable()
    return taken


@contextmanager
def munged(directory: Path, name: str, key: Path) -> Iterator[tuple[Path, int]]:
    """A munged of our own with that key; its socket and its process id."""
    socket = directory / f"{name}.socket"
    files = {"pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    command = [
        packages.find_sandbox_programs("")["munged"],
        *("--foreground", "--force", "--origin=127.0.0.1"),
        *(f"--key-file={key}", f"--socket={socket}"),
        *(f"--{option}={directory / name}.{suffix}" for option, suffix in files.items()),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("munged does not serve")
            time.sleep(0.02)
        yield socket, process.pid
    finally:
        process.terminate()
        process.wait(10)


def new_key(directory: Path) -> Path:
    """A fresh MUNGE key."""
    key = directory / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    return key


def cpu_seconds(pid: int, thread: int | None = None) -> float:
    """Processor time that a process, or one thread of it, has used so far."""
    base = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    fields = Path(base, "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
