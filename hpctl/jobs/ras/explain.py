"""A hang that the notes of the ranks show, explained by what NCCL says of it.

The first look is taken when half of the explained silence is over, so that at the verdict the two
looks are far enough apart and nobody waits for them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hpctl.core.model import NodeName
from hpctl.core.trouble import EVIDENCE_CHARS, Trouble
from hpctl.jobs.progress.run_progress import Rank, RunProgress
from hpctl.jobs.ras.client import Address, query
from hpctl.jobs.ras.judge import (
    APART_S,
    HangCause,
    RasFinding,
    RasSample,
    culprits,
    device,
    nccl_name,
)
from hpctl.jobs.ras.report import Communicator, RasError, RasMember, RasReport

LAST_LOOK_S = 12.0
"""What the look at the verdict may take: RAS itself ends a query after 10 s."""

Query = Callable[[Address, float], RasReport]


def _ask(where: Address, deadline_s: float) -> RasReport:
    return query(where, deadline_s=deadline_s)


class Inquiry:
    """Looks at one job's RAS service while its ranks are silent. No method raises."""

    def __init__(
        self,
        where: Address,
        hosts: Mapping[str, NodeName] | None = None,
        *,
        ask: Query = _ask,
        clock: Callable[[], float] = time.monotonic,
        apart_s: float = APART_S,
    ) -> None:
        """`where`: on this node. `hosts`: addresses, as digits, to node names (`addresses`)."""
        self._where, self._hosts, self._apart = where, dict(hosts or {}), apart_s
        self._ask, self._clock = ask, clock
        self._moved: float | None = None
        self._first: RasSample | None = None
        self._second: RasSample | None = None
        self._error = ""
        self._thread: threading.Thread | None = None

    def watch(self, progress: RunProgress, now: float) -> None:
        """Call it every second or so. Returns at once: a look is taken in a thread of its own."""
        if self._looking:
            return
        if self._moved != progress.moved:
            self._moved, self._first, self._second, self._error = progress.moved, None, None, ""
        if not progress.suspect(now) or self._error:
            return
        if self._first is None or now - self._newest(self._first).at >= self._apart:
            self._thread = threading.Thread(target=self._look, name="ras", daemon=True)
            self._thread.start()

    def explain(self, progress: RunProgress, trouble: Trouble) -> Trouble | None:
        """The hang `trouble` of `progress` with a name to it, None where NCCL shows there is none.

        Waits until the two looks are `APART_S` apart, but never longer than half of the silence
        that the policy calls a hang: who asks for a short one gets a less certain answer. Without
        a RAS service it answers at once, with the trouble as it is.
        """
        self._settle()
        if self._moved != progress.moved:
            self._moved, self._first, self._second, self._error = progress.moved, None, None, ""
        if self._first is None and not self._error:
            self._look()
        if self._first is not None and self._second is None:
            apart = min(self._apart, progress.bound(self._clock()) / 2)
            time.sleep(max(0.0, self._first.at + apart - self._clock()))
            self._look()
        if self._first is None or self._second is None:
            return replace(trouble, evidence=_evidence(trouble, f"NCCL RAS: {self._error}"))
        finding = culprits(self._first, self._second, self._namer(progress))
        if finding.cause is HangCause.MOVING:
            return self._moving(progress, trouble, finding)
        return self._named(progress, trouble, finding, self._second.report)

    @property
    def _looking(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _settle(self) -> None:
        if self._thread is not None:
            self._thread.join(timeout=LAST_LOOK_S)
            self._thread = None

    def _newest(self, first: RasSample) -> RasSample:
        return self._second or first

    def _look(self) -> None:
        try:
            sample = RasSample(self._ask(self._where, LAST_LOOK_S), self._clock())
        except RasError as error:
            self._error = str(error)
            return
        if self._first is None:
            self._first = sample
        else:
            self._second = sample

    def _moving(
        self, progress: RunProgress, trouble: Trouble, finding: RasFinding
    ) -> Trouble | None:
        """No hang, unless the run has not made a step for as long as its start may take."""
        now = self._clock()
        if now - progress.stepped_at > progress.policy.hang_start_s:
            why = f"{trouble.why}; {finding.why}, but without steps"
            return replace(trouble, why=why, signature="hang: collectives without steps")
        progress.alive(now)
        return None

    def _named(
        self, progress: RunProgress, trouble: Trouble, finding: RasFinding, report: RasReport
    ) -> Trouble:
        answer = f"NCCL {report.nccl_version} RAS:\n{report.text}"
        if finding.cause in (HangCause.NOTHING, HangCause.EQUAL):
            # NCCL has nobody to name; the ranks' own notes may.
            why = f"{trouble.why}; {finding.why}"
            return replace(trouble, why=why, evidence=_evidence(trouble, answer))
        found = [(m, self._rank(progress, m, finding.communicator)) for m in finding.members]
        nodes = {self._node(member, rank) for member, rank in found} - {None}
        only = found[0] if len(found) == 1 else None
        unsure = "" if finding.sure else " (two looks only a short time apart)"
        return replace(
            trouble,
            why=f"{finding.why}{unsure}; {progress.silence(self._clock())}",
            signature=f"hang: {finding.cause}",
            node=nodes.pop() if len(nodes) == 1 else None,
            rank=only[1].rank if only and only[1] else None,
            device=device(only[0]) if only else "",
            evidence=_evidence(trouble, answer),
        )

    def _namer(self, progress: RunProgress) -> Callable[[RasMember, Communicator | None], str]:
        """Names as the job has them, where the job knows the process."""

        def name(member: RasMember, communicator: Communicator | None) -> str:
            rank = self._rank(progress, member, communicator)
            node = self._node(member, rank)
            if rank is None:
                own = nccl_name(member)
                return f"{own} on {node}" if node else own
            gpu = f" ({device(member)})" if device(member) else ""
            return f"rank {rank.rank}{f' on {node}' if node else ''}{gpu}"

        return name

    def _node(self, member: RasMember, rank: Rank | None) -> NodeName | None:
        return (rank.node if rank else None) or self._hosts.get(member.host)

    def _rank(
        self, progress: RunProgress, member: RasMember, communicator: Communicator | None
    ) -> Rank | None:
        """The rank that the job itself knows this process by."""
        same = [rank for rank in progress.ranks.values() if rank.pid and rank.pid == member.pid]
        node = self._hosts.get(member.host)
        if len(same) > 1 and node:
            same = [rank for rank in same if rank.node == node]
        if len(same) == 1:
            return same[0]
        size = communicator.size if communicator else None
        if size and size == (progress.expected or len(progress.ranks)) and member.rank >= 0:
            # A communicator of all ranks numbers them as the job does.
            return progress.ranks.get(member.rank) or Rank(member.rank, 0.0, node)
        return None


def addresses(nodes: Iterable[str]) -> dict[str, NodeName]:
    """The addresses, as digits, of nodes whose names resolve. Ask early: a resolver may wait."""
    found: dict[str, NodeName] = {}
    for node in nodes:
        try:
            told = socket.getaddrinfo(node, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        found.update((str(one[4][0]), NodeName(node)) for one in told)
    return found


def _evidence(trouble: Trouble, more: str) -> str:
    return "\n".join(part for part in (trouble.evidence, more) if part)[:EVIDENCE_CHARS]
