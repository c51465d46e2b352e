"""The stacks of a job's ranks, read when the head node asks, and told as findings.

A process of the lowest priority reads them, with the agent's own rights: the ranks' memory may be
read by who has CAP_SYS_PTRACE whatever Yama says, and nobody is stopped for it. It takes processes
of the job's owner alone.
"""

import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime

from hpctl.core.compat import SAFE_PATH, UTC
from hpctl.core.model import Clears, Finding, NodeName, Verdict
from hpctl.core.stacks import CHECK, StackAsk

log = logging.getLogger(__name__)

READ_S, TOLD_S = 30.0, 120.0
"""How long the reading may take, and for how long its findings are told. In seconds."""
MOST = 64
"""Findings of one answer, of two lines each: an eighth of what a report holds."""


class StackReader:
    """Reads stacks on a thread, one ask at a time. `changed`: there is something to tell."""

    def __init__(self, node: NodeName, changed: Callable[[], None]) -> None:
        self._node, self._changed = node, changed
        self._lock = threading.Lock()
        self._asked = ""
        self._busy = False
        self._told: tuple[Finding, ...] = ()
        self._until = 0.0

    def ask(self, ask: StackAsk) -> None:
        """Read for this ask, unless that was done or is under way. Waits for nothing."""
        with self._lock:
            if self._busy or ask.id == self._asked:
                return
            self._asked, self._busy = ask.id, True
        threading.Thread(target=self._read, args=(ask,), name="stacks", daemon=True).start()

    def findings(self) -> tuple[Finding, ...]:
        """The last answer, for a while. From any thread."""
        with self._lock:
            return self._told if time.monotonic() < self._until else ()

    def _read(self, ask: StackAsk) -> None:
        options = [f"--job={ask.job}", f"--uid={ask.uid}", f"--node={self._node}", "--no-native"]
        lines: list[str] = []
        try:
            with tempfile.TemporaryFile() as out:
                subprocess.run(
                    ["nice", "-n", "19", sys.executable, *SAFE_PATH, "hpctl.jobs.stacks", *options],
                    stdin=subprocess.DEVNULL, stdout=out, timeout=READ_S, check=False,
                )  # fmt: skip
                out.seek(0)
                lines = out.read(MOST * 2048).decode(errors="replace").splitlines()
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the stacks of job %s could not be read: %s", ask.job, error)
        now = datetime.now(UTC)
        told = tuple(
            Finding(
                CHECK, Verdict.OK, now, now, str(at // 2), ask.id, clears=Clears.GONE,
                evidence="\n".join(lines[at : at + 2]), job=str(ask.job),
            )
            for at in range(0, min(len(lines), 2 * MOST), 2)
        )  # fmt: skip
        with self._lock:
            self._told, self._until, self._busy = told, time.monotonic() + TOLD_S, False
        self._changed()
