"""What must hold after each fault of hpctl's own parts, looked up in the world and the journal."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from msgspec import Struct, field

from hpctl.engine.adapters import open_journal_reader
from hpctl.engine.journal.check import check_journal_at_url
from hpctl.engine.journal.events import Event, StepStarted
from hpctl.engine.journal.state import EngineState
from hpctl.sandbox.proctree import (
    OWNED,
    list_pids,
    read_process_environment,
    read_process_start_time,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.recovery import StepKind
from tests.daemon.chaos import REPLACE, Chaos
from tests.soak.status import Struck
from tests.soak.surroundings import arguments_of, daemon_pid

REBOOT = "BatchRebootClusterNodes"
LEADS_S = 90.0
"""Within so long after a fault the daemon leads again: the pauses of a unit and of slurmctld."""
ORPHAN_S = 15.0
"""A child of a daemon that was killed ends within this many seconds."""
CROWDED = 4.0
"""Processes for each processor from which on the bounds above are counted more slowly: a start of
the daemon takes a second of a processor, and on a machine that others use as well a minute."""
PROVEN = ("xid-79", "xid-48", "xid-154", "hma-reboot", "hma-replace")
"""Faults that only another boot ends."""
REMEDIES = frozenset({StepKind.REPLACE, StepKind.REBOOT, StepKind.RESET})


class MachineClock:
    """Seconds in which the machine could have worked: on a crowded one they pass more slowly."""

    def __init__(self) -> None:
        self._looked, self._passed = time.monotonic(), 0.0

    def read(self) -> float:
        """Return the seconds so far. Call it often: the load is that of the last minute."""
        now = time.monotonic()
        crowd = os.getloadavg()[0] / (os.cpu_count() or 1) / CROWDED
        self._passed += (now - self._looked) / max(1.0, crowd)
        self._looked = now
        return self._passed


class _Waiting(Struct):
    """A fault that is over, after which the daemon has to lead. `beat`: the lease's counter."""

    line: str
    since: float
    beat: int = -1


class _Sick(Struct):
    """A node with a proven fault. `boot`: the one that has it."""

    node: str
    boot: str
    line: str
    closed: bool = False


