"""The result of tests on a node: one line of text each, one file, and the agent's inbox of files.

A test is a command. It may print the line `HEALTH_CHECK_RESULT:host:status:remedy:reason`, which is
awsome-distributed-ai's, and in addition one line of JSON, `{"figures": {name: number}}`. Whatever
it prints is bounded here, and so is a file that claims to hold results.

The inbox gives the results that a job has left on this node as findings. The job runs as the
daemon's user, root or SlurmUser: only theirs are trusted, and each file is bounded before it is
read. The content of a file is sent to the head node for a while and is then deleted; one that is no
result is deleted at once.
"""

import contextlib
import json
import logging
import math
import os
import pwd
import re
import stat
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from hpctl.nodes.acceptance.cards import GpuCard
from hpctl.toolkit.bounds import EARLIEST, make_printable, parse_timestamp
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import TEST, TEST_SUMMARY, ClearCondition, DeviceVerdict, Finding
from hpctl.wire.heads import list_trusted_head_node_uids

log = logging.getLogger(__name__)

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


class AcceptanceTestResult(Struct, frozen=True, forbid_unknown_fields=True):
    """One test on one node. `figures`: what it measured; the unit ends the name (`_gbs`, `_us`)."""

    test: TestName
    status: Status
    remedy: Cure = "none"
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    figures: Annotated[dict[FigureName, float], Meta(max_length=MAX_FIGURES)] = {}

    def line(self, host: str) -> str:
        """Return the contract's line."""
        return f"{MARK}{host}:{self.status}:{self.remedy}:{self.reason}"


class AcceptanceRunResults(Struct, frozen=True, forbid_unknown_fields=True):
    """One run of tests on one node: the file that the agent picks up. Times in Unix seconds.

    `card` are the node's GPUs, by which figures have their floors.
    """

    id: RunId
    level: Annotated[str, Meta(pattern=r"^[a-z]{1,16}\Z")]
    started: _Time
    finished: _Time
    results: Annotated[tuple[AcceptanceTestResult, ...], Meta(max_length=MAX_RESULTS)] = ()
    card: GpuCard = GpuCard()

    @property
    def failed_results(self) -> tuple[AcceptanceTestResult, ...]:
        """Return the tests that did not pass and were not skipped."""
        return tuple(result for result in self.results if result.status == "Failed")


class AcceptanceTestJsonLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One result in the JSON line next to the contract's: whose it is, and all of it."""

    __test__ = False

    host: Annotated[str, Meta(max_length=256)]
    result: AcceptanceTestResult


def make_test_result_json(host: str, result: AcceptanceTestResult) -> dict[str, object]:
    """Return an AcceptanceTestJsonLine as what JSON is made of."""
    return {"host": host, "result": msgspec.to_builtins(result)}


class InvalidResultFileError(ValueError):
    """Bytes that are no result file; the message names the place."""


_decoder = msgspec.json.Decoder(AcceptanceRunResults)


def encode_results(results: AcceptanceRunResults) -> bytes:
    """Return the bytes of a result file."""
    return msgspec.json.encode(results)


def decode_results(raw: bytes) -> AcceptanceRunResults:
    """Return the results of a file. Raises InvalidResultFileError."""
    if len(raw) > MAX_FILE:
        raise InvalidResultFileError(f"is over {MAX_FILE} bytes")
    try:
        found = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidResultFileError(f"holds no results: {error}") from error
    checked = tuple(
        msgspec.structs.replace(result, reason=shorten_to_one_line(result.reason))
        for result in found.results
    )
    return msgspec.structs.replace(found, results=checked)


def shorten_to_one_line(text: str) -> str:
    """Return a reason without control characters, cut to one line."""
    return make_printable(" ".join(text.split()))[:MAX_REASON]


def parse_test_result_line(test: str, output: str) -> AcceptanceTestResult | None:
    """Return what a test says of itself in its last line of the contract; None where it has
    none."""
    lines = list(_LINE.finditer(output))
    if not lines:
        return None
    status, remedy, reason = lines[-1].groups()
    return msgspec.convert(
        {"test": test, "status": status, "remedy": remedy, "reason": shorten_to_one_line(reason)},
        AcceptanceTestResult,
    )


def parse_measured_figures(output: str) -> dict[str, float]:
    """Return the figures of the last line of JSON that has some; what is no finite number is left
    out."""
    for line in reversed(output.splitlines()):
        if line.startswith("{") and '"figures"' in line:
            try:
                found = json.loads(line)["figures"]
                return select_valid_figures(dict(found))
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
    return {}


def select_valid_figures(found: dict[str, object]) -> dict[str, float]:
    """Return the first MAX_FIGURES figures whose names are names and whose values are finite."""
    kept: dict[str, float] = {}
    for name, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if _FIGURE.fullmatch(name) and abs(value) < 1e18 and math.isfinite(value):
            kept[name] = float(value)
    return dict(list(kept.items())[:MAX_FIGURES])


