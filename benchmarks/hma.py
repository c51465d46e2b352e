"""HyperPod's health agent beside hpctl: faults with its mark before, after and without our finding.

A real Slurm, the real agents and daemon, the emulated service, and the health agent as an actor.
Once in mode own with NodeRecovery None, where hpctl replaces; once in mode assist with Automatic,
where the service does. Several nodes are broken at a time, under jobs and idle. Each must be back
in service after one recovery and one replacement, its job on a healthy node, and none held.

The rival is the same fault in a second sandbox where no health agent marks anything, meanwhile.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct, field

from benchmarks.heal import EAGER, SITE
from benchmarks.lab import Lab, NotSeen
from benchmarks.table import Outcome, Row, median
from hpctl.engine.journal.state import EngineState
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.slurm_facts import SchedulerView

Mode = Literal["own", "assist"]
FAULTS = int(os.environ.get("BENCH_HMA_FAULTS", "100"))
SEED = int(os.environ.get("BENCH_HMA_SEED", "9"))
NODES, JOBS, AT_ONCE, CALM_NODES = 12, 6, 4, 4
LATENCY_S: Final = (0.3, 1.5)
REMEDY_AFTER_S: Final = 2.0
"""As on a real cluster the mark comes while hpctl waits for other nodes to report the same: there
that is a minute, and the health agent takes 5 to 30 s."""
BOOT_S: Final = 2.0
EVERY_CALM: Final = 4
"""One fault without a health agent for so many with one."""
HEALED_S: Final = 90.0
SLOWER_S: Final = 0.5
"""slurmctld's own scheduling pass comes once a second: less than that is no difference."""
KINDS: Final = ("before", "after", "alone")
SITE_HERE: Final[dict[str, Any]] = {
    **SITE,
    "budgets": {**SITE["budgets"], "open_min": NODES, "partition_min": NODES},
    "node": {**SITE["node"], "remedy_after_s": REMEDY_AFTER_S},
    "loop": {"reconcile_s": 2.0},
}


@dataclass(slots=True)
class Fault:
    """One broken node: how the mark comes, and what was seen of it. Times are the wall clock's."""

    kind: str
    node: str
    instance: str
    began: float
    jobs: dict[JobId, int]
    then: float = 0.0
    ran: float = 0.0
    healed: float = 0.0


class Account(Struct):
    """What one mode amounts to."""

    mode: Mode
    faults: list[Fault] = field(default_factory=list)
    calm: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    marked: int = 0
    seconds: float = 0.0

    def running(self, *kinds: str) -> list[float]:
        """Seconds from each fault under a job to the job running elsewhere."""
        there = self.faults if kinds else self.calm
        return [f.ran - f.began for f in there if f.ran and (not kinds or f.kind in kinds)]


def run() -> Outcome:
    """Both modes, one after the other."""
    outcome = Outcome("hma")
    for mode in ("own", "assist"):
        account = play(mode, FAULTS, SEED)
        outcome.rows += _rows(account)
        outcome.notes += _notes(account)
    return outcome


def play(mode: Mode, faults: int, seed: int) -> Account:
    """Break so many nodes with the health agent on, and some beside them without it."""
    tag = f"{time.time_ns() // 1_000_000 % 100_000_000:x}"
    recovery = "Automatic" if mode == "assist" else "None"
    given: dict[str, Any] = {
        "mode": mode,
        "daemon": True,
        "boot_time": BOOT_S,
        "node_recovery": recovery,
        "config": SITE_HERE,
        "slurm_conf": f"{EAGER}\n",
    }
    marked = Sandbox(f"hma-{tag}", nodes=NODES, hma=True, hma_latency=LATENCY_S, **given)
    calm = Sandbox(f"calm-{tag}", nodes=CALM_NODES, **given)
    account = Account(mode)
    with marked, calm:
        stage = _Stage(marked, account, account.faults, seed, JOBS)
        other = _Stage(calm, account, account.calm, seed, 1)
        began = time.monotonic()
        try:
            _together(stage, other, faults)
        except Exception as error:
            error.add_note(stage.lab.last_words())
            raise
        account.seconds = time.monotonic() - began
    return account


