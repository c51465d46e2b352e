"""Nodes of a training job die with their disks, again and again: from where does it resume?

    python -m tests.checkpoints.fast.kills --kills 200 --seed 7 [--shape dcp|deepspeed|megatron]
    [--both]

For each shape one sandbox: the daemon, agents, nodes in network namespaces with disks of their own
(root), and one job of real ranks that saves every 2 s and is flushed every 30 s. Each kill ends all
processes of a random node at a random instant, a part of them within a save or a copy, and empties
its disk. The job must resume by itself from the last or last but one step that all ranks had saved,
with the weights of an undisturbed run. With --both a node dies together with the one that holds its
copies: the job falls back to the flushed step, and its log says so.

One line a kill and a summary. The exit code is 0 only if the bars hold: 99 % of the kills, all with
--both, and no step that was called whole and did not load or held other weights. Logs of kills that
miss stay in build/fast-kills.
"""

import argparse
import random
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpctl.checkpoints.fast import spec as specs
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import HpctlError
from tests.checkpoints.fast.fast_ranks import digest, first, train
from tests.checkpoints.fast.test_fast_live import FastJob
from tests.daemon.chaos import ROOMY, merged
from tests.left_behind import left_behind
from tests.live import EAGER

SHAPES = ("dcp", "deepspeed", "megatron")
STEP_S, FLUSH_S, RATE = 2.0, 30, "1M"
"""At this rate a copy takes most of a second: a kill can meet it."""
BAR = 0.99
RESUME_S = 120.0
SAVES_S = 90.0
UNSEEN = 0.2
"""The part of the kills of which nobody tells slurmctld: it times out."""
KEPT = Path("build/fast-kills")
SITE = merged(
    ROOMY,
    {
        # As many losses in an hour as in a year: the budgets have tests of their own.
        "job": {"prove_s": 1.0, "step_retry_s": 1.0, "max_restarts": 100_000},
        "node": {"verify_healthy_s": 0.3, "remedy_after_s": 0.0},
        "ages": {"silent_s": 12.0},
        "catalogue": {
            "slurm-down": {"settle_s": 0.5, "ladder": ["replace"]},
            "agent-silent": {"settle_s": 5.0, "ladder": ["replace"]},
            "node-lost": {"ladder": ["replace"]},
        },
        "run_policy": {
            "restarts": 100_000,
            "without_progress": 1000,
            "same_signature": 1000,
            "backoff": {"first_s": 1.0, "factor": 1.0, "cap_s": 1.0},
        },
    },
)
SLURM = f"{EAGER}SlurmdTimeout=8\nMessageTimeout=4\n"


class Missed(Exception):
    """The job did not get as far as it must."""


class Resumed(Struct, frozen=True):
    """What the ranks of one attempt loaded: `wrong` says what of it is not what was saved."""

    attempt: int
    step: int
    place: str
    wrong: str = ""


