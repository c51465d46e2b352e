"""Bytes as they come out of a file, made into whole lines.

A carriage return ends a line too: a progress bar rewrites its line a thousand times before the
newline comes. NUL bytes are dropped: a log truncated under a writer that does not append has a
hole of them before the next line.
"""

from __future__ import annotations

LONGEST = 1 << 20
"""Bytes of a line that are kept; the rest of a longer one is passed over."""


class LineCutter:
    """Holds back the unfinished line at the end, at most LONGEST bytes of it."""

    __slots__ = ("_carry", "_dropping", "_returned")

    def __init__(self) -> None:
        self._carry = b""
        self._dropping = False
        self._returned = False

    def cut(self, data: bytes) -> bytes:
        """The lines that `data` completes, each ended by a newline."""
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        if self._returned and data:
            data = data.removeprefix(b"\n")  # the second half of a \r\n that a read cut in two
            self._returned = False
        if b"\r" in data:
            self._returned = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(rest)
            return b""
        if self._dropping or self._carry:
            first, _, others = (whole + newline).partition(b"\n")
            self._keep(first)
            whole = self._carry + b"\n" + others
            self._carry, self._dropping = b"", False
        else:
            whole += newline
        self._keep(rest)
        return whole

    def finish(self) -> bytes:
        """The unfinished line, for a file that has ended; empty where there is none."""
        last, self._carry, self._dropping = self._carry, b"", False
        return last + b"\n" if last else b""

    def forget(self) -> None:
        """Drop the unfinished line: the file was cut short, and its end will never come."""
        self._carry, self._dropping = b"", False

    def _keep(self, part: bytes) -> None:
        if self._dropping:
            return
        self._carry += part
        if len(self._carry) > LONGEST:
            self._carry, self._dropping = self._carry[:LONGEST], True
