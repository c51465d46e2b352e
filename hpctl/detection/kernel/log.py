"""A batch of kernel records, sorted out: which lines matter, and what they amount to.

Most lines matter to nobody, and in a storm thousands a second must be sorted. A line is
looked at by the families that its first four characters choose, or one of a few later phrases, and
equal lines of a batch only once. Anchored: what user space gets into a kernel line (the name of
a process or a device) rarely stands first, and the lines in which it does are left out.

Lines that the kernel did not write itself are not believed: see `hpctl.detection.kmsg`.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.findings import fold
from hpctl.detection.kernel import (
    crash,
    file_servers,
    kernel_limits,
    lockup,
    nvidia_lines,
    out_of_memory,
    user_processes,
    xid,
)
from hpctl.detection.kernel.line import HEAD_CHARS, Family, Line, judge, of_a_process
from hpctl.detection.kmsg import KERNEL_FACILITY, Record
from hpctl.faults.health import Key, key
from hpctl.vocabulary.model import Finding, Verdict

LONGEST = 2048
"""Characters of a message that are judged: the kernel makes none longer (PRINTK_MESSAGE_MAX), and
no pattern is slow on as many."""
TRACE_FOLLOWS = timedelta(seconds=2)
"""A lockup's or an oops's registers are printed within this time after it."""

JobOf = Callable[[int, datetime], str]
Sighting = tuple[Finding, int | None]
Sight = Callable[[Record], Sighting | None]
Found = dict[tuple[Key, Verdict], Finding]


def _sight(family: Family) -> Sight:
    gather = family.gather

    def see(record: Record) -> Sighting | None:
        line = gather(record)
        return None if line is None else (judge(line), line.pid)

    return see


def _gpu(record: Record) -> Sighting | None:
    # Who wrote the line was asked before.
    error = xid.gather(record, accept_user=True)
    return None if error is None else (xid.judge(error), error.pid)


FAMILIES = (
    file_servers.BLOCK,
    kernel_limits.CARDS,
    file_servers.FS,
    kernel_limits.LIMITS,
    out_of_memory.MEMORY,
    nvidia_lines.NVIDIA,
    file_servers.NVME,
    out_of_memory.OOM,
    user_processes.PCIE,
    user_processes.PLATFORM,
    file_servers.REMOTE,
    # Last: what none of the others knows.
    user_processes.DRIVER,
)
_PROCESS = _sight(user_processes.PROCESS)


def _by_head() -> dict[str, tuple[Sight, ...]]:
    table: dict[str, tuple[Sight, ...]] = {"NVRM": (_gpu,), "nvid": (_gpu,)}
    for family in FAMILIES:
        for head in family.heads:
            table[head] = (*table.get(head, ()), _sight(family))
    return table


_BY_HEAD = _by_head()
_TROUBLE = frozenset((*lockup.LOCKUP_HEADS, *crash.CRASH_HEADS))
_HAS_TRACE = frozenset({"soft", "soft-long", "hard", "rcu", "oops"})
_AER, _BUS = user_processes.PCIE.later
(_APEI,) = out_of_memory.MEMORY.later
(_NRT,) = user_processes.NEURON.later
(_QUEUE,) = kernel_limits.LIMITS.later
_KILLER, _NCCL = user_processes.PROCESS.later
_BY_WORD = tuple(
    (word, _sight(family))
    for family in (
        user_processes.PCIE,
        out_of_memory.MEMORY,
        user_processes.NEURON,
        kernel_limits.LIMITS,
    )
    for word in family.later
)


class _Equal(Struct):
    """Equal lines of one batch: the first of them, when the last was, and how many."""

    first: Record
    last: datetime
    count: int = 1


class Kernel:
    """Sorts batches out, one after the other: a trace may be split between two of them."""

    def __init__(self, job_of: JobOf) -> None:
        self._job_of = job_of
        self._trouble: Line | None = None

    def findings(self, records: Iterable[Record], *, accept_user: bool = False) -> list[Finding]:
        """What a batch amounts to, equal findings folded, in the order of their first lines.

        OK stands for a line that ends what an earlier one began. `accept_user` believes lines
        that the kernel did not write: for tests on the real device.
        """
        equal: dict[str, _Equal] = {}
        found: Found = {}
        for record in records:
            if record.facility != KERNEL_FACILITY and not accept_user:
                continue
            text = record.text
            if len(text) > LONGEST:
                text = text[:LONGEST]
                record = replace(record, text=text)
            head = text[:HEAD_CHARS]
            if self._trouble is not None:
                self._trace(record, found)
            if head in _TROUBLE:
                self._stuck(record, found)
            # Spelled out: a storm runs through this line.
            elif (
                head in _BY_HEAD
                or _AER in text
                or _BUS in text
                or _APEI in text
                or _NRT in text
                or _QUEUE in text
                or _KILLER in text
                or _NCCL in text
            ):
                if (known := equal.get(text)) is None:
                    equal[text] = _Equal(record, record.at)
                else:
                    known.count += 1
                    known.last = max(known.last, record.at)
        for lines in equal.values():
            self._see(lines, found)
        return list(found.values())

    def _see(self, lines: _Equal, found: Found) -> None:
        text = lines.first.text
        if of_a_process(text):
            self._ask(_PROCESS, lines, found)
            return
        for word, family in _BY_WORD:
            if word in text and self._ask(family, lines, found):
                return
        for family in _BY_HEAD.get(text[:HEAD_CHARS], ()):
            if self._ask(family, lines, found):
                return

    def _ask(self, sight: Sight, lines: _Equal, found: Found) -> bool:
        if (sighting := sight(lines.first)) is None:
            return False
        finding, pid = sighting
        if lines.count > 1:
            finding = replace(finding, last=lines.last, count=finding.count * lines.count)
        self._keep(finding, pid, found)
        return True

    def _stuck(self, record: Record, found: Found) -> None:
        """A lockup or a crash: what comes next may say where it happened."""
        if of_a_process(record.text):
            return
        for gather in (lockup.gather_lockup, crash.gather_crash):
            if (line := gather(record)) is not None:
                self._keep(judge(line), line.pid, found)
                self._trouble = line if line.code in _HAS_TRACE else None
                return

    def _trace(self, record: Record, found: Found) -> None:
        trouble = self._trouble
        if trouble is None:
            return
        if record.at - trouble.at > TRACE_FOLLOWS or record.text.startswith("WARNING: "):
            self._trouble = None
        elif (line := lockup.in_driver(trouble, record)) is not None:
            self._trouble = None
            self._keep(judge(line), line.pid, found)

    def _keep(self, finding: Finding, pid: int | None, found: Found) -> None:
        if pid is not None and not finding.job:
            job = self._job_of(pid, finding.first)
            finding = replace(finding, job=job) if job else finding
        name = (key(finding), finding.verdict)
        known = found.get(name)
        found[name] = finding if known is None else fold(known, finding)
