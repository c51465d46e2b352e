"""The kernel's log as raw records, and what hpctl makes of them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context

MOST_RECORDS = 50_000


class KernelLines(threading.Thread):
    """Reads /dev/kmsg from its beginning, or a file in its format, as long as the process lives.

    `trouble` says why nothing can be read; `lost` counts records that were overwritten.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self.trouble = ""
        self.lost = 0
        self._place = place
        self._records: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._records)

    def since(self, number: int) -> list[str]:
        """Return the records from this number on."""
        return [record for _, record in self._records[number:]]

    def timed_since(self, number: int, began: float) -> list[tuple[float, str]]:
        """Return the same with the seconds from `began` (monotonic) until each was read."""
        return [(round(at - began, 3), record) for at, record in self._records[number:]]

    def wait_until_quiet(self, quiet_s: float = 0.5, limit_s: float = 2.0) -> None:
        """Wait until no record has come for `quiet_s`."""
        end = time.monotonic() + limit_s
        count, since = len(self), time.monotonic()
        while time.monotonic() < end and time.monotonic() - since < quiet_s:
            if len(self) != count:
                count, since = len(self), time.monotonic()
            time.sleep(0.02)

    def run(self) -> None:
        """Read until the process ends."""
        try:
            descriptor = os.open(self._place, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self.trouble = str(error)
            return
        is_file = self._place.is_file()
        rest = b""
        while len(self._records) < MOST_RECORDS:
            try:
                raw = os.read(descriptor, 8192)
            except BlockingIOError:
                raw = b""
            except BrokenPipeError:
                # The kernel has overwritten what comes next (dev-kmsg of its documentation).
                self.lost += 1
                continue
            except OSError as error:
                self.trouble = str(error)
                return
            if not raw:
                time.sleep(0.02)
                continue
            lines = [raw]
            if is_file:
                *lines, rest = (rest + raw).split(b"\n")
            now = time.monotonic()
            texts = [line.decode(errors="replace").rstrip("\n") for line in lines if line]
            self._records += [(now, text) for text in texts]


def head(record: str) -> str:
    """Return a record's first line: what follows are the keys of the device."""
    return record.partition("\n")[0]


def judge(records: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the agent makes of each record by itself."""
    import msgspec

    from hpctl.detection.kernel.log import KernelLogAnalyzer
    from hpctl.detection.kmsg import parse_kmsg_record
    from hpctl.detection.slurm_jobs import ProcessJobFinder

    kernel = KernelLogAnalyzer(ProcessJobFinder().of)
    judged: list[dict[str, Any]] = []
    for raw in records:
        record = parse_kmsg_record(raw.encode())
        findings = [] if record is None else kernel.findings([record])
        plain = [msgspec.to_builtins(finding) for finding in findings]
        judged.append(
            {
                "raw": head(raw),
                "findings": [
                    {key: value for key, value in finding.items() if value not in ("", None)}
                    for finding in plain
                ],
            }
        )
    return judged


def triage(context: Context, records: Sequence[str], label: str) -> list[dict[str, Any]]:
    """Return what `hpctl agent triage` says of each line that means something."""
    file = context.scratch / f"triage-{label}.txt"
    file.write_text("".join(f"{head(record)}\n" for record in records))
    done = context.hpctl("agent", "triage", str(file), "--json", limit_s=20)
    views = []
    for line in done.out.splitlines():
        with suppress(ValueError):
            view = json.loads(line)
            keys = ("check", "code", "device", "rule", "meaning", "condition", "remedy", "text")
            views.append({key: view.get(key) for key in keys})
    return views
