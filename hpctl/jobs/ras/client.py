"""Ask NCCL's RAS service over TCP. Lines both ways; the answer to STATUS ends with the connection.

The protocol's number has been 2 in every release so far (2.24.3 to 2.30.7), also across the coming
of JSON: what the service can do is found out by asking for it. A hung job is the very thing that
is asked, so that every wait has an end and every read a bound.
"""

import socket
import time

from msgspec import Struct

from hpctl.jobs.ras import report
from hpctl.jobs.ras.report import RasError, RasReport

PORT = 28028
JOB_PORTS = range(30100, 32700)
PROTOCOL = 2
LEG_TIMEOUT_S = 5
"""How long the job's processes wait for each other's answers: NCCL's own default."""
DEADLINE_S = 20.0
"""A query takes two legs at most (10 s) and the transfer: the rest is generous."""
LONGEST_LINE = 1024
LARGEST_ANSWER = 256 << 20
"""JSON takes some 600 bytes for each rank of each communicator: 4096 ranks in a hundred."""
_CHUNK = 1 << 20


class Address(Struct, frozen=True):
    """Where a job's RAS service listens: on each node with a rank, as a rule on loopback only."""

    host: str = "localhost"
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str = "") -> Address:
    """Read `HOST:PORT` as NCCL_RAS_ADDR has it; empty is NCCL's default. Raises RasError."""
    if not text:
        return Address()
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RasError(f"{text!r} is no HOST:PORT", "write NCCL_RAS_ADDR as localhost:28028")
    return Address(host.strip("[]"), int(port))


def address_of_job(job_id: int) -> Address:
    """An address for one job's NCCL_RAS_ADDR, so that two jobs on a node do not share the port.

    NCCL binds it with SO_REUSEPORT: of jobs on one port, any may answer. Below the ephemeral
    ports (ip(7)), and the same wherever it is worked out.
    """
    return Address("localhost", JOB_PORTS.start + job_id % len(JOB_PORTS))


def query(where: Address | None = None, deadline_s: float = DEADLINE_S) -> RasReport:
    """What all ranks of the job say now: JSON where the service knows it, its text elsewhere.

    Takes at most `deadline_s`. Raises RasError: nobody there, no answer in time, a torn one.
    """
    where = where or Address()
    line = _Connection(where, time.monotonic() + deadline_s)
    try:
        line.connect()
        line.send(f"CLIENT PROTOCOL {PROTOCOL}")
        reply = line.reply()
        if not reply.upper().startswith("SERVER PROTOCOL "):
            raise RasError(f"{where} is no RAS service: it says {reply[:80]!r}", _HINT)
        line.expect_ok(f"TIMEOUT {LEG_TIMEOUT_S}")
        line.send("SET FORMAT json")
        # Releases before 2.28.7 answer "ERROR: Unknown command ...", and go on.
        json = line.reply().upper() == "OK"
        line.send("VERBOSE STATUS")
        answer = line.rest()
    except OSError as error:
        reply = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or "?"
        raise RasError(f"cannot ask the RAS service at {where}: {reply}", _HINT) from error
    finally:
        line.close()
    return report.read_json(answer) if json else report.read_text(answer)


_HINT = (
    "does this node run a rank of the job, with NCCL 2.24 or later, NCCL_RAS_ENABLE not 0,"
    " and is NCCL_RAS_ADDR the job's own?"
)


class _Connection:
    """One connection with one deadline for everything on it."""

    def __init__(self, where: Address, deadline: float) -> None:
        self._where, self._deadline = where, deadline
        self._socket: socket.socket | None = None
        self._left = b""

    def connect(self) -> None:
        # localhost may be ::1 and 127.0.0.1, and NCCL listens on one of them.
        self._socket = socket.create_connection(
            (self._where.host, self._where.port), timeout=self._remaining()
        )

    def send(self, command: str) -> None:
        self._timed().sendall(command.encode() + b"\n")

    def reply(self) -> str:
        """One line."""
        while b"\n" not in self._left:
            if len(self._left) > LONGEST_LINE:
                raise RasError(f"{self._where} answers without an end of line", _HINT)
            more = self._timed().recv(LONGEST_LINE)
            if not more:
                raise RasError(f"{self._where} closed the connection", _HINT)
            self._left += more
        text, _, self._left = self._left.partition(b"\n")
        return text.decode(errors="replace").strip()

    def expect_ok(self, command: str) -> None:
        self.send(command)
        reply = self.reply()
        if reply.upper() != "OK":
            raise RasError(f"{self._where} answers {reply[:80]!r} to {command}", _HINT)

    def rest(self) -> bytes:
        """Everything until the service closes."""
        chunks, size = [self._left], len(self._left)
        while more := self._timed().recv(_CHUNK):
            chunks.append(more)
            size += len(more)
            if size > LARGEST_ANSWER:
                raise RasError(f"{self._where} answers more than {LARGEST_ANSWER} bytes", _HINT)
        return b"".join(chunks)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _timed(self) -> socket.socket:
        assert self._socket is not None
        self._socket.settimeout(self._remaining())
        return self._socket

    def _remaining(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