class Invariants(Struct):
    """Looks at the cluster all the while, and keeps what was broken, a line each."""

    live: Chaos
    remedies_most: int
    """How many remedies may be under way at once."""
    broken: list[str] = field(default_factory=list)
    checks: int = 0
    """How many times all that the journal says was checked."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _sick: dict[str, _Sick] = field(default_factory=dict)
    _strays: dict[int, float] = field(default_factory=dict)
    _clock: MachineClock = field(default_factory=MachineClock)

    def watch(self, fault: Struck) -> None:
        """From here on a proven fault of a node has to be gone before the node serves again."""
        if fault.kind not in PROVEN:
            return
        boot = self.live.sandbox.node_dir(fault.subject) / "boot_id"
        self._sick[fault.subject] = _Sick(fault.subject, boot.read_text(), fault.line)

    def after(self, line: str) -> None:
        """A fault is over: the daemon has to lead soon, and the journal to be whole."""
        self._waiting.append(_Waiting(line, self._clock.read()))

    @property
    def settled(self) -> bool:
        """Whether the daemon leads again after every fault so far."""
        return not self._waiting

    def look(self) -> None:
        """Look at the daemon, at its children and at the sick nodes."""
        self._look_at_daemon()
        self._look_at_children()
        self._look_at_nodes()

    def _look_at_daemon(self) -> None:
        """Whether the daemon that runs has renewed its lease since each fault was over."""
        if not self._waiting:
            return
        try:
            lease = self.live.daemon()
        except HpctlError:
            return
        alive = lease.pid == daemon_pid(self.live)
        left = []
        for each in self._waiting:
            if alive and 0 <= each.beat < lease.beat:
                self._check_journal(each.line)
                continue
            if not alive:
                each.beat = -1
            elif each.beat < 0:
                each.beat = lease.beat
            if self._clock.read() - each.since > LEADS_S:
                self.broken.append(f"{each.line}: no daemon leads after {LEADS_S:g} s: {lease}")
                continue
            left.append(each)
        self._waiting = left

    def _look_at_children(self) -> None:
        """Whether a process of a daemon outlives it."""
        spec, now = self.live.sandbox.spec, self._clock.read()
        daemon = daemon_pid(self.live)
        strays = {}
        for pid in list_pids():
            words = arguments_of(pid)
            child = b"hpctl.daemon.intake" in words or (b"hpctl" in words and b"page" in words)
            if (
                not child
                or read_process_environment(pid).get(OWNED) != spec.id
                or _ancestor(pid, daemon)
            ):
                continue
            strays[pid] = self._strays.get(pid, now)
            if now - strays[pid] > ORPHAN_S and read_process_start_time(pid):
                self.broken.append(f"process {pid} outlives its daemon: {words}")
                strays[pid] = float("inf")
        self._strays = strays

    def _look_at_nodes(self) -> None:
        """Whether a node serves on the boot on which its fault was proven."""
        try:
            nodes = self.live.scheduler.view().nodes
        except HpctlError:
            return
        for sick in list(self._sick.values()):
            boot = self.live.sandbox.node_dir(sick.node) / "boot_id"
            node = nodes.get(sick.node)  # type: ignore[call-overload]
            if not boot.exists() or boot.read_text() != sick.boot:
                del self._sick[sick.node]
            elif node is not None and not node.in_service:
                sick.closed = True
            elif node is not None and sick.closed:
                self.broken.append(f"{sick.line}: {sick.node} serves again on the same boot")
                del self._sick[sick.node]

    def _check_journal(self, line: str) -> None:
        """Read the whole journal back, and what it says of effects and budgets."""
        self.checks += 1
        found = check_journal_at_url(self.live.config.url, lambda _done, _total: None)
        if found.problem is not None:
            self.broken.append(f"{line}: the journal is damaged: {found.problem}")
        with closing(open_journal_reader(self.live.config)) as store:
            events = list(store.events())
        wrong = [*repeated_steps(events), *over_budget(events, self.remedies_most)]
        self.broken += [f"{line}: {each}" for each in wrong if each not in "\n".join(self.broken)]

    def finish(self) -> None:
        """Check what the whole run amounts to, once every recovery should have ended."""
        self._check_journal("at the end")
        state = self.live.state()
        self.broken += [
            f"{r} is forgotten: still open" for r in (*state.open_nodes, *state.open_jobs)
        ]
        self.broken += repeated_orders(self.live)


def _ancestor(pid: int, wanted: int) -> bool:
    """Whether a process is below another one."""
    while pid > 1:
        if pid == wanted:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has ended
    return False


def repeated_steps(events: Sequence[Event]) -> list[str]:
    """Return the steps that were begun twice under one number."""
    steps = [e for e in events if isinstance(e, StepStarted)]
    keys = Counter((s.recovery, s.step, s.attempt, s.target) for s in steps)
    return [f"step begun {count} times: {key}" for key, count in keys.items() if count > 1]


def over_budget(events: Sequence[Event], most: int) -> list[str]:
    """Return the remedies with whose start more than `most` were under way, in the order of the
    journal. What an operator orders is not counted."""
    state, begun = EngineState(), set()
    wrong = []
    for event in events:
        state.fold(event)
        if not isinstance(event, StepStarted) or event.step not in REMEDIES:
            continue
        begun.add(event.recovery)
        known = [state.nodes[r] for r in begun if r in state.nodes]
        busy = [r.id for r in known if not r.ended and not r.by]
        if len(busy) > most and event.recovery in busy:
            wrong.append(f"{len(busy)} remedies at once: {sorted(busy)}")
    return wrong


def repeated_orders(live: Chaos) -> list[str]:
    """Return the instances that the cloud was made to reboot or replace more often than recoveries
    have ordered it."""
    wrong = []
    for operation, step in ((REPLACE, StepKind.REPLACE), (REBOOT, StepKind.REBOOT)):
        taken: Counter[str] = Counter()
        for call in live.sandbox.calls(operation):
            taken.update(_accepted(call))
        wanted = Counter(
            target
            for recovery in live.node_recoveries()
            for target in {s.target for s in recovery.steps if s.kind is step}
        )
        wrong += [
            f"{operation} of {instance}: {count} times for {wanted[instance]} recoveries"
            for instance, count in taken.items()
            if count > wanted[instance]
        ]
    return wrong


def _accepted(call: dict[str, Any]) -> list[str]:
    """Return the instances that the cloud took an order for, its reply lost or not."""
    return list((call["response"] or {}).get("Successful") or ())
