"""The stand-in's socket: commands by line, one answer to STATUS, then the connection ends.

`Fault` makes it what a job in trouble makes of the real one: mute, torn, garbage, endless.
"""

import socketserver
import threading
from enum import Enum

from tests.stubs.ras.job import NEWEST, Job, as_json

WITHOUT_JSON = ("2.24.3", "2.26.2", "2.28.3")


class Fault(Enum):
    NONE = "none"
    MUTE = "mute"
    """Accepts and never says a word: a stopped process."""
    MUTE_STATUS = "mute at status"
    CLOSES = "closes"
    HALF = "half"
    """Dies in the middle of its answer."""
    GARBAGE = "garbage"
    NO_NEWLINE = "no newline"
    ENDLESS = "endless"
    OTHER = "other"
    """Something else listens on the port."""


class Service(socketserver.ThreadingTCPServer):
    """A RAS service on a free port of loopback, until its context ends."""

    daemon_threads = True

    def __init__(self, job: Job, release: str = NEWEST, fault: Fault = Fault.NONE) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.job, self.release, self.fault = job, release, fault
        self.commands: list[str] = []
        self.queries = 0
        self.closing = threading.Event()
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        """A client that has gone meanwhile is no error of ours."""

    def __exit__(self, *error) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class _Client(socketserver.StreamRequestHandler):
    server: Service

    def handle(self) -> None:
        fault = self.server.fault
        for raw in self.rfile:
            if fault is Fault.CLOSES:
                return
            command = raw.decode().strip()
            self.server.commands.append(command)
            if fault is Fault.MUTE:
                continue
            if command.lower() == "verbose status":
                self.server.queries += 1
                self._status()
                return
            self.wfile.write(self._answer(command))

    def _answer(self, command: str) -> bytes:
        fixed = {
            Fault.OTHER: b"220 mail.example.com ESMTP\r\n",
            Fault.NO_NEWLINE: b"SERVER PROTOCOL 2" * 200,
        }
        lower = command.lower()
        if self.server.fault in fixed:
            return fixed[self.server.fault]
        if lower.startswith("client protocol "):
            return b"SERVER PROTOCOL 2\n"
        if lower.startswith("timeout "):
            return b"OK\n"
        if lower == "set format json" and self.server.release not in WITHOUT_JSON:
            return b"OK\n"
        return f"ERROR: Unknown command {command}\n".encode()

    def _status(self) -> None:
        answer, fault = as_json(self.server.job, self.server.release).encode(), self.server.fault
        if fault is Fault.MUTE_STATUS:
            self.server.closing.wait()
        elif fault is Fault.ENDLESS:
            while not self.server.closing.is_set():
                self.wfile.write(b"x" * 65536)
        else:
            torn = {Fault.HALF: answer[: len(answer) // 2], Fault.GARBAGE: b"\0\xff" * 4000}
            self.wfile.write(torn.get(fault, answer))