class Bed:
    """A job in a sandbox, and what is known of it without asking Slurm."""

    def __init__(self, sandbox: Sandbox, place: Path, ranks: int, shape: str) -> None:
        flush = f"{FLUSH_S}s --fast-rate {RATE}"
        words = f"1000000 {shape} {STEP_S}"
        self.sandbox, self.job = sandbox, FastJob(sandbox, place, ranks, words, flush)
        self.ranks = ranks
        self._digests: list[list[str]] = [[] for _ in range(ranks)]
        self._states = [first(rank) for rank in range(ranks)]

    def marks(self) -> list[tuple[int, str, int]]:
        """What rank 0 wrote down: attempt, what, step."""
        text = self.job.marks.read_text() if self.job.marks.exists() else ""
        lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(int(attempt), what, int(step)) for attempt, what, step in lines]

    def newest(self) -> tuple[int, int, int]:
        """The last attempt that runs, the step that it began with, the last one that it saved."""
        told = self.marks()
        begun = [(attempt, step) for attempt, what, step in told if what == "runs"]
        attempt, step = begun[-1] if begun else (-1, 0)
        saved = [s for a, what, s in told if a == attempt and what == "saved"]
        return attempt, step, max([step, *saved])

    def flushed(self) -> int:
        """The newest step in the checkpoint directory, by the job's log."""
        return max(map(int, re.findall(r"flushed step (\d+)", self.job.text())), default=0)

    def nodes(self) -> specs.FastCheckpointSaveSpec:
        """The job's nodes now, and who holds whose copies."""
        return specs.read_fast_save_spec(self.job.saves / specs.META / f"{self.job.id}.json")

    def disks(self, node: str, inside: str = "") -> list[Path]:
        """What lies on a node's disk."""
        return list(self.sandbox.node_dir(node).glob(f"disk-*/run/{inside or '*'}"))

    def kill(self, victims: list[str], *, silently: bool) -> None:
        """At once for all; what was on the disks is lost. `silently`: the power is cut, so that no
        connection is closed."""

        def strike(node: str) -> None:
            if silently:
                self.sandbox.inject(node, "partition")
            self.sandbox.inject(node, "kill-node")

        with ThreadPoolExecutor(len(victims)) as pool:
            list(pool.map(strike, victims))
        for node in victims:
            for disk in self.sandbox.node_dir(node).glob("disk-*/run"):
                shutil.rmtree(disk, ignore_errors=True)

    def resumed(self, before: int) -> Resumed | None:
        """What a later attempt than `before` loaded, once all its ranks have."""
        lines = re.findall(
            r"rank (\d+) resumed from (\S+) at step (\d+) attempt (\d+) sha256 (\w+)",
            self.job.text(),
        )
        found: dict[int, list[tuple[int, str, int, str]]] = {}
        for rank, place, step, attempt, sha in lines:
            found.setdefault(int(attempt), []).append((int(rank), place, int(step), sha))
        whole = [n for n, rows in found.items() if n > before and len(rows) == self.ranks]
        if not whole:
            return None
        rows = found[max(whole)]
        (_, place, step, _), wrong = rows[0], ""
        if len({(row[1], row[2]) for row in rows}) > 1:
            wrong = f"ranks resumed from different steps: {sorted({row[2] for row in rows})}"
        elif bad := [rank for rank, _, at, sha in rows if sha != self._undisturbed(rank, at)]:
            wrong = f"ranks {bad} loaded other weights than those of step {step}"
        return Resumed(max(whole), step, place, wrong)

    def _undisturbed(self, rank: int, step: int) -> str:
        """The digest of a rank's weights after so many steps, computed here."""
        known = self._digests[rank]
        while len(known) < step:
            train(self._states[rank], rank, len(known) + 1)
            known.append(digest(self._states[rank]))
        return known[step - 1] if step else digest(first(rank))

    def keep(self, name: str) -> Path:
        """Everybody's logs stay."""
        kept = KEPT / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for title, text in left_behind(self.job.live).items():
            (kept / title.replace("/", "_").replace(" ", "-")).write_text(text)
        for path in (self.job.log, self.job.marks):
            if path.exists():
                shutil.copy(path, kept / path.name)
        return kept


def until(test: Callable[[], object], limit_s: float, what: str, pause_s: float = 0.1) -> None:
    """Raises Missed."""
    deadline = time.monotonic() + limit_s
    while not test():
        if time.monotonic() > deadline:
            raise Missed(f"not within {limit_s:g} s: {what}")
        time.sleep(pause_s)


class Kill(Struct):
    """One, and what came of it. `saved`: the last step that all ranks had saved."""

    number: int
    shape: str
    victims: list[str]
    moment: str
    silent: bool
    saved: int = 0
    flushed: int = 0
    resumed: Resumed | None = None
    took_s: float = 0.0
    trouble: str = ""

    @property
    def false_whole(self) -> bool:
        """Something was called whole that is not."""
        return bool(self.resumed and self.resumed.wrong) or "cannot load" in self.trouble

    def line(self, fast: str) -> str:
        """For a person."""
        who = "+".join(self.victims)
        how = "power cut" if self.silent else "crash"
        text = f"{self.number:>3} {self.shape} {who} {how}, {self.moment}: saved {self.saved}"
        if self.resumed is not None:
            tier = "the nodes" if self.resumed.place.startswith(fast) else "the flushed one"
            text += f", resumed {self.resumed.step} from {tier} in {self.took_s:.1f} s"
        return f"{text}{': MISSED, ' + self.trouble if self.trouble else ''}"


