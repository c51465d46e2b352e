"""The soak: jobs one after the other in every shape, faults all the while, and the account."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpctl.toolkit.errors import HpctlError
from tests.daemon.chaos import ROOMY, Chaos, cluster, merged
from tests.engine.journal.servers import MariaDB
from tests.soak.faults import FAULTS
from tests.soak.invariants import Invariants
from tests.soak.jobs import BESIDE, SHAPES, Job, Shape, ran_twice, submit, undisturbed
from tests.soak.scene import PROVE_S, Fault, Scene, Surroundings
from tests.soak.status import NAMED_S, StatusWatch, Struck, Verdict
from tests.soak.surroundings import daemon_pid, small_disk
from tests.stubs.clock import build as build_clock

RETRIED = ("crash", "killed", "hang", "network", "no_progress", "storage")
SITE = merged(
    ROOMY,
    {
        # As many faults in a minute as in a month: the budgets have tests of their own.
        "job": {"prove_s": PROVE_S, "step_retry_s": 1.0, "max_restarts": 100_000},
        "ages": {"silent_s": 12.0},
        "catalogue": {
            "xid-79": {"ladder": ["replace"]},
            "xid-48": {"ladder": ["reboot"]},
            "agent-silent": {"settle_s": 15.0},
            "slurm-down": {"settle_s": 5.0},
        },
        "run_policy": {
            "restarts": 100_000,
            "without_progress": 1000,
            "same_signature": 1000,
            "backoff": {"first_s": 1.0, "factor": 1.0, "cap_s": 1.0},
            # Nobody is there to release a held job: each is tried again and again.
            "on": {kind: {"ladder": ["step", "requeue"]} for kind in RETRIED},
            "hang_floor_s": 5.0,
            "hang_start_s": 30.0,
        },
    },
)
SLURM = "SlurmdTimeout=10\nMaxArraySize=100001\nMaxJobCount=250000\n"
REMEDIES_MOST = 3
OWN_SITE: dict[str, Any] = {
    "budgets": {"open_min": REMEDIES_MOST, "partition_min": REMEDIES_MOST, "drain_min": 8},
    # Longer than a reboot takes here: an order in doubt is not repeated while it may yet be seen.
    "node": {"doubt_window_s": 30.0},
}
"""Where hpctl's own parts are broken, the budget of remedies has to hold as well."""
HMA: dict[str, Any] = {"hma": True, "hma_latency": (1.0, 8.0)}
"""HyperPod's health agents are on; beside what they see, FAULTS has them mark nodes wrongly."""
Say = Callable[[str], None]
MARKING = ("hma-reboot", "hma-replace", "xid-79", "xid-48", "xid-154")
MARKED_S = 10.0
"""Faults that HyperPod's health agent marks a node for, and within how long (HMA)."""
START_S = 60.0
"""A daemon that starts has begun to lead within so many seconds, or it ends."""
CALM_S = 240.0
"""How long the jobs may take to end once nothing is broken any more."""


