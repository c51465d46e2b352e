"""The result of tests on a node: one line of text each, and one file for the agent.

A test is a command. It may print the line `HEALTH_CHECK_RESULT:host:status:remedy:reason`, which is
awsome-distributed-ai's, and beside it one line of JSON, `{"figures": {name: number}}`. Whatever it
prints is bounded here, and so is a file that claims to hold results.
"""

import json
import math
import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from hpctl.core.bounds import printable

MARK: Final = "HEALTH_CHECK_RESULT:"
MAX_REASON: Final = 256
"""Characters of a reason, as of a finding's detail."""
MAX_FIGURES: Final = 24
MAX_RESULTS: Final = 64
MAX_FILE: Final = 256 * 1024
"""Bytes of a result file."""

Status = Literal["Passed", "Failed", "Skipped"]
Cure = Literal["none", "reset", "reboot", "replace"]
"""What a failure asks for, in the words of the line."""

TestName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]{0,47}\Z")]
"""The agent's check is `acceptance.<test>`."""
FigureName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,47}\Z")]
RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Time = Annotated[float, Meta(ge=0, le=2**53)]

_LINE = re.compile(
    MARK + r"[^:\n]{0,255}:(Passed|Failed|Skipped):(none|reset|reboot|replace):([^\n]*)"
)
_FIGURE = re.compile(r"[a-z][a-z0-9_]{0,47}")


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """One test on one node. `figures`: what it measured; the unit ends the name (`_gbs`, `_us`)."""

    test: TestName
    status: Status
    remedy: Cure = "none"
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    figures: Annotated[dict[FigureName, float], Meta(max_length=MAX_FIGURES)] = {}

    def line(self, host: str) -> str:
        """The contract's line."""
        return f"{MARK}{host}:{self.status}:{self.remedy}:{self.reason}"


class Results(Struct, frozen=True, forbid_unknown_fields=True):
    """One run of tests on one node: the file that the agent picks up. Times in Unix seconds."""

    id: RunId
    level: Annotated[str, Meta(pattern=r"^[a-z]{1,16}\Z")]
    started: _Time
    finished: _Time
    results: Annotated[tuple[Result, ...], Meta(max_length=MAX_RESULTS)] = ()

    @property
    def failed(self) -> tuple[Result, ...]:
        """The tests that did not pass and were not skipped."""
        return tuple(result for result in self.results if result.status == "Failed")


class TestLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One result in the JSON line that stands beside the contract's: whose it is, and all of it."""

    __test__ = False

    host: Annotated[str, Meta(max_length=256)]
    result: Result


def to_line(host: str, result: Result) -> dict[str, object]:
    """A TestLine as what JSON is made of."""
    return {"host": host, "result": msgspec.to_builtins(result)}


class NotResults(ValueError):
    """Bytes that are no result file; the message names the place."""


_decoder = msgspec.json.Decoder(Results)


def encode(results: Results) -> bytes:
    """The bytes of a result file."""
    return msgspec.json.encode(results)


def decode(raw: bytes) -> Results:
    """The results of a file. Raises NotResults."""
    if len(raw) > MAX_FILE:
        raise NotResults(f"is over {MAX_FILE} bytes")
    try:
        found = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotResults(f"holds no results: {error}") from error
    checked = tuple(
        msgspec.structs.replace(result, reason=one_line(result.reason)) for result in found.results
    )
    return msgspec.structs.replace(found, results=checked)


def one_line(text: str) -> str:
    """A reason: what a terminal obeys is replaced, and the rest is cut."""
    return printable(" ".join(text.split()))[:MAX_REASON]


def said(test: str, output: str) -> Result | None:
    """What a test says of itself in its last line of the contract; None where it has none."""
    lines = list(_LINE.finditer(output))
    if not lines:
        return None
    status, remedy, reason = lines[-1].groups()
    return msgspec.convert(
        {"test": test, "status": status, "remedy": remedy, "reason": one_line(reason)}, Result
    )


def figures(output: str) -> dict[str, float]:
    """The figures of the last line of JSON that has some; what is no finite number is left out."""
    for line in reversed(output.splitlines()):
        if line.startswith("{") and '"figures"' in line:
            try:
                found = json.loads(line)["figures"]
                return bounded(dict(found))
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
    return {}


def bounded(found: dict[str, object]) -> dict[str, float]:
    """The first MAX_FIGURES figures whose names are names and whose values are finite."""
    kept = {
        name: float(value)
        for name, value in found.items()
        if _FIGURE.fullmatch(name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e18
        and math.isfinite(value)
    }
    return dict(list(kept.items())[:MAX_FIGURES])