class Killer:
    """Strikes one job again and again."""

    def __init__(self, bed: Bed, chance: random.Random, shape: str, *, both: bool) -> None:
        self._bed, self._chance, self._shape, self._both = bed, chance, shape, both

    def strike(self, number: int) -> Kill:
        """One kill, from a job that saves to one that saves again."""
        moment = self._chance.choice(("any", "any", "save", "copy"))
        kill = Kill(number, self._shape, [], moment, self._chance.random() < 0.5)
        try:
            self._wait_for_saves(self._chance.choice((4, 5) if self._both else (0, 1, 2, 3)))
            kill.victims = self._aim(moment)
            before, offset, begun = self._bed.newest()[0], len(self._bed.job.text()), time.time()
            self._bed.kill(kill.victims, silently=kill.silent)
            kill.saved, kill.flushed = self._bed.newest()[2], self._bed.flushed()
            self._notice(kill.victims)
            until(lambda: self._bed.resumed(before), RESUME_S, "it resumes")
            kill.resumed = self._bed.resumed(before)
            kill.took_s = time.time() - begun
            kill.trouble = self._judge(kill, self._bed.job.text()[offset:])
        except (Missed, HpctlError) as error:
            loads = re.findall(r"rank \d+ cannot load .*", self._bed.job.text())
            kill.trouble = "; ".join([str(error), *loads[:1]])
        return kill

    def _wait_for_saves(self, least: int) -> None:
        """Until so many steps have been saved since the last start; with both partners lost, until
        the flushed step is neither the newest nor on the nodes."""

        def ready() -> bool:
            attempt, begun, saved = self._bed.newest()
            fresh = attempt >= 0 and saved >= begun + least
            fresh = fresh and saved >= 3  # a start at the beginning loads nothing
            return fresh and (not self._both or 0 < self._bed.flushed() <= saved - 2)

        until(ready, SAVES_S + (FLUSH_S if self._both else 0), "it saves")

    def _aim(self, moment: str) -> list[str]:
        """Wait for the instant; who dies then."""
        nodes, bed = self._bed.nodes(), self._bed
        victim = self._chance.choice(nodes.hosts)
        pair = [victim, nodes.partners(victim, nodes.hosts)[0]]
        now = bed.newest()[2]
        if moment == "any":
            time.sleep(self._chance.uniform(0.0, STEP_S))
        elif moment == "save":
            until(lambda: bed.marks()[-1][1:] >= ("saves", now + 1), 30, "a save begins", 0.005)
            time.sleep(self._chance.uniform(0.0, 0.1))
        else:
            copying = f"{specs.META}/copies/{victim}/*.tmp"
            until(lambda: bed.disks(pair[1], copying), 30, "a copy begins", 0.005)
            time.sleep(self._chance.uniform(0.0, 0.5))
        return pair if self._both else [self._chance.choice(pair)]

    def _notice(self, victims: list[str]) -> None:
        """slurmctld would call them DOWN after its timeout: mostly it is told sooner, as the
        ranks of the others end or not."""
        if self._chance.random() < UNSEEN:
            return
        time.sleep(self._chance.uniform(0.1, 1.5))
        for node in victims:
            self._bed.sandbox.scontrol(
                "update", f"NodeName={node}", "State=DOWN", "Reason=Not responding"
            )

    def _judge(self, kill: Kill, log: str) -> str:
        """What is wrong with it; "": nothing."""
        found = kill.resumed
        assert found is not None
        if found.wrong:
            return found.wrong
        if not self._both:
            lost = kill.saved - found.step
            return f"{lost} steps before the last one" if lost > 1 else ""
        if found.step > kill.flushed and Path(found.place).is_relative_to(self._bed.job.disk):
            return "what only the two had is there"
        if found.step >= kill.saved:
            return ""  # a flush that had begun was done
        told = [int(step) for step in re.findall(r"fast saves: step (\d+) is lost with", log)]
        if found.step < kill.flushed:
            return f"step {kill.flushed} was flushed"
        return "" if told and max(told) > found.step else "the log does not say what is lost"