class Account(Struct):
    """What a soak amounts to."""

    seed: int
    minutes: float
    jobs: list[Job] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    twice: list[str] = field(default_factory=list)
    other_weights: list[str] = field(default_factory=list)
    handed_over: list[str] = field(default_factory=list)
    status: Verdict = field(default_factory=lambda: Verdict([]))
    broken: list[str] = field(default_factory=list)
    """Invariants that did not hold, a line each."""
    checks: int = 0
    """How many times the journal was checked as a whole."""
    restarts: list[str] = field(default_factory=list)
    """How the daemon ended though no fault killed it."""

    @property
    def effective(self) -> float:
        """Effective training time ratio: useful seconds of all jobs over those they were there."""
        there = sum(job.ended - job.submitted for job in self.jobs)
        return sum(job.useful_s for job in self.jobs) / there if there else 0.0

    def cost(self, shape: Shape) -> float:
        """Steps that a fault costs jobs of a shape, on average over their restarts."""
        lost = [steps for job in self.jobs if job.shape == shape for steps in job.lost]
        return sum(lost) / len(lost) if lost else 0.0

    @property
    def fast_ratio(self) -> float:
        """What a fault costs with fast saves, by what it costs without. 0 where nothing was lost
        without them, or they were not on."""
        without, beside = (self.cost(shape) for shape in BESIDE)
        return beside / without if without else 0.0

    def lines(self) -> list[str]:
        """The account for a person."""
        attempts = sum(job.attempts for job in self.jobs)
        lost = sum(sum(job.lost) for job in self.jobs)
        costs = [
            f"soak: {s.name}: {self.cost(s):.1f} steps lost a restart,"
            f" of {sum(len(j.lost) for j in self.jobs if j.shape == s)}"
            for s in sorted({job.shape for job in self.jobs}, key=lambda s: s.name)
        ]
        faults = ", ".join(f"{name} {n}" for name, n in sorted(self.struck.items()))
        return [
            f"soak: seed {self.seed}, {self.minutes:g} min,"
            f" {sum(self.struck.values())} faults ({faults})",
            f"soak: {len(self.jobs)} jobs, all complete; {attempts} attempts; {lost} steps trained"
            f" again; ran twice at once: {len(self.twice)};"
            f" other weights than undisturbed: {len(self.other_weights)}",
            f"soak: effective training time ratio {self.effective:.3f}"
            f" at one fault in {self.minutes * 60 / max(1, sum(self.struck.values())):.1f} s",
            *costs,
            *(f"soak: handed over to a person: {line}" for line in self.handed_over),
            *(f"soak: the daemon was started again: {line}" for line in self.restarts),
            *(f"soak: BROKEN: {line}" for line in self.broken),
            f"soak: invariants: {len(self.broken)} broken in"
            f" {sum(self.struck.values())} faults, journal checked {self.checks} times",
            f"soak: what `hpctl status` named; missed: {len(self.status.misses)}",
            *self.status.text(),
        ]


@dataclass(frozen=True)
class Plan:
    """What a soak does.

    `steps` is each job's length; `pause_s` the least and the most seconds between two faults;
    `named_s` is how soon `status` must name a fault. `own` are the faults of hpctl's own parts,
    which take turns with `faults`, the others; `most` of them end the soak before its time.
    `away_s` is how long a part of the head may be away, and `mariadb` keeps the journal there.
    """

    minutes: float
    seed: int
    steps: int = 300
    pause_s: tuple[float, float] = (4.0, 16.0)
    named_s: float = NAMED_S
    shapes: Sequence[Shape] = SHAPES
    faults: Sequence[Fault] = FAULTS
    own: Sequence[Fault] = ()
    most: int = 1_000_000
    away_s: float = 20.0
    mariadb: bool = False


@contextlib.contextmanager
def _site(plan: Plan) -> Iterator[tuple[Chaos, Surroundings]]:
    """A cluster whose surroundings can be broken as the plan wants."""
    disks = any("@disk@" in option for shape in plan.shapes for option in shape.options)
    if not plan.own:
        with cluster(SITE, slurm_conf=SLURM, disks=disks, **HMA) as live:
            yield live, Surroundings()
        return
    with contextlib.ExitStack() as stack:
        database = MariaDB() if plan.mariadb else None
        if database is not None:
            stack.callback(database.stop)
        disk = stack.enter_context(small_disk())
        config = {"state_dir": str(disk / "hpctl"), "page": {"listen": f"unix:{disk}/page.sock"}}
        if database is not None:
            config["database_url"] = database.fresh()
        site = merged(merged(SITE, OWN_SITE), config)
        how = {"disks": disks, "clock_library": _clock_library(plan, disk), **HMA}
        made = cluster(site, slurm_conf=SLURM, **how)
        live = stack.enter_context(made)
        yield live, Surroundings(disk, database, plan.away_s)


def _clock_library(plan: Plan, directory: Path) -> str:
    """The library that plays clocks, where one is to be set."""
    wanted = any(fault.name.startswith("clock") for fault in plan.own)
    return str(build_clock(directory)) if wanted else ""