FOLDER: Final = "acceptance"
"""In the agent's spool."""
KEPT: Final = timedelta(minutes=30)
"""How long a result is reported: longer than the daemon waits for one."""
MAX_FILES: Final = 4
"""The most results reported at once: the newest."""
MAX_LISTED: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json")
_VERDICTS: Final = {
    "Passed": DeviceVerdict.OK,
    "Failed": DeviceVerdict.FAIL,
    "Skipped": DeviceVerdict.UNKNOWN,
}


class AcceptanceResultInbox:
    """The folder. `look` from one thread, `findings` from any."""

    def __init__(
        self, spool: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._folder, self._now = spool / FOLDER, now
        self._seen: tuple[object, ...] = ()
        self._findings: tuple[Finding, ...] = ()

    def prepare(self) -> None:
        """Let only the daemon's user write here. A failure costs the results."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            writers = list_trusted_head_node_uids() - {0, os.geteuid()}
            if os.geteuid() == 0 and writers:
                user = pwd.getpwuid(writers.pop())
                os.chown(self._folder, user.pw_uid, 0, follow_symlinks=False)
                os.chown(self._folder.parent, -1, user.pw_gid)
                self._folder.parent.chmod(0o710)
        except (OSError, KeyError) as error:
            log.warning("%s cannot be made for results of tests: %s", self._folder, error)

    def look(self) -> bool:
        """Read what is new. Whether the findings have changed."""
        try:
            with os.scandir(self._folder) as entries:
                listed = [entry for entry, _ in zip(entries, range(MAX_LISTED), strict=False)]
                seen = tuple(
                    sorted((e.name, e.stat(follow_symlinks=False).st_mtime_ns) for e in listed)
                )
        except OSError:
            return False
        old = bool(self._findings) and self._now() - self._findings[0].last > KEPT
        if seen == self._seen and not old:
            return False
        before, self._findings = self._findings, self._read([name for name, _ in seen])
        self._seen = seen
        return before != self._findings

    def findings(self) -> tuple[Finding, ...]:
        """Return what the newest tests found."""
        return self._findings

    def _read(self, names: list[str]) -> tuple[Finding, ...]:
        found: list[AcceptanceRunResults] = []
        for name in names:
            # One that is being written is renamed when it is whole.
            if _NAME.fullmatch(name) and (results := self._decode_result_file(name)) is not None:
                found.append(results)
        found.sort(key=lambda results: results.finished, reverse=True)
        for results in found[MAX_FILES:]:
            self._delete_file(f"{results.id}.json")
        return tuple(chain.from_iterable(map(make_acceptance_result_findings, found[:MAX_FILES])))

    def _decode_result_file(self, name: str) -> AcceptanceRunResults | None:
        try:
            results = decode_results(read_file_of_trusted_user(self._folder / name))
        except (OSError, InvalidResultFileError) as error:
            log.warning("%s is no result of a test: %s", self._folder / name, error)
        else:
            young = abs(self._now() - (parse_timestamp(results.finished) or EARLIEST)) <= KEPT
            if f"{results.id}.json" == name and young:
                return results
        self._delete_file(name)
        return None

    def _delete_file(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


def read_file_of_trusted_user(path: Path) -> bytes:
    """Read a plain file of a trusted user that no other user may write. Raise OSError,
    InvalidResultFileError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise InvalidResultFileError("is no plain file")
        if about.st_uid not in list_trusted_head_node_uids() or about.st_mode & 0o022:
            raise InvalidResultFileError(f"uid {about.st_uid} may have written it, or others may")
        return file.read(MAX_FILE + 1)


def make_acceptance_result_findings(results: AcceptanceRunResults) -> tuple[Finding, ...]:
    """Return a finding for each test, and the one that closes them."""
    ended = parse_timestamp(results.finished) or EARLIEST
    began = parse_timestamp(results.started) or ended

    def make_finding(
        check: str, verdict: DeviceVerdict, code: str, detail: str, evidence: str
    ) -> Finding:
        return Finding(
            check,
            verdict,
            began,
            ended,
            results.id,
            code,
            detail,
            evidence,
            clears=ClearCondition.GONE,
        )

    found = []
    for one in results.results:
        remedy = "" if one.remedy == "none" else one.remedy
        figures = msgspec.json.encode(one.figures).decode() if one.figures else ""
        found.append(
            make_finding(TEST + one.test, _VERDICTS[one.status], remedy, one.reason, figures)
        )
    card = msgspec.json.encode(results.card).decode() if results.card != GpuCard() else ""
    summary = f"{len(results.results)} tests"
    found.append(make_finding(TEST_SUMMARY, DeviceVerdict.OK, results.level, summary, card))
    return tuple(found)
