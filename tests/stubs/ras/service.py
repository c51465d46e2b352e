"""The stand-in's socket: commands by line, one answer to STATUS, then the connection ends.

`Fault` makes it what a job in trouble makes of the real one: mute, torn, garbage, endless.
"""

from __future__ import annotations

import socket
import threading
from enum import Enum

from tests.stubs.ras.job import RELEASES, Job, as_json, as_text


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


class Service:
    """A RAS service on a free port of loopback, until it is closed."""

    def __init__(self, job: Job, release: str = "2.30.7", fault: Fault = Fault.NONE) -> None:
        self.job, self.release, self.fault = job, release, fault
        self.commands: list[str] = []
        self.queries = 0
        self._closing = threading.Event()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(0.1)
            try:
                self._talk(connection)
            except OSError:
                return

    def _talk(self, connection: socket.socket) -> None:
        kept, json = b"", False
        while not self._closing.is_set():
            try:
                more = connection.recv(4096)
            except TimeoutError:
                continue
            if not more or self.fault is Fault.CLOSES:
                return
            kept += more
            while b"\n" in kept:
                line, _, kept = kept.partition(b"\n")
                command = line.decode().strip()
                self.commands.append(command)
                if self.fault is Fault.MUTE:
                    continue
                if command.lower() in ("status", "verbose status"):
                    self.queries += 1
                    self._status(connection, json, verbose=command.lower() != "status")
                    return
                answer, json = self._answer(command, json)
                connection.sendall(answer)

    def _answer(self, command: str, json: bool) -> tuple[bytes, bool]:
        if self.fault is Fault.OTHER:
            return b"220 mail.example.com ESMTP\r\n", json
        if self.fault is Fault.NO_NEWLINE:
            return b"SERVER PROTOCOL 2" * 200, json
        lower = command.lower()
        if lower.startswith("client protocol "):
            return b"SERVER PROTOCOL 2\n", json
        if lower.startswith("timeout "):
            fits = lower.removeprefix("timeout ").isdigit()
            return b"OK\n" if fits else b"ERROR: Invalid timeout value\n", json
        if lower == "set format json" and RELEASES[self.release].json:
            return b"OK\n", True
        return f"ERROR: Unknown command {command}\n".encode(), json

    def _status(self, connection: socket.socket, json: bool, verbose: bool) -> None:
        text = as_json(self.job, self.release) if json else as_text(self.job, self.release, verbose)
        answer = text.encode()
        if self.fault is Fault.MUTE_STATUS:
            self._closing.wait()
        elif self.fault is Fault.HALF:
            connection.sendall(answer[: len(answer) // 2])
        elif self.fault is Fault.GARBAGE:
            connection.sendall(bytes(range(256)) * 40)
        elif self.fault is Fault.ENDLESS:
            while not self._closing.is_set():
                connection.sendall(b"x" * 65536)
        else:
            # In pieces, as a socket gives them.
            for at in range(0, len(answer), 1000):
                connection.sendall(answer[at : at + 1000])