def soak(plan: Plan, say: Say) -> Account:
    """Break things as planned, then let every job end. Raises AssertionError where one does not."""
    account = Account(plan.seed, plan.minutes)
    kinds = [fault.name for fault in (*plan.faults, *plan.own)]
    with tempfile.TemporaryDirectory(prefix="hpctl-soak-") as name:
        base = Path(name)
        base.chmod(0o755)
        calm = {r: undisturbed(base, r, plan.steps) for r in {s.ranks for s in plan.shapes}}
        with _site(plan) as (live, around), StatusWatch(live, plan.named_s) as status:
            held = Invariants(live, REMEDIES_MOST)
            account.broken = held.broken
            soaker = _Soaker(live, base, plan, account, status, say, held, around)
            try:
                soaker.storm(random.Random(plan.seed))
                soaker.calm()
                account.status = status.verdict(kinds)
                account.handed_over = _handed_over(live)
                live.settle()
                if plan.own:
                    held.finish()
            except BaseException:
                print(_last_words(base), file=sys.stderr)
                print("\n".join(account.lines()), file=sys.stderr)
                print("\n".join(status.verdict(kinds).text()), file=sys.stderr)
                raise
            account.checks = held.checks
        for job in account.jobs:
            account.twice += ran_twice(job.directory)
            if job.final["sha256"] != calm[job.shape.ranks]:
                account.other_weights.append(f"job {job.number} ({job.shape.name})")
    return account


def _handed_over(live: Chaos) -> list[str]:
    """The nodes that wait for a person, and why."""
    ended = [r for r in live.node_recoveries() if r.phase == "escalated"]
    return [f"{r.node} ({r.rule}): {' > '.join(t.why for t in r.trail)}" for r in ended]


