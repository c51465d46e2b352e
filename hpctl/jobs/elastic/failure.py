"""How a rank failed, from its exit status and from the error file that torch's `@record` writes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctl.core.trouble import UNSTARTED

_COMPLAINT = re.compile(
    r"connection (?:closed|reset|refused|was broken)|broken pipe|remote process exited"
    r"|socket timeout|timed out|DistNetworkError",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store say of a peer that is gone (torch 2.13)."""

MAX_FILE = 1 << 20
MESSAGE_CHARS = 500
TRACE_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's end that was not wanted.

    `code` is the shell's (128 + n for signal n). `at` is seconds since the epoch: when the error
    file was written, else when the process ended. `exception`, `message` and `trace` are empty
    where the rank left no error file.
    """

    rank: int
    node: str
    code: int
    at: float
    exception: str = ""
    message: str = ""
    trace: str = ""

    @property
    def why(self) -> str:
        """One sentence for a person."""
        said = f"{self.exception}: {self.message}" if self.exception else self.message
        return f"rank {self.rank} on {self.node} ended with {code_text(self.code)}" + (
            f": {said}" if said else ""
        )


def code_text(code: int) -> str:
    """`exit code 1`, or `signal 9 (SIGKILL)`."""
    if code in UNSTARTED:
        return f"exit code {code} ({UNSTARTED[code]})"
    if code <= 128:
        return f"exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    return f"signal {code - 128} ({name})"


def shell_code(status: int) -> int:
    """The shell's exit code of a status as Python's subprocess gives it (-n for signal n)."""
    return 128 - status if status < 0 else status


def failure_of(rank: int, node: str, code: int, at: float, error_file: Path) -> Failure:
    """What is known about a rank that ended with `code` at `at`. Never raises: an error file that
    cannot be read is one that says nothing."""
    try:
        with error_file.open("rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            text = file.read(MAX_FILE)
        document = json.loads(text)
    except (OSError, ValueError):
        return Failure(rank, node, code, at)
    exception, message, trace = _said(document)
    return Failure(rank, node, code, min(at, written), exception, message, trace)


def _said(document: Any) -> tuple[str, str, str]:
    """Exception, message and traceback of torch's format: `message` is a string or a mapping with
    `message` ("Type: text") and `extraInfo.py_callstack` (error_handler.py, torch 2.13)."""
    inner = document.get("message") if isinstance(document, dict) else None
    trace = ""
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        trace = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
        inner = inner.get("message")
    if not isinstance(inner, str):
        return "", "", ""
    inner, trace = _sayable(inner), _sayable(trace)
    kind, colon, rest = inner.partition(": ")
    if not colon or not kind.replace(".", "_").isidentifier():
        kind, rest = "", inner
    return kind, rest.strip()[:MESSAGE_CHARS], _shortened(trace)


def _sayable(text: str) -> str:
    """Text that UTF-8 can hold: Python names a file whose name is no UTF-8 with lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shortened(trace: str) -> str:
    """The end of a traceback, whole lines, still with the first line that marks it as one."""
    if len(trace) <= TRACE_CHARS:
        return trace
    head, _, _ = trace.partition("\n")
    room = max(0, TRACE_CHARS - len(head) - 1)
    return f"{head[:200]}\n{trace[-room:].partition(chr(10))[2]}"


def to_json(failure: Failure) -> dict[str, Any]:
    """For the wire and the account."""
    return {name: getattr(failure, name) for name in Failure.__slots__}


def from_json(document: Mapping[str, Any]) -> Failure:
    """The inverse of `to_json`, with lengths bounded. Raises KeyError, TypeError, ValueError."""
    return Failure(
        rank=int(document["rank"]),
        node=str(document["node"])[:256],
        code=int(document["code"]),
        at=float(document["at"]),
        exception=str(document["exception"])[:256],
        message=str(document["message"])[:MESSAGE_CHARS],
        trace=str(document["trace"])[-TRACE_CHARS:],
    )


def root_cause(failures: list[Failure]) -> Failure:
    """The first that is not one of the complaints which a dead rank's peers make.

    Time alone will not do: the kernel closes a killed process's connections before it frees its
    memory, so that a peer may write its error file before anybody hears of the death.
    """
    return min(failures, key=lambda each: (_follows(each), each.at, each.rank))


def _follows(failure: Failure) -> bool:
    return bool(_COMPLAINT.search(f"{failure.exception} {failure.message}"))
