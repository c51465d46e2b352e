"""What processes use, by /proc, and programs that go on while a part looks at them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def cpu_seconds(pid: int) -> float:
    """Return a process's processor time over all threads, in seconds; 0 if it has ended.

    By /proc/PID/task/TID/schedstat, whose unit is a nanosecond: ticks of 10 ms are too coarse.
    """
    nanoseconds = 0
    with suppress(OSError, ValueError, IndexError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def memory_kib(pid: int) -> dict[str, int]:
    """Return a process's resident, proportional and own memory in KiB."""
    found: dict[str, int] = {}
    wanted = {"VmRSS": "rss", "Pss": "pss", "Private_Dirty": "own"}
    for file in ("status", "smaps_rollup"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in wanted:
                    found[wanted[key]] = int(value.split()[0])
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            text = (thread / "children").read_text()
            found += [int(word) for word in text.split()]
    return found


def measure(pid: int, seconds: float) -> dict[str, Any]:
    """Return the share of a core that a process and its children use over some time, in percent,
    and their memory at its end."""
    watched = [pid, *children(pid)]
    before = {each: cpu_seconds(each) for each in watched}
    began = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    return {
        "seconds": round(took_s, 1),
        "processes": [
            {
                "name": _read_name(each),
                "cpu_percent": round(100 * (cpu_seconds(each) - before[each]) / took_s, 3),
                "kib": memory_kib(each),
            }
            for each in watched
        ],
    }


def _read_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words[:6])


class Program:
    """A program that runs on: its lines of JSON are facts, the rest is text."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError."""
        self.facts: list[dict[str, Any]] = []
        self.text: list[str] = []
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def wait_for(self, key: str, limit_s: float) -> dict[str, Any] | None:
        """Return the first fact that has this key; None if it ends or the time is over before."""
        end = time.monotonic() + limit_s
        while True:
            has_ended = self.process.poll() is not None
            if has_ended:
                self._reader.join(1.0)
            for fact in list(self.facts):
                if key in fact:
                    return fact
            if has_ended or time.monotonic() > end:
                return None
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM, limit_s: float = 6.0) -> int | None:
        """Send a signal, wait, and kill its group at the limit; return the exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
        self._reader.join(1.0)
        return self.process.poll()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            fact = None
            if line.startswith("{"):
                with suppress(ValueError):
                    fact = json.loads(line)
            if fact is not None:
                self.facts.append(fact)
            elif len(self.text) < 1000:
                self.text.append(line[:1000])
