"""The soak: jobs one after the other in every shape, faults all the while, and the account."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpctl.toolkit.errors import HpctlError
from tests.daemon.chaos import ROOMY, Chaos, cluster, merged
from tests.soak.faults import FAULTS, Scene
from tests.soak.jobs import BESIDE, SHAPES, Job, Shape, ran_twice, submit, undisturbed
from tests.soak.status import NAMED_S, StatusWatch, Struck, Verdict

RETRIED = ("crash", "killed", "hang", "network", "no_progress", "storage")
SITE = merged(
    ROOMY,
    {
        # As many faults in a minute as in a month: the budgets have tests of their own.
        # A run has proved itself once slurmctld has saved that there is one (SAVE_MAX_WAIT, 5 s).
        "job": {"prove_s": 8.0, "step_retry_s": 1.0, "max_restarts": 100_000},
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
SLURM = "SlurmdTimeout=10\n"
HMA: dict[str, Any] = {"hma": True, "hma_latency": (1.0, 8.0)}
"""HyperPod's health agents are on; beside what they see, FAULTS has them mark nodes wrongly."""
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
            f"soak: what `hpctl status` named; missed: {len(self.status.misses)}",
            *self.status.text(),
        ]


def soak(minutes, seed, steps, pause_s, say, named_s=NAMED_S, shapes=SHAPES):
    """Break things for `minutes`, then let every job end. Raises AssertionError where one does not.

    `steps` is each job's length; `pause_s` the least and the most seconds between two faults;
    `named_s` is how soon `status` must name a fault.
    """
    account = Account(seed, minutes)
    with tempfile.TemporaryDirectory(prefix="hpctl-soak-") as name:
        base = Path(name)
        base.chmod(0o755)
        calm = {ranks: undisturbed(base, ranks, steps) for ranks in {s.ranks for s in shapes}}
        disks = any("@disk@" in option for shape in shapes for option in shape.options)
        how = {**HMA, "disks": disks}
        with cluster(SITE, slurm_conf=SLURM, **how) as live, StatusWatch(live, named_s) as status:
            soaker = _Soaker(live, base, steps, account, status, say, shapes)
            try:
                soaker.storm(random.Random(seed), time.time() + minutes * 60, pause_s)
                soaker.calm()
                account.status = status.verdict(fault.name for fault in FAULTS)
                account.handed_over = _handed_over(live)
                live.settle()
            except BaseException:
                print(_last_words(base), file=sys.stderr)
                print("\n".join(status.verdict(f.name for f in FAULTS).text()), file=sys.stderr)
                raise
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


Say = Callable[[str], None]


class _Soaker(Struct):
    """One run: what is going on, and what is broken now."""

    _live: Chaos
    _base: Path
    _steps: int
    _account: Account
    _status: StatusWatch
    _say: Say
    _shapes: Sequence[Shape]
    _running: dict[str, Job] = field(default_factory=dict)
    _struck: list[Struck] = field(default_factory=list)

    def storm(self, chance: random.Random, until: float, pause_s: tuple[float, float]) -> None:
        """Keep one job of every shape going, and break something now and then."""
        following = time.time() + pause_s[1]
        while time.time() < until:
            self._end_faults(time.time())
            self._operate()
            for shape in self._shapes:
                self._keep_going(shape)
            if time.time() >= following and self._running:
                self._strike(chance)
                following = time.time() + chance.uniform(*pause_s)
            self._status.look()
            time.sleep(0.2)

    def calm(self) -> None:
        """End what is broken, and wait for the jobs, and for what is still open."""
        self._end_faults(float("inf"))
        limit, soon = time.time() + CALM_S, time.time() + CALM_S / 2
        while self._running or (self._status.open() and time.time() < soon):
            self._operate()
            for name, job in list(self._running.items()):
                if job.look(self._live):
                    self._ended(name)
            left = ", ".join(f"{j.number} ({j.shape.name})" for j in self._running.values())
            late = f"not complete {CALM_S:g} s after the last fault: {left}"
            assert not left or time.time() < limit, late
            self._status.look()
            time.sleep(0.3)

    def _keep_going(self, shape: Shape) -> None:
        job = self._running.get(shape.name)
        if job is not None and self._up() and job.look(self._live):
            self._ended(shape.name)
            job = None
        if job is None and self._up():
            job = submit(self._live, self._base, shape, self._steps, len(self._account.jobs))
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

    def _strike(self, chance: random.Random) -> None:
        kinds = [f for f in FAULTS if not (self._struck and f.name in ("slurmctld", "daemon"))]
        fault = chance.choices(kinds, [f.weight for f in kinds])[0]
        if not self._up():
            return
        struck, began = None, time.time()
        # A node that was hit a moment ago may have nothing left that could break.
        with contextlib.suppress(HpctlError):
            struck = fault.strike(Scene(self._live, list(self._running.values()), chance))
        if struck is None:
            return
        self._account.struck[fault.name] += 1
        self._say(f"fault: {struck.line}")
        if struck.end is not None:
            self._struck.append(struck)
        struck.line = f"{time.strftime('%H:%M:%S')} {struck.line}"
        struck.kind, struck.began, struck.latent = fault.name, began, fault.latent
        struck.over = struck.over or (lambda _: struck not in self._struck)
        self._status.watch(struck)

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
            self._say(f"over: {struck.line}")