@contextmanager
def bed(nodes: int, ranks: int, shape: str) -> Iterator[Bed]:
    """A sandbox with its job; gone at the end."""
    base = Path(tempfile.mkdtemp(prefix="hpctl-kills-"))
    base.chmod(0o755)
    settings = {"mode": "own", "daemon": True, "netns": True, "disks": True, "boot_time": 0.5}
    sandbox = Sandbox(
        "kills", state_dir=base / "s", nodes=nodes, config=SITE, slurm_conf=SLURM, **settings
    )
    try:
        sandbox.up()
        (base / "job").mkdir(mode=0o755)
        yield Bed(sandbox, base / "job", ranks, shape)
    finally:
        sandbox.down()
        shutil.rmtree(base, ignore_errors=True)


def series(kills: int, seed: int, shape: str, nodes: int, *, both: bool) -> Iterator[Kill]:
    """So many kills of jobs of one shape. A job that is lost is followed by a new one."""
    chance, done = random.Random(f"{seed} {shape} {both}"), 0
    while done < kills:
        size = nodes or chance.randrange(4, 7) + both
        with bed(size, size - 1 - both, shape) as now:
            killer = Killer(now, chance, shape, both=both)
            alive = True
            while alive and done < kills:
                done += 1
                kill = killer.strike(done)
                print(kill.line(str(now.job.disk)), flush=True)
                alive = kill.resumed is not None and not kill.resumed.wrong
                if kill.trouble:
                    kept = now.keep(f"{seed}-{shape}{'-both' * both}-{kill.number}")
                    print(f"    its logs: {kept}", flush=True)
                yield kill


def summary(kills: list[Kill], *, both: bool) -> tuple[bool, str]:
    """Whether the bars hold, and the figures."""
    good = sum(not kill.trouble for kill in kills)
    false = sum(kill.false_whole for kill in kills)
    back = [kill.saved - kill.resumed.step for kill in kills if kill.resumed is not None]
    alone = [kill.saved - kill.flushed for kill in kills if kill.resumed is not None]
    took = sorted(kill.took_s for kill in kills if kill.resumed is not None) or [0.0]
    bar = len(kills) if both else BAR * len(kills)
    what = "fell back to the flushed step and said so" if both else "lost one step at most"
    text = (
        f"fast kills: {len(kills)} kills{' of both partners' * both}, {good} {what};"
        f" {sum(back)} steps lost, at most {max(back, default=0)};"
        f" with the flushed ones alone {sum(alone)};"
        f" {took[len(took) // 2]:.1f} s to resume (median), {took[-1]:.1f} s (most);"
        f" false 'whole': {false}"
    )
    return good >= bar and not false and bool(kills), text


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser("python -m tests.checkpoints.fast.kills")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--shape", choices=SHAPES, help="default: each has a third of the kills")
    parser.add_argument("--both", action="store_true", help="a node and its partner at once")
    parser.add_argument("--nodes", type=int, default=0, help="of the sandbox (default: by chance)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"fast kills: seed {given.seed}", flush=True)
    done: list[Kill] = []
    shapes = (given.shape,) if given.shape else SHAPES
    with suppress(KeyboardInterrupt):
        for at, shape in enumerate(shapes):
            share = given.kills // len(shapes) + (at < given.kills % len(shapes))
            for kill in series(share, given.seed, shape, given.nodes, both=given.both):
                done.append(kill)
    held, text = summary(done, both=given.both)
    print(text, flush=True)
    return 0 if held and len(done) == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