def _together(stage: _Stage, other: _Stage, faults: int) -> None:
    """Both sandboxes at once: what is measured has the same machine under it."""
    calm = -(-faults // EVERY_CALM)
    while True:
        kinds = Counter(f.kind for f in stage.faults)
        busy = stage.turn(min(KINDS, key=lambda kind: kinds[kind]), faults, AT_ONCE)
        busy |= other.turn("calm", calm, 1)
        if not busy:
            break
        time.sleep(0.05)
    stage.judge()


class _Stage:
    """One sandbox, its standing jobs, and the faults under way in it."""

    def __init__(
        self, sandbox: Sandbox, account: Account, faults: list[Fault], seed: int, jobs: int
    ) -> None:
        self.lab = Lab(sandbox)
        self.faults = faults
        self._open: list[Fault] = []
        self._state = EngineState()
        self._sandbox = sandbox
        self._account = account
        self._chance = random.Random(seed)
        self.lab.until(self.lab.complete, 60, "every agent was heard once")
        script = sandbox.state_dir / "one.sbatch"
        script.write_text(
            "#!/bin/sh\n#SBATCH --requeue --gres=gpu:8 --output=/dev/null\nsleep 100000\n"
        )
        self._jobs = [
            JobId(int(sandbox.run(["sbatch", "--parsable", str(script)]).stdout))
            for _ in range(jobs)
        ]
        self.lab.until(lambda: self._all_run(self.lab.view()), 30, "every job runs")

    def turn(self, kind: str, most: int, at_once: int) -> bool:
        """Break one more node where there is room, and look at those that are broken.

        Says whether any fault is still to come or to heal. Raises NotSeen for one that never does.
        """
        view, instances = self.lab.view(), self._instances()
        if len(self.faults) < most and len(self._open) < at_once:
            fault = self._break(kind, view, instances)
            if fault is not None:
                self._open.append(fault)
                self.faults.append(fault)
        for fault in self._open:
            self._look(fault, view, instances[fault.node])
        self._open = [f for f in self._open if not f.healed]
        return bool(self._open) or len(self.faults) < most

    def judge(self) -> None:
        """What has to hold at the end. The journal is read once: it is long by then."""
        self.lab.until(lambda: self._all_run(self.lab.view()), 60, "every job runs again")
        self.lab.until(lambda: not self.lab.state().open_nodes, 30, "every recovery ends")
        state, account = self.lab.state(), self._account
        by_node: Counter[str] = Counter()
        for rec in state.nodes.values():
            by_node[str(rec.opened_for.instance)] += 1
            account.marked += _was_marked(rec)
            if rec.phase is not NodeRecoveryPhase.RETURNED:
                account.problems.append(f"{rec.id} of {rec.node} is {rec.phase}: {rec.trail[-1]}")
        account.problems += [f"{t} is held: {h.why}" for t, h in state.holds.items()]
        for fault in account.faults:
            if by_node[fault.instance] != 1:
                count = by_node[fault.instance]
                account.problems.append(f"{fault.kind} {fault.node}: {count} recoveries")
        if account.marked < len(account.faults):
            unmarked = len(account.faults) - account.marked
            account.problems.append(f"{unmarked} recoveries that no mark came to")
        if sum(by_node.values()) != len(account.faults):
            account.problems.append(f"{sum(by_node.values())} recoveries in all")
        account.problems += self._replacements()
        view = self.lab.view()
        shut = [n.name for n in view.nodes.values() if not (n.in_service and n.responding)]
        account.problems += [f"{name} is out of service" for name in shut]

    def _replacements(self) -> list[str]:
        """Each instance replaced once by us in mode own, and none in mode assist."""
        taken: Counter[str] = Counter()
        for call in self._sandbox.calls("BatchReplaceClusterNodes"):
            taken.update((call["response"] or {}).get("Successful") or ())
        wanted = int(self._account.mode == "own")
        wrong = [f for f in self._account.faults if taken[f.instance] != wanted]
        return [f"{f.kind} {f.node}: {taken[f.instance]} replacements ordered" for f in wrong]

    def _all_run(self, view: SchedulerView) -> bool:
        return all(view.jobs[j].state == "RUNNING" for j in self._jobs if j in view.jobs)

    def _break(self, kind: str, view: SchedulerView, instances: dict[str, str]) -> Fault | None:
        """On a node under a job two times out of three, as long as one is there.

        None while no node is whole: in service, its instance there, its last recovery closed. A
        fault of a node that is treated still belongs to that recovery.
        """
        self.lab.follow(self._state)
        broken = {f.node for f in self._open} | set(map(str, self._state.open_nodes))
        fine = [
            n.name
            for n in view.nodes.values()
            if n.in_service and n.responding and instances.get(n.name) and n.name not in broken
        ]
        busy = {n for j in view.jobs.values() if j.running for n in j.nodes}
        loaded, idle = [n for n in fine if n in busy], [n for n in fine if n not in busy]
        if not fine:
            return None
        wanted = loaded if kind == "calm" or self._chance.random() < 0.67 else idle
        node = str(self._chance.choice(wanted or fine))
        jobs = {j.id: j.restarts for j in view.jobs.values() if node in j.nodes and j.running}
        fault = Fault(kind, node, instances[node], time.time(), jobs)
        if kind in ("before", "alone"):
            self._sandbox.inject(node, "hma-replace")
            fault.then = time.time() + self._chance.uniform(0.0, 1.0) if kind == "before" else 0.0
        else:
            self._sandbox.inject(node, "xid", code=79)
        return fault

    def _look(self, fault: Fault, view: SchedulerView, instance: str) -> None:
        """See how far a fault has come. Raises NotSeen where it is never healed."""
        another = instance not in ("", fault.instance)
        if fault.then and time.time() >= fault.then:
            fault.then = 0.0
            if not self._break_marked(fault, instance):
                fault.kind = "alone"
        if fault.jobs and not fault.ran:
            known = [(view.jobs[j], runs) for j, runs in fault.jobs.items()]
            if all(job.restarts > runs and job.state == "RUNNING" for job, runs in known):
                fault.ran = time.time()
        moved = bool(fault.ran) or not fault.jobs
        if fault.kind == "calm" and self._account.mode == "assist" and moved and not fault.then:
            # Nobody has notified the service, which has to act for the node to come back.
            fault.then = float("inf")
            self._sandbox.inject_api("second-actor", node=fault.node)
        node = view.nodes[NodeName(fault.node)]
        waits = 0 < fault.then < float("inf")
        if another and moved and not waits and node.in_service and node.responding:
            fault.healed = time.time()
        elif time.time() > fault.began + HEALED_S:
            raise NotSeen(f"{fault} is {node} after {HEALED_S:g} s")

    def _break_marked(self, fault: Fault, instance: str) -> bool:
        """Our own finding after the mark; false where the marked instance is gone by then."""
        if instance != fault.instance:  # it would be a new fault
            return False
        try:
            self._sandbox.inject(fault.node, "xid", code=79)
        except HpctlError:  # between two instances: the sandbox has no such node
            return False
        return True

    def _instances(self) -> dict[str, str]:
        rows = self._sandbox.status()["nodes"]
        return {str(n["node"]): str(n.get("instance_id", "")) for n in rows}


def _was_marked(rec: NodeRecovery) -> bool:
    signals = {t.signal for t in rec.trail}
    return bool(signals & {"marked", "replace_asked"} or {f.check for f in rec.findings} & {"hma"})


def _rows(account: Account) -> list[Row]:
    off = median(account.running())
    healed = [f.healed - f.began for f in account.faults]
    mode = account.mode
    return [
        Row(f"{mode}: problems in {len(account.faults)} faults", len(account.problems), "", bar=0),
        Row(
            f"{mode}: Xid to job running, marked meanwhile, median",
            median(account.running("after")),
            "s",
            "no health agent",
            off,
            off + SLOWER_S,
        ),
        Row(
            f"{mode}: first of mark and Xid to job running, median",
            median(account.running(*KINDS)),
            "s",
            "no health agent",
            off,
            off + SLOWER_S,
        ),
        Row(f"{mode}: fault to node in service, median", median(healed), "s"),
        Row(f"{mode}: fault to node in service, longest", max(healed), "s", bar=HEALED_S),
    ]


def _notes(account: Account) -> list[str]:
    kinds = Counter(f.kind for f in account.faults)
    under = {kind: account.running(kind) for kind in KINDS}
    medians = ", ".join(f"{k} {median(v):.2f} s of {len(v)}" for k, v in under.items() if v)
    return [
        f"mode {account.mode}: {dict(kinds)}, {account.marked} marks in recoveries, seed {SEED},"
        f" {account.seconds:.0f} s; beside them {len(account.calm)} without a health agent",
        f"mode {account.mode}, job running again, medians: {medians}",
        *account.problems[:20],
    ]
