"""`hpctl run --torch`: the step is a launcher a node, which restarts dead ranks by itself.

What it did is in the account that the first node's launcher writes: each restart is reported and
counted like any other, and what ended the step is known better there than from an exit code.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import Trouble
from hpctl.errors import HpctlError, Unavailable
from hpctl.jobs import elastic
from hpctl.jobs.elastic import account
from hpctl.jobs.elastic.tell import tell
from hpctl.jobs.run.srun_options import SrunCommand

LOOK_S = 2.0
"""How often the account is read."""
ASK_S = 5.0
"""How long the launcher has to answer that it restarts the ranks."""


@dataclass(frozen=True, slots=True)
class Torch:
    """`nproc` ranks a node (0: as many as GPUs), restarted `max_restarts` times an hour."""

    nproc: int = 0
    max_restarts: int = 3


def wrapped(
    srun: SrunCommand, torch: Torch, policy: RunPolicy, path: Path | None
) -> tuple[SrunCommand, Mapping[str, str]]:
    """The srun command with a launcher before the command, and what its environment needs."""
    codes = (*policy.final_exit_codes, *policy.corruption_exit_codes)
    command = elastic.command(
        srun.command,
        torch.nproc,
        max_restarts=torch.max_restarts,
        final_exit_codes=codes,
    )
    # One task a node would else be bound to one task's share of its cores.
    bind = () if "cpu-bind" in srun.given else ("--cpu-bind=none",)
    srun = replace(srun, options=(*srun.options, *bind), command=tuple(command))
    return srun, elastic.environment(path)


@dataclass
class AccountReader:
    """Reads along in one step's account. Never raises: without one the exit code must do."""

    path: Path | None
    secret: str = field(default="", repr=False)
    """What the launchers of this step know."""
    _reported: set[int] = field(default_factory=set)
    _next: float = 0.0
    _generation: int = 0
    _turned: bool = False

    def ask(self, host: str, why: str) -> str:
        """Have the launcher on the step's first node, `host`, restart all ranks. Why it does not;
        empty where it does."""
        record = self._read()
        if record is None or record.verdict != "running" or not record.generations:
            return "the launcher has not begun, or has ended"
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        request = (host, record.run_id, self.secret, f"restart: {why}")
        threading.Thread(target=lambda: answers.put(_answer(*request)), daemon=True).start()
        try:
            answer = answers.get(timeout=ASK_S)
        except queue.Empty:
            answer = f"the launcher on {host} did not answer within {ASK_S:g} s"
        if answer != "ok":
            return answer.removeprefix("no: ")
        # It was reported already why that generation ended.
        self._reported.add(record.generations[-1].number)
        return ""

    def turned(self) -> bool:
        """Whether new ranks have been started in the step since this was asked last."""
        turned, self._turned = self._turned, False
        return turned

    def restarts(self) -> list[Trouble]:
        """The troubles that the launcher has answered with a restart since the last look."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + LOOK_S
        record = self._read()
        if record is None:
            return []
        running = max((each.number for each in record.generations), default=0)
        self._turned = self._turned or running > self._generation
        self._generation = running
        found = []
        for each in record.generations:
            if each.number < running and each.number not in self._reported:
                self._reported.add(each.number)
                trouble = account.trouble(each)
                found += [trouble] if trouble is not None else []
        return found

    def ended(self) -> Trouble | None:
        """What ended the last generation, where it ended badly."""
        record = self._read()
        return account.trouble(record.generations[-1]) if record and record.generations else None

    def _read(self) -> account.AccountRecord | None:
        if self.path is None:
            return None
        try:
            return account.read(self.path)
        except (OSError, HpctlError):
            return None


def _answer(host: str, run_id: str, secret: str, line: str) -> str:
    try:
        return tell(host, run_id, secret, line)
    except Unavailable as error:
        return str(error)