def _last_words(base: Path) -> str:
    """The end of each job's log: it is gone with its directory."""
    ends = []
    for log in sorted(base.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        ends.append("\n".join([f"--- {log.name} ---", *lines[-40:]]))
    return "\n".join(ends)


class _Soaker(Struct):
    """One run: what is going on, and what is broken now."""

    _live: Chaos
    _base: Path
    _plan: Plan
    _account: Account
    _status: StatusWatch
    _say: Say
    _held: Invariants
    _around: Surroundings
    _running: dict[str, Job] = field(default_factory=dict)
    _struck: list[Struck] = field(default_factory=list)
    _own_struck: int = 0
    _journal_away: float = 0.0
    """When the journal was last away."""
    _marked: float = 0.0
    """When a node was last to be marked by HyperPod's health agent."""

    def storm(self, chance: random.Random) -> None:
        """Keep one job of every shape going, and break something now and then."""
        plan, until = self._plan, time.time() + self._plan.minutes * 60
        following = time.time() + plan.pause_s[1]
        while time.time() < until and self._own_struck < plan.most:
            self._go_on()
            for shape in plan.shapes:
                self._keep_going(shape)
            if time.time() >= following and self._running:
                self._strike(chance)
                following = time.time() + chance.uniform(*plan.pause_s)
            time.sleep(0.2)

    def _go_on(self) -> None:
        """What has to be done all the while, whatever is broken."""
        self._end_faults(time.time())
        self._keep_daemon()
        self._operate()
        self._status.look()
        if self._plan.own:
            self._held.look()

    def _keep_daemon(self) -> None:
        """What the daemon's unit does, whose Restart= starts a daemon that has ended."""
        kinds = {struck.kind for struck in self._struck}
        if "database-away" in kinds:
            self._journal_away = time.time()
        killed = any(kind.startswith("daemon") for kind in kinds)
        if killed or daemon_pid(self._live):
            return
        if "database-away" in kinds and self._around.database is None:
            # A start now would make another journal, in a new directory.
            return
        last = self._live.log("daemon.out").splitlines()[-3:]
        self._account.restarts.append(f"{sorted(kinds)}: {last}")
        # Without its journal a daemon of one head does not begin to lead: it ends (takeover.py).
        began_without = time.time() - self._journal_away < START_S and "moved or" in str(last)
        if "little-memory" not in kinds and not began_without:
            self._held.broken.append(f"the daemon ended while {sorted(kinds)}: {last}")
        self._say(f"the daemon has ended: {last}")
        with contextlib.suppress(HpctlError):
            self._live.sandbox.start_daemon()

    def calm(self) -> None:
        """End what is broken, and wait for the jobs, and for what is still open."""
        self._end_faults(float("inf"))
        limit, soon = time.time() + CALM_S, time.time() + CALM_S / 2
        while self._waits(soon):
            self._go_on()
            for name, job in list(self._running.items()):
                if job.look(self._live):
                    self._ended(name)
            left = ", ".join(f"{j.number} ({j.shape.name})" for j in self._running.values())
            late = f"not complete {CALM_S:g} s after the last fault: {left}"
            assert not left or time.time() < limit, late
            time.sleep(0.3)

    def _waits(self, soon: float) -> bool:
        """Whether something is still open, that only the time until `soon` is given to, or a job
        or the daemon's return."""
        open_still = self._status.open() and time.time() < soon
        return bool(self._running or open_still or not self._held.settled)

    def _keep_going(self, shape: Shape) -> None:
        job = self._running.get(shape.name)
        if job is not None and self._up() and job.look(self._live):
            self._ended(shape.name)
            job = None
        if job is None and self._up():
            job = submit(self._live, self._base, shape, self._plan.steps, len(self._account.jobs))
            self._running[shape.name] = job
            self._account.jobs.append(job)
            self._say(f"job {job.number} ({shape.name}) is submitted")

    def _ended(self, name: str) -> None:
        job = self._running.pop(name)
        took = job.ended - job.submitted
        self._say(f"job {job.number} ({name}) is complete after {took:.0f} s")

    def _up(self) -> bool:
        """Whether slurmctld is there to be asked."""
        return not any("slurmctld" in each.line for each in self._struck)

    def _choose(self, chance: random.Random) -> Fault:
        """A fault at random: of hpctl's own parts in every second turn, if any are wanted. One at a
        time takes something from the daemon."""
        own = self._plan.own and chance.random() < 0.5
        kinds = self._plan.own if own else self._plan.faults
        if any(struck.of_head for struck in self._struck):
            kinds = [fault for fault in kinds if not fault.of_head] or self._plan.faults[:1]
        if any(struck.kind.startswith("clock") for struck in self._struck):
            kinds = [fault for fault in kinds if fault.name not in MARKING]
        return chance.choices(kinds, [max(1, fault.weight) for fault in kinds])[0]

    def _strike(self, chance: random.Random) -> None:
        fault = self._choose(chance)
        if not self._up():
            return
        struck, began = None, time.time()
        # A node that was hit a moment ago may have nothing left that could break.
        with contextlib.suppress(HpctlError):
            jobs = list(self._running.values())
            marked = time.time() < self._marked + MARKED_S
            struck = fault.strike(Scene(self._live, jobs, chance, self._around, marked))
        if struck is None:
            return
        self._account.struck[fault.name] += 1
        self._own_struck += fault in self._plan.own
        self._marked = time.time() if fault.name in MARKING else self._marked
        self._say(f"fault: {struck.line}")
        if struck.end is not None:
            self._struck.append(struck)
        struck.line = f"{time.strftime('%H:%M:%S')} {struck.line}"
        struck.kind, struck.began, struck.latent = fault.name, began, fault.latent
        struck.of_head = fault.of_head
        struck.over = struck.over or (lambda _: struck not in self._struck)
        self._status.watch(struck)
        if self._plan.own:
            self._held.watch(struck)
            if struck.end is None and fault in self._plan.own:
                self._held.after(struck.line)

    def _operate(self) -> None:
        """What an operator does whom `status` tells that a node waits for a person, or that its
        replacement found no capacity."""
        if any("no-capacity" in struck.line for struck in self._struck):
            return
        for node in self._status.for_an_operator():
            self._say(f"the operator orders {node} again")
            self._live.hpctl("cancel", node, check=False)
            self._live.hpctl("replace", node, "--yes", "--now", check=False)

    def _end_faults(self, now: float) -> None:
        for struck in [s for s in self._struck if s.until <= now]:
            assert struck.end is not None
            struck.end()
            self._struck.remove(struck)
            if self._plan.own:
                self._held.after(struck.line)
            self._say(f"over: {struck.line}")
