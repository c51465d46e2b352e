"""The results of acceptance tests that a job has left on this node, as findings.

The job runs as the daemon's user, root or SlurmUser: theirs alone are believed, and each file is
bounded before it is read. What a file says goes to the head node for a while and is then deleted;
one that is no result is deleted at once.
"""

import contextlib
import logging
import os
import pwd
import re
import stat
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from hpctl.acceptance.result import MAX_FILE, NotResults, Results, decode
from hpctl.core.bounds import EARLIEST, at_stamp
from hpctl.core.compat import UTC
from hpctl.core.model import TEST, TEST_SUMMARY, Clears, Finding, Verdict
from hpctl.protocol.heads import trusted_uids

log = logging.getLogger(__name__)

FOLDER: Final = "acceptance"
"""In the agent's spool."""
KEPT: Final = timedelta(minutes=30)
"""For so long a result is told, and longer than the daemon waits for one."""
MAX_FILES: Final = 4
"""Results told at once, the newest."""
MAX_LISTED: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json")
_VERDICTS: Final = {"Passed": Verdict.OK, "Failed": Verdict.FAIL, "Skipped": Verdict.UNKNOWN}


class Inbox:
    """The folder. `look` from one thread, `findings` from any."""

    def __init__(
        self, spool: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._folder, self._now = spool / FOLDER, now
        self._seen: tuple[object, ...] = ()
        self._findings: tuple[Finding, ...] = ()

    def prepare(self) -> None:
        """Let the daemon's user write here, and nobody else. What fails costs the results."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            writers = trusted_uids() - {0, os.geteuid()}
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
        """What the newest tests found."""
        return self._findings

    def _read(self, names: list[str]) -> tuple[Finding, ...]:
        found: list[Results] = []
        for name in names:
            # One that is being written is renamed when it is whole.
            if _NAME.fullmatch(name) and (results := self._results(name)) is not None:
                found.append(results)
        found.sort(key=lambda results: results.finished, reverse=True)
        for results in found[MAX_FILES:]:
            self._delete(f"{results.id}.json")
        return tuple(f for results in found[:MAX_FILES] for f in findings_of(results))

    def _results(self, name: str) -> Results | None:
        try:
            results = decode(read_bounded(self._folder / name))
        except (OSError, NotResults) as error:
            log.warning("%s is no result of a test: %s", self._folder / name, error)
        else:
            young = abs(self._now() - (at_stamp(results.finished) or EARLIEST)) <= KEPT
            if f"{results.id}.json" == name and young:
                return results
        self._delete(name)
        return None

    def _delete(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


def read_bounded(path: Path) -> bytes:
    """A plain file of a trusted user that nobody else may write. Raises OSError, NotResults."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise NotResults("is no plain file")
        if about.st_uid not in trusted_uids() or about.st_mode & 0o022:
            raise NotResults(f"uid {about.st_uid} may have written it, or others may")
        return file.read(MAX_FILE + 1)


def findings_of(results: Results) -> tuple[Finding, ...]:
    """A finding for each test, and the one that closes them."""
    ended = at_stamp(results.finished) or EARLIEST
    began = at_stamp(results.started) or ended

    def one(check: str, verdict: Verdict, code: str, detail: str, evidence: str) -> Finding:
        return Finding(
            check, verdict, began, ended, results.id, code, detail, evidence, clears=Clears.GONE
        )

    return (
        *(
            one(
                TEST + r.test,
                _VERDICTS[r.status],
                "" if r.remedy == "none" else r.remedy,
                r.reason,
                msgspec.json.encode(r.figures).decode() if r.figures else "",
            )
            for r in results.results
        ),
        one(TEST_SUMMARY, Verdict.OK, results.level, f"{len(results.results)} tests", ""),
    )
